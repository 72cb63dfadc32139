"""The responses that a model is compared with, by question."""

import json
from pathlib import Path
from typing import Any

from rstar2.errors import UserError

_ID_COLUMNS = ("id", "uid", "question_id")


def read_baseline(path: Path) -> dict[str, str]:
    """JSON Lines with a question's id and an `answer`; Arena-Hard's own files of model answers are read as well."""
    answers: dict[str, str] = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--judge-baseline: {path} cannot be read: {error}") from None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            row_id = next(str(row[name]) for name in _ID_COLUMNS if name in row)
            answers[row_id] = _answer(row)
        except (ValueError, KeyError, IndexError, TypeError, StopIteration):
            raise UserError(
                f"--judge-baseline: {path}, line {number}, needs an id ({', '.join(_ID_COLUMNS)}) and an answer"
            ) from None
    return answers


def _answer(row: dict[str, Any]) -> str:
    if "choices" in row:
        content = row["choices"][0]["turns"][0]["content"]
    elif "messages" in row:
        content = row["messages"][-1]["content"]
    else:
        content = row["answer"]
    if isinstance(content, dict):
        content = content["answer"]
    if not isinstance(content, str):
        raise TypeError("an answer is a text")
    return content
