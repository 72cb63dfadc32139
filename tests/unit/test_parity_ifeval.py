"""IFEval against lm-eval's task: every instruction of every response, strict and loose, and the four accuracies."""

import pytest

from golden_file import read_golden
from rstar2.data import InstructionTask
from rstar2.errors import UserError
from rstar2.evals.ifeval import instruction_judge
from rstar2.evals.ifeval.judge import followed, loose_versions
from rstar2.evals.metrics import measure
from rstar2.evals.sample import Sample
from rstar2.records import Outcome, Problem, StopReason, Trace, Turn
from rstar2.rollout.judge import judged


def can_check() -> bool:
    try:
        instruction_judge()
    except UserError:
        return False
    return True


pytestmark = [
    pytest.mark.unit,
    pytest.mark.skipif(not can_check(), reason="langdetect, nltk or its punkt_tab is not installed"),
]

GOLDEN = read_golden("ifeval")
RESPONSES: list[tuple[str, list[int], list[int], str]] = GOLDEN["responses"]


def problem_of(row_id: str) -> Problem:
    names, kwargs = GOLDEN["tasks"][row_id]
    given = tuple({key: value for key, value in each.items() if value is not None} for each in kwargs)
    return Problem(row_id, "?", "", metadata=InstructionTask(tuple(names), given).metadata)


def test_every_instruction_has_the_official_verdict() -> None:
    assert len(RESPONSES) >= 500
    different = []
    for row_id, strict, loose, text in RESPONSES:
        task = InstructionTask.of(problem_of(row_id))
        official = list(zip(map(bool, strict), map(bool, loose), strict=True))
        ours = list(zip(followed(task, [text]), followed(task, loose_versions(text)), strict=True))
        if ours != official:
            different.append((row_id, task.instruction_ids, official, ours, text))
    assert different == []


async def test_the_four_accuracies_are_the_official_ones() -> None:
    judge = instruction_judge()
    samples = []
    for index, (row_id, _, _, text) in enumerate(RESPONSES):
        turn = Turn((1,), (), text, StopReason.END_OF_TURN)
        trace = Trace(f"t{index}", row_id, (0,), "", (turn,), Outcome.ANSWERED)
        samples.append(Sample.of(await judged(judge, problem_of(row_id), trace)))

    result = measure(samples, len(samples), 1, 0.0)
    assert result.details == pytest.approx(GOLDEN["accuracies"], abs=1e-12)
    assert result.accuracy == pytest.approx(GOLDEN["accuracies"]["prompt_strict"], abs=1e-12)
