"""Converts a reward that a user's code returned into a `Judgement`."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rstar2.environments.protocol import Judgement
from rstar2.records import Verdict

_ACCEPTED = "return a number, True or False, or a dict of named numbers"


def read_reward(value: Any) -> Judgement:
    """Read a reward: True and False are a verdict, a number is the score, a mapping holds named parts that are summed,
    a `Judgement` stays as it is. Unless a `Judgement` sets it, the format penalty is 0. ValueError says what is wrong
    with the value."""
    value = _plain(value)
    if isinstance(value, Judgement):
        if value.score is not None:
            _number(value.score)
        for name, part in value.details.items():
            _number(part, name)
        return replace(value, format_penalty=value.format_penalty or 0.0)
    if isinstance(value, bool):
        return Judgement(Verdict.RIGHT if value else Verdict.WRONG, format_penalty=0.0)
    if isinstance(value, Mapping):
        if not value:
            raise ValueError(f"returned a dict without parts as its reward; {_ACCEPTED}")
        parts = {str(name): _number(_plain(part), str(name)) for name, part in value.items()}
        return Judgement(score=math.fsum(parts.values()), details=parts, format_penalty=0.0)
    return Judgement(score=_number(value), format_penalty=0.0)


def _plain(value: Any) -> Any:
    """A number of numpy or PyTorch as a Python number."""
    try:
        return value.item() if hasattr(value, "item") else value
    except (TypeError, ValueError, RuntimeError):  # it holds several numbers
        return value


def _number(value: Any, name: str = "") -> float:
    what = f"{name!r} of its reward" if name else "its reward"
    if not isinstance(value, (int, float)):
        kind = "None" if value is None else f"a {type(value).__name__}"
        raise ValueError(f"returned {kind} as {what}; {_ACCEPTED}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"returned {number} as {what}; a reward must be a finite number")
    return number
