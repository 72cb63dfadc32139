"""The interface between a task and everything that rolls it out.

A process opens an `Environment` once and closes it at the end of the run. Each rollout begins one `Episode` of it:
rollouts of one problem share their opening, and nothing else.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeGuard, runtime_checkable

from rstar2.agent import Agent, Tool, ToolSchema
from rstar2.engine.protocol import Message
from rstar2.environments.code_places import describe, place_of
from rstar2.errors import EnvironmentCodeError, InfrastructureError, UserError
from rstar2.records import Problem, Trace, Verdict

if TYPE_CHECKING:
    from rstar2.config import Recipe
    from rstar2.sandbox import Executor

FORK_DEADLINE_S = 60.0


@dataclass(frozen=True, slots=True)
class Services:
    """What a run opens once in each process, and its environments share."""

    recipe: "Recipe"
    executor: "Executor"
    """Runs untrusted programs."""


@dataclass(frozen=True, slots=True)
class Opening:
    """What every episode of a problem begins with."""

    messages: tuple[Message, ...]
    """System, user and earlier turns. The last message is the user's. Without a system message the system text of the
    recipe, or of the model, is used."""
    tools: tuple[ToolSchema, ...] = ()
    """The tools of every episode of the problem."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What an environment, or a benchmark's judge, says of a finished episode."""

    verdict: Verdict | None = None
    """Whether it is right. None where there is only a score."""
    answer: str | None = None
    """The text that was compared with the gold answer, where there is one."""
    score: float | None = None
    """The reward, mostly in 0 to 1. If None, a right verdict scores 1 and any other 0."""
    weight: float = 1.0
    """What the score counts in the mean of its benchmark."""
    details: Mapping[str, float] = field(default_factory=dict)
    """The named parts of the score, or further scores, which results and viewer show beside it."""
    message: str = ""
    format_penalty: float | None = None
    """`p_format` of GRPO-RoC, from 0 (clean) to 1. If None, it is computed from the answer blocks."""


class Episode(Protocol):
    """One rollout's share of an environment, with a state of its own."""

    @property
    def observation(self) -> str:
        """What the world says first. It is appended to the last user message; mostly it is empty."""
        ...

    @property
    def tools(self) -> Sequence[Tool]:
        """The tools of the opening, for this episode alone."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether a tool call ended the episode. It is asked after the calls of a turn."""
        ...

    async def reply(self, said: str, /) -> str | None:
        """The user's next message, after a turn that calls no tool. `said` is the text of the turn. None ends the
        episode."""
        ...

    async def score(self, trace: Trace) -> Judgement:
        """The reward of the finished episode. The texts of the trace are without the token that ends a turn.
        InfrastructureError if it could not be judged."""
        ...

    async def close(self) -> None:
        """The rollout is over: close the tools and whatever else the episode holds."""
        ...


class PlaysItself(Protocol):
    """An episode whose conversation is not led by the agent loop: a program of its own asks the model."""

    async def play(self, agent: Agent, trace_id: str) -> Trace:
        """The rollout, with the agent's engine, sampling and limits."""
        ...


def plays_itself(episode: object) -> TypeGuard[PlaysItself]:
    """Asked for every rollout: `isinstance` of a protocol would take thirty times as long."""
    return hasattr(episode, "play")


@runtime_checkable
class ForkableEpisode(Episode, Protocol):
    """An episode whose state can be copied. One that has no `fork` says that it cannot be, and no rollout forks
    there."""

    async def fork(self) -> Episode | None:
        """A second episode in this one's state, which its caller closes; None if it cannot be copied now, because of a
        tool that cannot. The two share nothing from here on."""
        ...


async def fork_of(episode: Episode) -> Episode | None:
    """A copy of the episode; None if it cannot be copied. InfrastructureError, whatever its code raises."""
    if not isinstance(episode, ForkableEpisode):
        return None
    try:
        async with asyncio.timeout(FORK_DEADLINE_S):
            return await episode.fork()
    except (InfrastructureError, UserError):
        raise
    except TimeoutError as error:
        raise EnvironmentCodeError(f"an episode's fork: no answer within {FORK_DEADLINE_S:g} s") from error
    except Exception as error:
        raise EnvironmentCodeError(f"an episode's fork: {place_of(error)}{describe(error)}") from error


class Environment(Protocol):
    @property
    def scores_truncated(self) -> bool:
        """Whether an episode that ran out of tokens or turns is judged. If not, one that ran out of tokens scores 0."""
        ...

    def opening(self, problem: Problem, /) -> Opening:
        """UserError names the column of the problem's row that is missing or wrong."""
        ...

    async def begin(self, problem: Problem, /) -> Episode:
        """An episode, which the caller closes."""
        ...

    def solution(self, problem: Problem, /) -> Sequence[str] | None:
        """What a perfect model would write, turn by turn, for `rstar2 env validate`. None if it is not known."""
        ...
