r"""Rules that find problems that cannot be trained on. Pure; each looks at one problem alone.

They are heuristics over text, chosen to drop a few good problems rather than to keep bad ones: a wrong gold teaches
wrong answers.
"""

import re

from rstar2.grading import last_box, parse_integer
from rstar2.grading.integers import read_integers

_SEVERAL = re.compile(r"[,;]|\\pm|±|\\text\s*\{\s*(?:and|or)\b|\b(?:and|or)\b|\\quad|\\\\|\n|=.*=")
_FIGURE = re.compile(
    r"\[/?asy\]|\\begin\{tikzpicture\}|\\includegraphics|!\[[^\]]*\]\(|<img\b|<image"
    r"|\b(?:figure|diagram|picture|graph|chart|map|image|drawing|illustration)\b[^.?!]{0,40}"
    r"\b(?:below|above|shown|(?:at|on|to) the (?:right|left))\b"
    r"|\b(?:shown|pictured|depicted|illustrated|drawn)\b[^.?!]{0,30}\b(?:below|above|figure|diagram|picture)\b"
    r"|\b(?:as|is|are) (?:shown|pictured|depicted|illustrated)\b"
    r"|\b(?:in|from|see|to|on) (?:the|this) (?:following |adjoining |accompanying |attached |given )?"
    r"(?:figure|diagram|picture|illustration)\b",
    re.IGNORECASE,
)
_PART = re.compile(r"(?:^|[\s:;.,])\(?(?P<mark>[a-c]|i{1,3}|[1-3])[).](?=\s)", re.MULTILINE)
_TASK = re.compile(
    r"\W*(?:then |and )?(?:find|determine|prove|show|how|what|which|compute|calculate|evaluate|solve|is|are|does|do)\b",
    re.IGNORECASE,
)
_OTHER_SCRIPT = re.compile(
    "[\u0400-\u052f\u0590-\u06ff\u0900-\u0dff\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"
)
"""Cyrillic, Hebrew, Arabic, Indian scripts, Thai, Japanese, Chinese, Korean."""
NUM_FOREIGN_LETTERS = 3
"""This many letters of another script make a text foreign; a single one may be a variable's name."""


def is_integer(gold: str) -> bool:
    """Whether the gold, boxed or not, is one integer and nothing else."""
    return parse_integer(last_box(gold) or gold) is not None


def is_composite(gold: str) -> bool:
    """Whether the gold has several parts: a list, a ± or an alternative."""
    gold = last_box(gold) or gold
    if parse_integer(gold) is not None:
        return False
    readings = read_integers(gold)
    return readings is not None or _SEVERAL.search(gold) is not None


def asks_several(text: str) -> bool:
    """Whether at least two numbered parts each ask for something, so that one gold cannot answer all."""
    marks = list(_PART.finditer(text))
    asked = {mark["mark"] for mark in marks if _TASK.match(text, mark.end())}
    return len(asked) >= 2


def needs_figure(text: str) -> bool:
    return _FIGURE.search(text) is not None


def is_foreign(text: str) -> bool:
    """Whether the text is written in another script than English; Greek letters count as mathematics."""
    return len(_OTHER_SCRIPT.findall(text)) >= NUM_FOREIGN_LETTERS
