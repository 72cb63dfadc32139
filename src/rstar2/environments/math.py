"""Mathematics: a question, the gold answer, and a judge that compares the last answer block with it.

The Python tool of the report comes from the recipe's tools, so that the same task can be trained without one.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from rstar2.environments.plain_episode import PlainEnvironment
from rstar2.environments.protocol import Judgement, Services
from rstar2.environments.source import EnvironmentSource
from rstar2.grading import AnswerPlace, Grader
from rstar2.records import Problem, Trace

if TYPE_CHECKING:
    from rstar2.config import EnvironmentSection


class MathEnvironment(PlainEnvironment):
    """Mathematics, without tools of its own."""

    __slots__ = ()

    def __init__(self, grader: Grader, place: AnswerPlace = AnswerPlace.ANSWER_BLOCK) -> None:
        async def judge(problem: Problem, trace: Trace) -> Judgement:
            grade = await grader.grade(*trace.turn_texts, gold=problem.answer, place=place)
            return Judgement(grade.verdict, grade.answer, message=grade.message)

        super().__init__(judge)

    def solution(self, problem: Problem) -> Sequence[str]:
        return (f"</reason>\n<answer>\\boxed{{{problem.answer}}}</answer>",)


@asynccontextmanager
async def open_math(section: "EnvironmentSection", services: Services) -> AsyncIterator[MathEnvironment]:
    section.require_no_settings()
    yield MathEnvironment(Grader(services.executor, evaluated_only=True))


MATH = EnvironmentSource(open_math, tools=("execute_python_code_with_standard_io",), reads_answers=True)
