"""Words and sentences, by rules. Pure, and linear in the text, whatever a model writes."""

import re

_WORD = re.compile(r"\w+")
_SENTENCE_END = re.compile(r"""(?<![.!?])[.!?]++['")\]”’*]*+(?=\s|$)""")
_NEXT = re.compile(r"\s*(\S?)")
_ABBREVIATIONS = frozenset(
    (
        *(
            "mr",
            "mrs",
            "ms",
            "dr",
            "prof",
            "st",
            "sr",
            "jr",
            "inc",
            "ltd",
            "co",
            "corp",
            "vs",
            "etc",
            "fig",
            "no",
            "vol",
        ),
        *("e.g", "i.e", "p.s", "u.s", "u.k", "a.m", "p.m", "ph.d"),
    )
)
_LOOK_BACK = 64
"""Characters that the word before a full stop is looked for in."""
_CONTRACTION = re.compile(r"(?i)(n't|'(?:s|m|d|ll|re|ve))$")
_TOKEN_BREAK = re.compile(r"""[\s,;:!?()\[\]{}<>"“”]+|\.{2,}|--+""")


def count_words(text: str) -> int:
    return len(_WORD.findall(text))


def count_sentences(text: str) -> int:
    """As nltk's trained splitter mostly does: `!` and `?` before a blank end a sentence, and so does a full stop but
    after an abbreviation or an initial; dots and numbers do not before a small letter. The rest is a sentence too."""
    count, start = 0, 0
    for end in _SENTENCE_END.finditer(text):
        if _is_end(text, start, end):
            count, start = count + 1, end.end()
    return count + bool(text[start:].strip())


def _is_end(text: str, start: int, end: re.Match[str]) -> bool:
    if "!" in end[0] or "?" in end[0]:
        return True
    words = text[max(start, end.start() - _LOOK_BACK) : end.start()].split()
    last = words[-1].lstrip("(\"'“‘[*").lower() if words else ""
    if end[0].startswith("..") or last.isdigit():
        following = _NEXT.match(text, end.end())
        return following is None or not following[1].islower()
    is_initial = len(last) == 1 and last.isalpha() and last != "i"
    return not (last in _ABBREVIATIONS or is_initial)


def capital_words(text: str) -> int:
    """Words without a small letter. As nltk splits them: `DON'T` is two, `A-B` is one."""
    count = 0
    for token in _TOKEN_BREAK.split(text):
        word, ending = token, _CONTRACTION.search(token)
        if ending is not None and ending.start() > 0:
            word = token[: ending.start()]
            count += ending[0].isupper()
        count += word.isupper()
    return count
