"""BFCL, single turn: a request, the functions on offer, and the calls that are right.

Categories of several turns are a separate benchmark (`multi_turn_calls`). The hub has the right calls in separate
files, as rows without a question; they are joined by id. The categories of irrelevance and relevance have no right
calls: only whether any call is made counts.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Self

from rstar2.data.cells import as_text, compact_json, find, ordered_json, require
from rstar2.data.rows import Row
from rstar2.errors import UserError
from rstar2.records import Problem

SINGLE_TURN_CATEGORIES = (
    "simple",
    "multiple",
    "parallel",
    "parallel_multiple",
    "java",
    "javascript",
    "irrelevance",
    "live_simple",
    "live_multiple",
    "live_parallel",
    "live_parallel_multiple",
    "live_relevance",
    "live_irrelevance",
)
WITHOUT_GOLD = ("irrelevance", "live_relevance", "live_irrelevance")

_ID_END = re.compile(r"_\d+(-\d+)*$")


@dataclass(frozen=True, slots=True)
class FunctionCallTask:
    """A single-turn task. `ground_truth` is BFCL's: for each call its name and, for each argument, the right values."""

    category: str
    messages: tuple[dict[str, Any], ...]
    functions: tuple[dict[str, Any], ...]
    ground_truth: tuple[dict[str, Any], ...]

    @property
    def metadata(self) -> dict[str, str]:
        return {
            "category": self.category,
            "messages": compact_json(self.messages),
            "functions": ordered_json(self.functions),
            "ground_truth": compact_json(self.ground_truth),
        }

    @classmethod
    def of(cls, problem: Problem) -> Self:
        stored = problem.metadata
        lists = (tuple(json.loads(stored[name])) for name in ("messages", "functions", "ground_truth"))
        return cls(stored["category"], *lists)

    @property
    def unknown_names(self) -> tuple[str, ...]:
        """Functions that the right calls use and that are not on offer. If only one is on offer, BFCL's checker goes by
        its name, whatever the ground truth calls it."""
        if len(self.functions) == 1:
            return ()
        offered = {function.get("name") for function in self.functions}
        return tuple(name for call in self.ground_truth for name in call if name not in offered)


def function_call_problems(rows: Iterable[Row], source: str) -> Iterator[Problem]:
    questions: list[tuple[str, Row]] = []
    golds: dict[str, Any] = {}
    for row in rows:
        row_id = as_text(require(row, ("id",), "id")[1], row, "id")
        if (found := find(row, ("ground_truth",))) is not None:
            golds[row_id] = found[1]
        if find(row, ("question",)) is not None:
            questions.append((row_id, row))
    for row_id, row in questions:
        category = str(row.values.get("category") or _ID_END.sub("", row_id))
        if category in SINGLE_TURN_CATEGORIES:
            yield _problem_of(row_id, category, golds.get(row_id), row, source)


def _problem_of(row_id: str, category: str, gold: Any, row: Row, source: str) -> Problem:
    turns = row.values["question"]
    if not (isinstance(turns, list) and len(turns) == 1 and isinstance(turns[0], list)):
        raise UserError(f"{row.where}: the question must be a list of one turn, which is a list of messages")
    functions = require(row, ("function",), "functions on offer")[1]
    if gold is None and category not in WITHOUT_GOLD:
        raise UserError(f"{row.where}: no ground_truth for {row_id}; get the set with its possible_answer files")
    task = FunctionCallTask(category, tuple(turns[0]), tuple(functions), tuple(gold or ()))
    asked = "\n\n".join(str(message.get("content", "")) for message in turns[0] if message.get("role") == "user")
    answer = compact_json(task.ground_truth) if task.ground_truth else ""
    return Problem(row_id, asked, answer, source, subject=category, metadata=task.metadata)
