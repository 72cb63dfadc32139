"""BFCL, several turns: a sequence of user requests to simulated services, whose state the calls change.

The functions on offer are those of the services, and their descriptions come with `bfcl-eval`. In `miss_func` one
function is withheld until a turn in which the user says only that there are more functions now. The ground truth has,
for each turn, the calls as Python source text; a turn without any is one in which the task cannot be done yet.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Self

from rstar2.data.cells import as_text, find, ordered_json, require
from rstar2.data.rows import Row
from rstar2.errors import UserError
from rstar2.records import Problem

MULTI_TURN_CATEGORIES = (
    "multi_turn_base",
    "multi_turn_miss_func",
    "multi_turn_miss_param",
    "multi_turn_long_context",
)
_OFFICIAL_ID = re.compile(rf"({'|'.join(MULTI_TURN_CATEGORIES)})_\d+$")


@dataclass(frozen=True, slots=True)
class MultiTurnCallTask:
    id: str
    """BFCL's own id, from which its checker takes the category."""
    turns: tuple[str, ...]
    """The user's text in each turn; empty in a turn that offers withheld functions instead."""
    services: tuple[str, ...]
    initial_config: dict[str, Any]
    missed_functions: dict[int, tuple[str, ...]]
    """The functions that are withheld at first, by the turn in which they are offered."""
    ground_truth: tuple[tuple[str, ...], ...]

    @property
    def category(self) -> str:
        return self.id.rpartition("_")[0]

    @property
    def is_answerable(self) -> bool:
        """Whether a response can be right: one of v3's conversations has more turns in its gold than the user
        speaks."""
        return len(self.turns) == len(self.ground_truth)

    @property
    def metadata(self) -> dict[str, str]:
        """The task as JSON texts, whose fields keep the order of the data: a listing of a folder shows it."""
        fields = ("turns", "services", "initial_config", "missed_functions", "ground_truth")
        return {"official_id": self.id, **{name: ordered_json(getattr(self, name)) for name in fields}}

    @classmethod
    def of(cls, problem: Problem) -> Self:
        stored = problem.metadata
        missed = json.loads(stored["missed_functions"])
        return cls(
            stored["official_id"],
            tuple(json.loads(stored["turns"])),
            tuple(json.loads(stored["services"])),
            json.loads(stored["initial_config"]),
            {int(turn): tuple(names) for turn, names in missed.items()},
            tuple(tuple(turn) for turn in json.loads(stored["ground_truth"])),
        )


def multi_turn_call_problems(rows: Iterable[Row], source: str) -> Iterator[Problem]:
    """Makes problems from rows; those of other categories are skipped. Golds may be in separate rows, as with single
    turns."""
    questions: list[tuple[str, str, Row]] = []
    golds: dict[str, Any] = {}
    for row in rows:
        row_id = as_text(require(row, ("id",), "id")[1], row, "id")
        official = _OFFICIAL_ID.search(row_id)
        if official is None:
            continue
        if (found := find(row, ("ground_truth",))) is not None:
            golds[row_id] = found[1]
        if find(row, ("question",)) is not None:
            questions.append((row_id, official[0], row))
    for row_id, official_id, row in questions:
        if row_id not in golds:
            raise UserError(f"{row.where}: no ground_truth for {row_id}; get the set with its possible_answer files")
        yield _problem_of(row_id, official_id, golds[row_id], row, source)


def _problem_of(row_id: str, official_id: str, gold: Any, row: Row, source: str) -> Problem:
    turns = row.values["question"]
    if not (isinstance(turns, list) and isinstance(gold, list)):
        raise UserError(f"{row.where}: question and ground_truth must be lists of turns")
    task = MultiTurnCallTask(
        official_id,
        tuple("\n\n".join(str(message["content"]) for message in turn) for turn in turns),
        tuple(require(row, ("involved_classes",), "services")[1]),
        dict(require(row, ("initial_config",), "state of the services")[1]),
        {int(turn): tuple(names) for turn, names in (row.values.get("missed_function") or {}).items()},
        tuple(tuple(map(str, calls)) for calls in gold),
    )
    return Problem(
        row_id,
        "\n\n".join(filter(None, task.turns)),
        ordered_json(task.ground_truth),
        source,
        subject=task.category,
        metadata=task.metadata,
    )
