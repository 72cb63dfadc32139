r"""Converts rows to problems, whatever the set calls its columns. Pure.

Invariant: every problem has a text and a gold, ids are unique, the same rows give the same ids. Known forms of a gold:
a separate column; `reward_model.ground_truth` (verl); GSM8K's `…#### 18`; the last `\boxed{}` of a worked solution.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from rstar2.data.cells import as_text, compact_json, find, optional_text, require
from rstar2.data.mistakes import OnMistake, raise_it
from rstar2.data.rows import Row
from rstar2.errors import UserError
from rstar2.grading import last_box
from rstar2.records import Problem

ID_COLUMNS = ("id", "unique_id", "problem_id", "question_id", "record id")
PROBLEM_COLUMNS = ("problem", "question", "prompt")
ANSWER_COLUMNS = (
    "answer",
    "final_answer",
    "expected_answer",
    "ground_truth",
    "reward_model.ground_truth",
    "target",
    "solution",
)
LEVEL_COLUMNS = ("level", "difficulty")
SUBJECT_COLUMNS = ("subject", "type")
SOURCE_COLUMNS = ("source", "data_source")

GSM8K_MARK = "####"
MAX_BARE_SOLUTION_CHARS = 200
"""A `solution` without a box is taken as the gold itself up to this length; a longer one is prose."""

_BARE_BOX = re.compile(r"\\boxed\s+(-?\w+)")
_DAPO_OPENING = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\n"
)
_DAPO_CLOSING = '\n\nRemember to put your answer on its own line after "Answer:".'


def problems_of(rows: Iterable[Row], source: str, on_mistake: OnMistake = raise_it) -> Iterator[Problem]:
    """One problem for each row. `source` is the source of rows that do not name their own. `on_mistake` gets each row
    that is no problem."""
    seen: dict[str, str] = {}
    num_same: Counter[str] = Counter()
    for row in rows:
        try:
            problem = _problem_of(row, source)
            require_new_id(problem.id, row, seen)
        except UserError as error:
            on_mistake(error)
            continue
        if problem.id:
            yield problem
        else:
            made = content_id(problem)
            num_same[made] += 1
            unique = made if num_same[made] == 1 else f"{made}-{num_same[made]}"
            yield replace(problem, id=unique)


def require_new_id(row_id: str, row: Row, seen: dict[str, str]) -> None:
    """Raises UserError for an id that was seen before. `seen` maps each id to its first place; a row without an id has
    an empty one."""
    if row_id in seen:
        raise UserError(f"{row.where}: the id {row_id!r} is also that of {seen[row_id]}; give each row its own")
    if row_id:
        seen[row_id] = row.where


def answered_problems_of(rows: Iterable[Row], source: str) -> Iterator[Problem]:
    """Like `problems_of`, for published sets that users cannot correct: rows without a gold are left out."""
    return problems_of((row for row in rows if _has_gold(row)), source)


def content_id(problem: Problem) -> str:
    """An id for a row that has none; rows with the same text and gold share it."""
    return hashlib.sha256(f"{problem.problem}\0{problem.answer}".encode()).hexdigest()[:16]


def _problem_of(row: Row, source: str) -> Problem:
    _, asked = require(row, PROBLEM_COLUMNS, "problem")
    column, gold = require(row, ANSWER_COLUMNS, "answer")
    found_id = find(row, ID_COLUMNS)
    return Problem(
        id="" if found_id is None else as_text(found_id[1], row, found_id[0]),
        problem=_question(asked, row),
        answer=_gold(gold, column, row),
        source=optional_text(row, SOURCE_COLUMNS) or source,
        level=optional_text(row, LEVEL_COLUMNS),
        subject=optional_text(row, SUBJECT_COLUMNS),
        metadata=_metadata(row),
    )


def _question(asked: Any, row: Row) -> str:
    """The question: a text, or the one user message of a chat prompt. DAPO's instructions around its problems
    contradict our own answer format and are removed."""
    if isinstance(asked, (list, tuple)):
        messages = [message for message in asked if isinstance(message, dict)]
        contents = [message.get("content") for message in messages if message.get("role") == "user"]
        if len(contents) != 1:
            raise UserError(f"{row.where}: the prompt has {len(contents)} user messages; a problem has one")
        asked = contents[0]
    return as_text(asked, row, "problem").removeprefix(_DAPO_OPENING).removesuffix(_DAPO_CLOSING)


def _gold(gold: Any, column: str, row: Row) -> str:
    text = as_text(gold, row, "answer")
    if column == "solution":
        concluded = _conclusion(text)
        if concluded is None:
            raise UserError(
                rf"{row.where}: the solution has no \boxed{{}} to take the answer from; add an answer column"
            )
        text = concluded
    elif GSM8K_MARK in text:
        text = text.rpartition(GSM8K_MARK)[2]
    if not text.strip():
        raise UserError(f"{row.where}: the answer is empty; fill or drop the row")
    return text.strip()


def _has_gold(row: Row) -> bool:
    found = find(row, ANSWER_COLUMNS)
    return found is not None and (found[0] != "solution" or bool(_conclusion(str(found[1]))))


def _conclusion(solution: str) -> str | None:
    """The answer of a worked solution: its last box, or the whole text if it is short enough to be the gold itself."""
    boxed = last_box(solution.replace(r"\fbox{", r"\boxed{"))
    if boxed is not None:
        return boxed
    # A few of MATH's solutions have a box without braces around a single number.
    if bare := _BARE_BOX.findall(solution):
        return str(bare[-1])
    return None if len(solution) > MAX_BARE_SOLUTION_CHARS or "\n" in solution else solution


def _metadata(row: Row) -> dict[str, str]:
    found = find(row, ("metadata",))
    if found is None or not isinstance(found[1], dict):
        return {}
    return {str(key): value if isinstance(value, str) else compact_json(value) for key, value in found[1].items()}
