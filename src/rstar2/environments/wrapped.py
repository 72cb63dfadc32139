"""Wrappers that pass on everything that they do not override."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from rstar2.agent import Tool
from rstar2.environments.protocol import Environment, Episode, Judgement, Opening, fork_of
from rstar2.records import Problem, Trace


@dataclass(frozen=True, slots=True)
class WrappedEpisode:
    """Satisfies `Episode`."""

    episode: Episode

    @property
    def observation(self) -> str:
        return self.episode.observation

    @property
    def tools(self) -> Sequence[Tool]:
        return self.episode.tools

    @property
    def is_over(self) -> bool:
        return self.episode.is_over

    async def reply(self, said: str, /) -> str | None:
        return await self.episode.reply(said)

    async def score(self, trace: Trace) -> Judgement:
        return await self.episode.score(trace)

    async def fork(self) -> Self | None:
        episode = await fork_of(self.episode)
        return None if episode is None else replace(self, episode=episode)

    async def close(self) -> None:
        await self.episode.close()


def innermost(episode: Episode) -> Episode:
    """The episode inside all wrappers."""
    while isinstance(episode, WrappedEpisode):
        episode = episode.episode
    return episode


@dataclass(frozen=True, slots=True)
class WrappedEnvironment:
    """Satisfies `Environment`."""

    environment: Environment

    @property
    def scores_truncated(self) -> bool:
        return self.environment.scores_truncated

    def opening(self, problem: Problem, /) -> Opening:
        return self.environment.opening(problem)

    async def begin(self, problem: Problem, /) -> Episode:
        return await self.environment.begin(problem)

    def solution(self, problem: Problem, /) -> Sequence[str] | None:
        return self.environment.solution(problem)
