"""The one interface of every scheduling policy: facts in, decisions out.

A scheduler has no clock, does no I/O and waits for nothing, so the live driver and the simulator run the same code, and
the same facts in the same order give the same decisions. Every fact carries its time, in seconds since any fixed
moment.

Invariants: a rollout is submitted once and ends once. In between it alternates: it runs on an engine (`TokensGrown`),
its turn ends (`TurnEnded`), a tool is called (`ToolCalled`) and returns (`ToolReturned`). It may be abandoned, and then
ends in any state. Token counts cover the full context: prompt, sampled tokens and tool responses. `Start` is decided
once for each rollout, before any other decision about it. `Resume` and `Move` answer a rollout that is ready to
continue (its tool returned, its turn was cancelled, its engine was lost). The caller carries decisions out in their
order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from rstar2.engine import EngineLoad


@dataclass(frozen=True, slots=True)
class EngineSpeed:
    """The costs of moving a rollout and of crowding an engine; from a roofline, or measured."""

    prefill_token_s: float
    """The time to compute one token of a context that is not in the cache."""
    step_s: float
    """The time of one decoding step of an almost empty engine: reading the weights, and overhead."""
    cached_token_s: float
    """The time that each token in the contexts of the running rollouts adds to a decoding step."""


class PromptPart(NamedTuple):
    """A part of prompts. Rollouts that name it share it, and everything before it, also in a cache."""

    name: str
    num_tokens: int


@dataclass(frozen=True, slots=True)
class RolloutSpec:
    """A rollout to be run. Rollouts of one problem share their prompt, also in a cache. For a branch of a tree the
    problem is the point where it begins, and the prompt everything before it."""

    rollout: str
    problem: str
    num_prompt_tokens: int
    max_response_tokens: int
    stage: str = ""
    """Lengths are learned separately for each stage of a curriculum."""
    parent: str = ""
    """The ended rollout that computed the prompt of a branch; empty for a rollout that is not one."""
    parts: tuple[PromptPart, ...] = ()
    """The prompt of a branch, cut at the points of its tree. Empty: one part, which the problem's rollouts share."""

    @property
    def prompt_parts(self) -> tuple[PromptPart, ...]:
        return self.parts or (PromptPart(self.problem, self.num_prompt_tokens),)


def branch_spec(
    spec: RolloutSpec, parent: str, parts: tuple[PromptPart, ...], num_shared_response_tokens: int
) -> RolloutSpec:
    """The rollout as a branch of a tree, which shares `num_shared_response_tokens` of its response with its parent."""
    return RolloutSpec(
        spec.rollout,
        parts[-1].name,
        sum(part.num_tokens for part in parts),
        spec.max_response_tokens - num_shared_response_tokens,
        f"{spec.stage}/branches",
        parent,
        parts,
    )


@dataclass(frozen=True, slots=True)
class EngineJoined:
    at_s: float
    engine: str
    num_cache_tokens: int
    speed: EngineSpeed


@dataclass(frozen=True, slots=True)
class EngineLost:
    """The engine has died, and with it the cache of every rollout that was there."""

    at_s: float
    engine: str


@dataclass(frozen=True, slots=True)
class EngineReported:
    at_s: float
    engine: str
    load: EngineLoad


@dataclass(frozen=True, slots=True)
class RolloutsSubmitted:
    """New rollouts in the preferred order of their starts; siblings of a problem are adjacent."""

    at_s: float
    rollouts: tuple[RolloutSpec, ...]


@dataclass(frozen=True, slots=True)
class TokensGrown:
    at_s: float
    rollout: str
    num_tokens: int


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """The engine is done with this turn. `ToolCalled` or `RolloutEnded` follows."""

    at_s: float
    rollout: str
    num_tokens: int


@dataclass(frozen=True, slots=True)
class TurnCancelled:
    """A turn stopped in its middle because the scheduler cancelled it. It is ready to continue from the tokens it
    has."""

    at_s: float
    rollout: str
    num_tokens: int


@dataclass(frozen=True, slots=True)
class ToolCalled:
    at_s: float
    rollout: str


@dataclass(frozen=True, slots=True)
class ToolReturned:
    """The next turn can begin; `num_tokens` includes the response."""

    at_s: float
    rollout: str
    num_tokens: int


@dataclass(frozen=True, slots=True)
class RolloutEnded:
    """The rollout is over, and no further fact about it follows. A scheduler frees all that it holds for it, even if it
    was never started."""

    at_s: float
    rollout: str
    num_tokens: int
    was_abandoned: bool = False
    """Whether the rollout was cancelled or failed, so that its length is only a lower bound."""


Fact = (
    EngineJoined
    | EngineLost
    | EngineReported
    | RolloutsSubmitted
    | TokensGrown
    | TurnEnded
    | TurnCancelled
    | ToolCalled
    | ToolReturned
    | RolloutEnded
)


@dataclass(frozen=True, slots=True)
class Start:
    """Begin the first turn on this engine."""

    rollout: str
    engine: str


@dataclass(frozen=True, slots=True)
class KeepWaiting:
    """There is no room for the rollout now. It stays queued until a later fact leads to its start or resumption."""

    rollout: str


@dataclass(frozen=True, slots=True)
class Resume:
    """Continue where it was before: its cache may still be there."""

    rollout: str
    engine: str


@dataclass(frozen=True, slots=True)
class Move:
    """Continue elsewhere, at the price of recomputing its context."""

    rollout: str
    source: str
    target: str


@dataclass(frozen=True, slots=True)
class Evict:
    """Drop the cache of a rollout that waits for its tool."""

    rollout: str
    engine: str


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop the running turn. `TurnCancelled` confirms it, unless the turn ended by itself before."""

    rollout: str
    engine: str


Decision = Start | KeepWaiting | Resume | Move | Evict | Cancel


class Scheduler(Protocol):
    wants_reports: bool
    """Whether it needs `TokensGrown` and `EngineReported`; otherwise they are not sent."""

    def handle(self, fact: Fact) -> Sequence[Decision]: ...
