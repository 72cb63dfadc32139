"""IFEval: a prompt and the checks that its response must pass. There is no gold answer."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Self

from rstar2.data.cells import as_text, compact_json, require
from rstar2.data.rows import Row
from rstar2.errors import UserError
from rstar2.records import Problem


@dataclass(frozen=True, slots=True)
class InstructionTask:
    """The checks, by IFEval's names, and the arguments of each, in the same order."""

    instruction_ids: tuple[str, ...]
    kwargs: tuple[dict[str, Any], ...]

    @property
    def metadata(self) -> dict[str, str]:
        return {"instruction_id_list": compact_json(self.instruction_ids), "kwargs": compact_json(self.kwargs)}

    @classmethod
    def of(cls, problem: Problem) -> Self:
        stored = problem.metadata
        return cls(tuple(json.loads(stored["instruction_id_list"])), tuple(json.loads(stored["kwargs"])))


def instruction_problems(rows: Iterable[Row], source: str) -> Iterator[Problem]:
    for row in rows:
        prompt = as_text(require(row, ("prompt",), "prompt")[1], row, "prompt")
        row_id = as_text(require(row, ("id", "key"), "id")[1], row, "id")
        names = require(row, ("instruction_id_list",), "list of checks")[1]
        arguments = require(row, ("kwargs",), "arguments of the checks")[1]
        if not isinstance(names, list) or not isinstance(arguments, list) or len(names) != len(arguments):
            raise UserError(f"{row.where}: instruction_id_list and kwargs must be lists of the same length")
        # The hub's rows have every argument that any check knows, null where it does not apply.
        given = tuple({key: value for key, value in (each or {}).items() if value is not None} for each in arguments)
        task = InstructionTask(tuple(map(str, names)), given)
        yield Problem(row_id, prompt, "", source, metadata=task.metadata)
