"""Converts rows of any shape to problems, for environments that read the row themselves. Pure.

Invariant: ids are unique, the same rows give the same ids, and a row is kept unchanged, as JSON. The text and the gold
of a problem are for people and for decontamination; they may be empty.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from rstar2.data.cells import compact_json, find, optional_text
from rstar2.data.mistakes import OnMistake, raise_it
from rstar2.data.problem_rows import (
    ANSWER_COLUMNS,
    ID_COLUMNS,
    LEVEL_COLUMNS,
    PROBLEM_COLUMNS,
    SOURCE_COLUMNS,
    SUBJECT_COLUMNS,
    require_new_id,
)
from rstar2.data.rows import Row
from rstar2.errors import UserError
from rstar2.records import Problem

TEXT_COLUMNS = (*PROBLEM_COLUMNS, "text", "question_content", "instruction", "messages")
"""Columns that may hold the question, for display."""


def task_problems_of(rows: Iterable[Row], source: str, on_mistake: OnMistake = raise_it) -> Iterator[Problem]:
    """One problem for each row. `on_mistake` gets each row that JSON cannot hold, and each repeated id."""
    seen: dict[str, str] = {}
    num_same: Counter[str] = Counter()
    for row in rows:
        try:
            values = _as_json(row)
            row_id = optional_text(row, (*ID_COLUMNS, "task_id")) or ""
            require_new_id(row_id, row, seen)
        except UserError as error:
            on_mistake(error)
            continue
        if not row_id:
            made = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]
            num_same[made] += 1
            row_id = made if num_same[made] == 1 else f"{made}-{num_same[made]}"
        yield Problem(
            id=row_id,
            problem=_text(row),
            answer=optional_text(row, ANSWER_COLUMNS) or "",
            source=optional_text(row, SOURCE_COLUMNS) or source,
            level=optional_text(row, LEVEL_COLUMNS),
            subject=optional_text(row, SUBJECT_COLUMNS),
            row=values,
        )


def _as_json(row: Row) -> dict[str, Any]:
    try:
        values: dict[str, Any] = json.loads(json.dumps(row.values, allow_nan=False, default=_plain))
    except (TypeError, ValueError) as error:
        raise UserError(f"{row.where}: {error}; a row must be JSON") from error
    return values


def _plain(value: Any) -> Any:
    """The JSON form of a value that Parquet may hold, such as a date or an array."""
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a value of type {type(value).__name__}")


def _text(row: Row) -> str:
    found = find(row, TEXT_COLUMNS)
    if found is None:
        return compact_json(row.values)
    if isinstance(found[1], str):
        return found[1].strip()
    users = [
        message["content"]
        for message in (found[1] if isinstance(found[1], list) else ())
        if isinstance(message, dict) and message.get("role") == "user" and isinstance(message.get("content"), str)
    ]
    return users[-1].strip() if users else compact_json(found[1])
