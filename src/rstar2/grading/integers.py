r"""Compares integers, and lists of integers, exactly. Pure, linear: no float, no parser, no size limit.

Invariant: two texts are called equal only if they denote the same integers. An integer is its sign and its digits
without leading zeros, as text: converting 10 MB of digits to a number would take minutes.

A comma can separate thousands or the items of a list, so a text such as `1,234` has two readings, and every pair of
readings is tried; `1,2` and `12` share none.
"""

import re
from dataclasses import dataclass

_WRAPPERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("{", "}"))
_FONT = re.compile(r"\\(?:text|mathrm|mathbf|textbf|mathit|mathsf|bf|boldsymbol)\s*\{([^{}\\]*)\}")
_SPACE = re.compile(r"\\[,;: ]|\\(?:q?quad|thinspace)(?![a-zA-Z])|[~\s]+")
_INTEGER = re.compile(
    r"([-+−]?) ?(?:([0-9]+)|([1-9][0-9]{0,2}(?:,[0-9]{3})+)|([1-9][0-9]{0,2}(?: [0-9]{3})+))(?:\.0*)?", re.ASCII
)
_LIST_SEPARATOR = re.compile(r" ?[,;] ?")


@dataclass(frozen=True, slots=True)
class IntegerReadings:
    """The readings of a text: one integer, a list of at least two, or both (`1,234`)."""

    integer: str | None
    items: tuple[str, ...] | None


def parse_integer(text: str) -> str | None:
    """The integer that `text` denotes, as canonical digits; None if it is anything else."""
    return _integer(_without_noise(text))


def read_integers(text: str) -> IntegerReadings | None:
    """Every reading of `text` as integers; None if there is none."""
    bare = _without_noise(text)
    integer = _integer(bare)
    items: tuple[str, ...] | None = None
    if "," in bare or ";" in bare:
        read = [_integer(item) for item in _LIST_SEPARATOR.split(bare)]
        known = tuple(item for item in read if item is not None)
        items = known if len(known) == len(read) else None
    return None if integer is None and items is None else IntegerReadings(integer, items)


def same_integers(answer: IntegerReadings, gold: IntegerReadings) -> bool:
    """Whether a reading of one agrees with a reading of the other. A bare list is unordered and keeps its repeats; if
    the gold may also be one integer, order counts, so that `234,1` is never `1,234`."""
    if answer.integer is not None and answer.integer == gold.integer:
        return True
    if answer.items is None or gold.items is None:
        return False
    if gold.integer is not None:
        return answer.items == gold.items
    return sorted(answer.items) == sorted(gold.items)


def _integer(bare: str) -> str | None:
    match = _INTEGER.fullmatch(bare)
    if match is None:
        return None
    digits = (match[2] or match[3] or match[4]).replace(",", "").replace(" ", "").lstrip("0") or "0"
    return f"-{digits}" if match[1] in {"-", "−"} and digits != "0" else digits


def _without_noise(text: str) -> str:
    """`text` without LaTeX's noise around a number: dollars, fonts, thin spaces, a full stop."""
    if text.isdigit():
        return text
    text = _SPACE.sub(" ", text.replace("{,}", ",").replace(r"\!", "")).strip()
    if "\\" in text:
        text = _FONT.sub(r"{\1}", text.replace(r"\$", "$"))
    while (inner := _unwrapped(text)) is not None:
        text = inner
    return text.removesuffix(".").removeprefix("$").strip()


def _unwrapped(text: str) -> str | None:
    for left, right in _WRAPPERS:
        if len(text) > len(left) + len(right) and text.startswith(left):
            body = text.removesuffix(".").rstrip()
            inner = body[len(left) : -len(right)]
            if body.endswith(right) and left not in inner and right not in inner:
                return inner.strip()
    return None
