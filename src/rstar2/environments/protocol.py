"""The interface between a task and everything that rolls it out.

A process opens an `Environment` once and closes it at the end of the run. Each rollout begins one `Episode` of it;
rollouts of one problem share only their opening.
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
    """The services that a run opens once per process for its environments."""

    recipe: "Recipe"
    executor: "Executor"
    """Runs untrusted programs."""


@dataclass(frozen=True, slots=True)
class Opening:
    """The common beginning of every episode of a problem."""

    messages: tuple[Message, ...]
    """System, user and earlier turns, ending with the user's. Without a system message, the system text of the recipe,
    or of the model, is used."""
    tools: tuple[ToolSchema, ...] = ()
    """The tools of every episode of the problem."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The judgement of a finished episode, by an environment or a benchmark's judge."""

    verdict: Verdict | None = None
    """Whether the answer is right; None if there is only a score."""
    answer: str | None = None
    """The text that was compared with the gold answer, if there is one."""
    score: float | None = None
    """The reward, usually from 0 to 1. If None, a right verdict scores 1 and any other 0."""
    weight: float = 1.0
    """The weight of the score in the mean of its benchmark."""
    details: Mapping[str, float] = field(default_factory=dict)
    """Named parts of the score, or further scores, which results and the viewer show beside it."""
    message: str = ""
    format_penalty: float | None = None
    """`p_format` of GRPO-RoC, from 0 (clean) to 1. If None, it is computed from the answer blocks."""


class Episode(Protocol):
    """One rollout's part of an environment, with its own state."""

    @property
    def observation(self) -> str:
        """The world's first text, appended to the last user message; usually empty."""
        ...

    @property
    def tools(self) -> Sequence[Tool]:
        """The tools of the opening, bound to this episode."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether a tool call ended the episode; checked after the calls of a turn."""
        ...

    async def reply(self, said: str, /) -> str | None:
        """The user's next message, after a turn without tool calls; None ends the episode. `said` is the text of the
        turn."""
        ...

    async def score(self, trace: Trace) -> Judgement:
        """Judge the finished episode. The texts of the trace lack the token that ends a turn. InfrastructureError if it
        could not be judged."""
        ...

    async def close(self) -> None:
        """Close the tools and everything else that the episode holds."""
        ...


class PlaysItself(Protocol):
    """An episode whose own program asks the model, instead of the agent loop."""

    async def play(self, agent: Agent, trace_id: str) -> Trace:
        """Play the rollout, with the agent's engine, sampling and limits."""
        ...


def plays_itself(episode: object) -> TypeGuard[PlaysItself]:
    """Checked for each rollout: `isinstance` of a protocol would take thirty times as long."""
    return hasattr(episode, "play")


@runtime_checkable
class ForkableEpisode(Episode, Protocol):
    """An episode whose state can be copied. Rollouts of an episode without `fork` do not fork."""

    async def fork(self) -> Episode | None:
        """Copy the episode with its state; the caller closes the copy, and the two share nothing from now on. None if a
        tool cannot be copied now."""
        ...


async def fork_of(episode: Episode) -> Episode | None:
    """A copy of the episode; None if it cannot be copied. UserError passes; any other error of its code becomes an
    InfrastructureError."""
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
        """Whether an episode that ran out of tokens or turns is judged. Otherwise one that ran out of tokens scores
        0."""
        ...

    def opening(self, problem: Problem, /) -> Opening:
        """The opening of a problem. UserError names the missing or invalid column of its row."""
        ...

    async def begin(self, problem: Problem, /) -> Episode:
        """Begin an episode, which the caller closes."""
        ...

    def solution(self, problem: Problem, /) -> Sequence[str] | None:
        """A perfect model's turns, for `rstar2 env validate`; None if unknown."""
        ...
