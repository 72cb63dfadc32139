"""The environment of programs judged by tests: asks a row's question, and rewards the program that answers it."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from rstar2.environments.code.answer import extract_program, format_penalty
from rstar2.environments.code.judge import CodeJudge
from rstar2.environments.code.rows import read_task
from rstar2.environments.code.task import CodeTask
from rstar2.environments.messages import ASKED
from rstar2.environments.plain_episode import PlainEpisode
from rstar2.environments.protocol import Judgement, Opening, Services
from rstar2.environments.source import EnvironmentSource
from rstar2.errors import UserError
from rstar2.records import Problem, Trace, Verdict
from rstar2.sandbox import Limits

if TYPE_CHECKING:
    from rstar2.config import EnvironmentSection


@dataclass(frozen=True, slots=True)
class CodeEnvironment:
    """Satisfies `Environment`."""

    code_judge: CodeJudge
    gives_partial_credit: bool = False
    """Whether the score is the share of passed tests; otherwise it is 1 or 0."""
    scores_truncated: bool = False

    def opening(self, problem: Problem) -> Opening:
        return Opening(({"role": "user", "content": _task(problem).question},))

    async def begin(self, problem: Problem) -> PlainEpisode:
        return PlainEpisode(partial(self.judge, problem))

    async def judge(self, problem: Problem, trace: Trace) -> Judgement:
        penalty = format_penalty(trace.turn_texts)
        program = extract_program(trace.turn_texts)
        if program is None:
            nothing = {"tests_passed": 0.0}
            return Judgement(Verdict.NO_ANSWER, details=nothing, message="no program", format_penalty=penalty)
        report = await self.code_judge.judge(_task(problem), program)
        return Judgement(
            Verdict.RIGHT if report.is_right else Verdict.WRONG,
            program,
            score=report.share_passed if self.gives_partial_credit else None,
            details={"tests_passed": report.share_passed},
            message=report.message,
            format_penalty=penalty,
        )

    def solution(self, problem: Problem) -> Sequence[str] | None:
        solution = _task(problem).solution
        return None if solution is None else (f"</reason>\n<answer>\n```python\n{solution.strip()}\n```\n</answer>",)


def _task(problem: Problem) -> CodeTask:
    return read_task(problem.row, "" if problem.id == ASKED else problem.id)


@asynccontextmanager
async def open_code(section: "EnvironmentSection", services: Services) -> AsyncIterator[CodeEnvironment]:
    settings = dict(section.settings)
    gives_partial_credit = settings.pop("partial_credit", False)
    if settings:
        raise UserError(f"environment.settings: code has no setting {next(iter(settings))!r}; it has partial_credit")
    if not isinstance(gives_partial_credit, bool):
        raise UserError("environment.settings.partial_credit: must be true or false")
    sandbox = services.recipe.sandbox
    limits = Limits(**sandbox.limits.model_dump())
    yield CodeEnvironment(CodeJudge(services.executor, limits, sandbox.queue_s), gives_partial_credit)


CODE = EnvironmentSource(open_code, tools=("execute_python_code_with_standard_io",), opens_at_once=True)
