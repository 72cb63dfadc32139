r"""Whether the gold answers of a set score as right under the set's own grader.

A gold is put where a model would put it, into `<answer>\boxed{…}</answer>`, and graded like any response. What has no
gold answer is checked for what its grader will need: IFEval's checks and their arguments, BFCL's right calls among the
functions on offer, a prompt for the judge.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rstar2.data.benchmarks import FunctionCallTask, InstructionTask
from rstar2.data.benchmarks.function_calls import WITHOUT_GOLD
from rstar2.data.catalog import Grading
from rstar2.grading import Grader
from rstar2.records import Problem, Verdict

NUM_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Failure:
    """A problem whose gold does not score, and why."""

    problem_id: str
    answer: str
    reason: str


async def validate(
    problems: Sequence[Problem],
    grading: Grading,
    grader: Grader,
    on_done: Callable[[], None] = lambda: None,
) -> list[Failure]:
    """What fails, in the set's order."""
    places = asyncio.Semaphore(NUM_AT_ONCE)

    async def check(problem: Problem) -> Failure | None:
        async with places:
            reason = await _why_wrong(problem, grading, grader)
        on_done()
        return None if reason is None else Failure(problem.id, problem.answer, reason)

    return [failure for failure in await asyncio.gather(*map(check, problems)) if failure is not None]


async def _why_wrong(problem: Problem, grading: Grading, grader: Grader) -> str | None:
    match grading:
        case Grading.ANSWER:
            grade = await grader.grade(rf"<answer>\boxed{{{problem.answer}}}</answer>", gold=problem.answer)
            if grade.verdict is Verdict.RIGHT:
                return None
            return f"{grade.verdict} by {grade.method}" + (f": {grade.message}" if grade.message else "")
        case Grading.INSTRUCTIONS:
            return _instructions_fault(InstructionTask.of(problem))
        case Grading.CALLS:
            return _calls_fault(FunctionCallTask.of(problem))
        case Grading.MULTI_TURN_CALLS | Grading.JUDGE | Grading.NOTHING:
            return None if problem.problem else "the prompt is empty"


def _instructions_fault(task: InstructionTask) -> str | None:
    if not task.instruction_ids:
        return "there is nothing to check"
    if any(":" not in name for name in task.instruction_ids):
        return "a check has no group in its name"
    return None


def _calls_fault(task: FunctionCallTask) -> str | None:
    if not task.functions and task.category not in WITHOUT_GOLD:
        return "no functions are on offer"
    if task.unknown_names:
        return f"the right call is of {task.unknown_names[0]}, which is not on offer"
    return None
