"""Tasks without replies of a world: a question, tools, and a judge of the answer."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

from rstar2.agent import Tool
from rstar2.agent.tool import close_all, fork_all
from rstar2.environments.protocol import Judgement, Opening
from rstar2.records import Problem, Trace


@dataclass(frozen=True, slots=True)
class PlainEpisode:
    """Satisfies `Episode`."""

    judge: Callable[[Trace], Awaitable[Judgement]]
    tools: Sequence[Tool] = ()
    observation: str = ""
    is_over: bool = False

    async def reply(self, _said: str) -> str | None:
        return None

    async def score(self, trace: Trace) -> Judgement:
        return await self.judge(trace)

    async def fork(self) -> Self | None:
        tools = await fork_all(self.tools)
        return None if tools is None else replace(self, tools=tools)

    async def close(self) -> None:
        await close_all(self.tools)


@dataclass(frozen=True, slots=True)
class PlainEnvironment:
    """Satisfies `Environment`: the problem's text is the question."""

    judge: Callable[[Problem, Trace], Awaitable[Judgement]]
    make_tools: Callable[[], Sequence[Tool]] = tuple
    """Makes the tools of one episode."""
    scores_truncated: bool = False

    def opening(self, problem: Problem) -> Opening:
        question = {"role": "user", "content": problem.problem}
        return Opening((question,), tuple(tool.schema for tool in self.make_tools()))

    async def begin(self, problem: Problem) -> PlainEpisode:
        return PlainEpisode(partial(self.judge, problem), self.make_tools())

    def solution(self, _problem: Problem) -> Sequence[str] | None:
        return None
