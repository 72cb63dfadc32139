r"""Grades a model's text, or an answer, against a gold, by a deadline.

Answers that `decide` leaves open are compared by math-verify inside the executor's sandbox. The verdict on an
expression that cannot be decided there:

- the answer cannot be read, or exhausts a limit while it is read: wrong;
- the numerical values differ: wrong, before any symbolic comparison, so that an answer gains nothing by making that
  comparison slow;
- the values agree, or cannot be computed, and the symbolic comparison exhausts a limit: undecided;
- the gold cannot be read, or exhausts a limit: undecided, whatever the answer is;
- the executor failed, or starved the program of CPU: `InfrastructureError`, never a verdict.
"""

import json
from dataclasses import asdict, dataclass
from importlib import resources

from rstar2.errors import InfrastructureError
from rstar2.grading.decide import Grade, Method, SymbolicComparison, decide
from rstar2.grading.extract import AnswerPlace, extract_answer
from rstar2.records import Verdict
from rstar2.sandbox import Execution, Executor, Limits, Request

GRADING_DEADLINE_S = 10.0
"""Wall-clock limit of one comparison once it has a worker; the CPU limit is half. Honest comparisons take under 1 s."""
GRADING_MEMORY_BYTES = 1 << 30
"""Memory limit of one comparison; math-verify and sympy take 0.1 GiB of it."""

_SOURCES = (resources.files("rstar2.grading").joinpath(f"{name}.py") for name in ("numerals", "program"))
_PROGRAM = "\n\n".join((*(source.read_text(encoding="utf-8") for source in _SOURCES), "main()\n"))


@dataclass(frozen=True, slots=True)
class Grader:
    """Grades answers. Only comparisons that need computer algebra reach `executor`."""

    executor: Executor
    deadline_s: float = GRADING_DEADLINE_S
    evaluated_only: bool = False
    r"""Whether, with an integer gold, an answer that leaves work to the grader (`123 \cdot 456`) is wrong. Benchmarks
    count such answers as right; a policy that is rewarded for them learns to copy the question into the box."""

    async def grade(self, *turns: str, gold: str, place: AnswerPlace = AnswerPlace.ANSWER_BLOCK) -> Grade:
        """Grade the answer in `turns`: the model's own text, without the output of its tools."""
        answer = extract_answer(*turns, place=place)
        if answer is None:
            where = "the last answer block" if place is AnswerPlace.ANSWER_BLOCK else "the text"
            return Grade(Verdict.NO_ANSWER, None, Method.EXTRACTION, rf"no balanced, filled \boxed{{}} in {where}")
        return await self.grade_answer(answer, gold)

    async def grade_answer(self, answer: str, gold: str) -> Grade:
        """Grade an answer that was already taken out of its box."""
        decided = decide(answer, gold, evaluated_only=self.evaluated_only)
        if isinstance(decided, Grade):
            return decided
        verdict, message = await self._compare(decided)
        return Grade(verdict, answer, Method.MATH_VERIFY, message)

    async def _compare(self, comparison: SymbolicComparison) -> tuple[Verdict, str]:
        limits = Limits(wall_s=self.deadline_s, cpu_s=self.deadline_s / 2, memory_bytes=GRADING_MEMORY_BYTES)
        request = Request(_PROGRAM, stdin=json.dumps(asdict(comparison)), limits=limits)
        execution = await self.executor.run(request)
        return read_execution(execution)


def read_execution(execution: Execution) -> tuple[Verdict, str]:
    """The verdict of a run of the grading program, finished or stopped. Pure."""
    reported = _reported(execution.stdout)
    if execution.status.is_sandbox_fault or "stage" not in reported:
        raise InfrastructureError(
            f"grading could not be run ({execution.status}): {execution.message or execution.stderr[-500:]}"
        )
    match reported.get("verdict"):
        case "right":
            return Verdict.RIGHT, ""
        case "wrong":
            return Verdict.WRONG, ""
        case "answer_unreadable":
            return Verdict.WRONG, "the answer cannot be read as mathematics"
        case "gold_unreadable":
            return Verdict.UNDECIDED, "the gold cannot be read as mathematics"
    if reported["stage"] == "started":
        return Verdict.UNDECIDED, f"the gold could not be read within the limits ({execution.status})"
    if reported["stage"] == "gold":
        return Verdict.WRONG, f"the answer could not be read within the limits ({execution.status})"
    return Verdict.UNDECIDED, f"answer and gold could not be compared within the limits ({execution.status})"


def _reported(stdout: str) -> dict[str, str]:
    """The last stage and the verdict, as far as they were printed; empty if the output is not the program's own."""
    reported: dict[str, str] = {}
    try:
        for line in stdout.splitlines():
            reported.update(json.loads(line))
    except ValueError:
        return {}
    return reported
