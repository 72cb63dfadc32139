"""Problems of reasoning-gym, as `rg_TASK`: only those whose gold can be compared directly with an answer.

Many of its tasks have several right answers and their own scorer, which gives partial credit and which our graders do
not call. So a problem is taken if its gold is an integer, or if its task is scored only by equality with the gold, and
in either case only if the task's own scorer gives the gold full marks. Tasks that have no such problem are refused.
"""

import hashlib
import io
from contextlib import redirect_stdout
from itertools import count, islice
from typing import Any

from rstar2.errors import UserError
from rstar2.grading import parse_integer
from rstar2.models.storage import require_installed
from rstar2.records import Problem

PREFIX = "rg_"
NUM_PROBED = 200
"""A task without a comparable gold among this many problems is refused. Of `rg_power_function` one problem in nine has
one: among 16, one seed in six found none."""
MIN_PROBLEMS_DRAWN = 16
MAX_DRAWS_PER_PROBLEM = 50
"""After this many draws for each wanted problem, a small task counts as out of different problems."""

_FULL_MARKS = 1.0


def generate_reasoning_gym(task: str, num_problems: int, stream: str) -> tuple[Problem, ...]:
    """`num_problems` different problems of `rg_TASK`; the stream's name alone decides which."""
    require_installed(("reasoning_gym",), f"the procedural task {task}")
    name = task.removeprefix(PREFIX)
    seed = int.from_bytes(hashlib.sha256(f"{stream}/{task}".encode()).digest()[:4])
    num_draws = MAX_DRAWS_PER_PROBLEM * max(num_problems, MIN_PROBLEMS_DRAWN)
    # Some tasks print while they are made.
    with redirect_stdout(io.StringIO()):
        dataset = _open_task(name, seed, num_draws)
        taken: dict[str, str] = {}
        for index in islice(count(), num_draws):
            if len(taken) == num_problems:
                break
            if index == NUM_PROBED and not taken:
                raise UserError(f"{task}: its answers cannot be compared as such, only scored by reasoning-gym itself")
            entry = dataset[index]
            if is_comparable(dataset, entry):
                taken.setdefault(entry["question"], entry["answer"])
    if len(taken) < num_problems:
        raise UserError(f"{task} gives {len(taken)} different problems, not {num_problems}; ask for fewer")
    source = f"reasoning-gym/{name}"
    return tuple(
        Problem(f"{stream}/{task}/{number}", question, answer, source=source, subject=name)
        for number, (question, answer) in enumerate(taken.items())
    )


def is_comparable(dataset: Any, entry: dict[str, Any]) -> bool:
    from reasoning_gym.dataset import ProceduralDataset

    gold = entry["answer"]
    if not isinstance(gold, str) or not gold.strip():
        return False
    is_scored_by_equality = type(dataset).score_answer is ProceduralDataset.score_answer
    if parse_integer(gold) is None and not is_scored_by_equality:
        return False
    return bool(dataset.score_answer(gold, entry) >= _FULL_MARKS)


def _open_task(name: str, seed: int, size: int) -> Any:
    from reasoning_gym.factory import DATASETS, create_dataset

    if name not in DATASETS or name == "composite":
        known = ", ".join(sorted(set(DATASETS) - {"composite"}))
        raise UserError(f"reasoning-gym has no task {name!r} (procedural:{PREFIX}{name}); it has {known}")
    return create_dataset(name, seed=seed, size=size)
