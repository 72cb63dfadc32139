"""Answers of multiple-choice questions: one capital letter, in whatever brackets. Pure."""

import re

_CHOICE = re.compile(
    r"(?:\\(?:text|textbf|mathrm|mathbf|rm)\s*\{\s*)*"
    r"(?:\(\s*(?P<bracketed>[A-J])\s*\)|(?P<bare>[A-J])\s*(?P<mark>[).:])?)"
    r"\s*\}*\s*(?P<rest>.*)",
    re.DOTALL,
)


def choice_letter(text: str) -> str | None:
    r"""The letter of `B`, `(B)`, `B.`, `\text{(B)}`, `\textbf{(B) } 17`; None if `text` is anything else. Words after
    the letter count only behind a bracket or a mark, so that `A cat` and `Ax+B` are no choices."""
    match = _CHOICE.fullmatch(text.strip().strip("$").strip())
    if match is None:
        return None
    if match["rest"] and not (match["bracketed"] or match["mark"]):
        return None
    return match["bracketed"] or match["bare"]
