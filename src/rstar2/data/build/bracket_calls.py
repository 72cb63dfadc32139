"""A strict parser of calls as ToolACE writes them, `[Market Trends API(kind="gainers", $top=10), Search(q="x")]`. Pure.

Function names may hold spaces and brackets, so the longest offered name that fits is taken; names of arguments may be
Python keywords. Values are literals of Python or JSON. No text is evaluated.
"""

import ast
import json
import re
from collections.abc import Sequence
from typing import Any

from rstar2.data.build.source import LeftOut, LeftOutError

_KEY = re.compile(r"\s*([^\s=,()\[\]{}\"']+)\s*=(?!=)\s*")
_CALLS = re.compile(r"\[.*\)\s*\]", re.DOTALL)
_PAIRS = {"(": ")", "[": "]", "{": "}"}


def is_calls(text: str) -> bool:
    """Whether a turn of the assistant consists of calls and nothing else."""
    return _CALLS.fullmatch(text.strip()) is not None


def parse_calls(text: str, names: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
    """Name and arguments of each call; LeftOutError if a call cannot be read, or its function is not on offer."""
    rest, calls = text.strip()[1:-1].strip(), []
    longest_first = sorted(names, key=len, reverse=True)
    while rest:
        name, rest = _name(rest, longest_first)
        arguments, rest = _arguments(rest)
        calls.append((name, arguments))
        rest = rest.strip()
        if rest and not rest.startswith(","):
            raise LeftOutError(LeftOut.BAD_CALL, f"no comma before {rest[:40]!r}")
        rest = rest[1:].lstrip()
    return calls


def _name(text: str, longest_first: Sequence[str]) -> tuple[str, str]:
    """The function's name, and the text behind its opening bracket."""
    for name in longest_first:
        behind = text.removeprefix(name).lstrip()
        if text.startswith(name) and behind.startswith("("):
            return name, behind[1:]
    raise LeftOutError(LeftOut.UNKNOWN_TOOL, text.partition("(")[0][:80])


def _arguments(text: str) -> tuple[dict[str, Any], str]:
    """The arguments up to the closing bracket, and the text behind it."""
    arguments: dict[str, Any] = {}
    text = text.lstrip()
    while not text.startswith(")"):
        key = _KEY.match(text)
        if key is None:
            raise LeftOutError(LeftOut.BAD_CALL, f"no named argument at {text[:40]!r}")
        end = _end_of_value(text, key.end())
        arguments[key[1]] = _value(text[key.end() : end])
        text = text[end:].removeprefix(",").lstrip()
    return arguments, text[1:]


def _end_of_value(text: str, at: int) -> int:
    """The position of the comma or bracket that ends the value."""
    open_pairs: list[str] = []
    quote = ""
    while at < len(text):
        sign = text[at]
        if quote:
            at += sign == "\\"
            quote = "" if sign == quote else quote
        elif sign in "\"'":
            quote = sign
        elif sign in _PAIRS:
            open_pairs.append(_PAIRS[sign])
        elif open_pairs and sign == open_pairs[-1]:
            open_pairs.pop()
        elif not open_pairs and sign in ",)":
            return at
        at += 1
    raise LeftOutError(LeftOut.BAD_CALL, "an argument has no end")


def _value(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refused)
    except ValueError:
        pass
    try:
        # Written and read again: tuples become lists, and what JSON does not have is refused.
        return json.loads(json.dumps(ast.literal_eval(text.strip()), allow_nan=False))
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
        raise LeftOutError(LeftOut.BAD_CALL, f"{text.strip()[:40]!r} is no literal") from error


def _refused(constant: str) -> Any:
    raise ValueError(constant)
