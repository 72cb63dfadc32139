"""Finds the cells of a row by the names that data sets use for them. Pure.

Names are matched without regard to case; `reward_model.ground_truth` is a cell inside a cell. A cell that is missing,
null or blank counts as not there. An error names the row and the columns that were seen.
"""

import json
from collections.abc import Sequence
from typing import Any

from rstar2.data.rows import Row
from rstar2.errors import UserError


def find(row: Row, names: Sequence[str]) -> tuple[str, Any] | None:
    """The first of `names` that the row has a filled cell for, and the cell."""
    by_name = {name.lower(): name for name in row.values}
    for name in names:
        head, _, rest = name.partition(".")
        column = by_name.get(head)
        value = None if column is None else row.values[column]
        if rest:
            value = value.get(rest) if isinstance(value, dict) else None
        if value is not None and not (isinstance(value, str) and not value.strip()):
            return name, value
    return None


def require(row: Row, names: Sequence[str], what: str) -> tuple[str, Any]:
    found = find(row, names)
    if found is not None:
        return found
    if any(name.partition(".")[0] in map(str.lower, row.values) for name in names):
        raise UserError(f"{row.where}: the {what} is empty; fill or drop the row")
    seen = ", ".join(row.values) or "none"
    raise UserError(f"{row.where}: no column for the {what}; the columns are {seen}: call it one of {', '.join(names)}")


def as_text(value: Any, row: Row, what: str) -> str:
    """A text or number as text; anything else raises UserError."""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value == value:
        return str(value)
    raise UserError(f"{row.where}: the {what} must be a text or a number, not {type(value).__name__}")


def optional_text(row: Row, names: Sequence[str]) -> str | None:
    """The first filled cell as text, as a label for people; lists and objects are written as JSON. None if there is
    none."""
    found = find(row, names)
    if found is None:
        return None
    return found[1] if isinstance(found[1], str) else compact_json(found[1])


def ordered_json(value: Any) -> str:
    """The value as JSON with its fields in the order of the data, for display."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def compact_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True, default=str)
