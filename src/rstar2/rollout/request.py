"""Rollout requests, and the interface of the components that run them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from rstar2.agent import AgentLimits
from rstar2.engine import Sampling
from rstar2.records import Problem, StepRecord, Trace
from rstar2.rollout.trees.settings import TreeSettings

OnTrace = Callable[[Trace], None]


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    """One attempt at one problem. Ids are the caller's, so that a repeated attempt has the same id."""

    problem: Problem
    trace_id: str
    group_id: str = ""
    sample_index: int = 0
    step: int = 0
    stage: str = ""
    seed: int | None = None
    tree: TreeSettings | None = None
    """If set, the requests of one run that have the same group are the leaves of one tree, in their order. None: the
    rollout begins at the prompt."""


class Rolls(Protocol):
    """Rolls problems out.

    Invariant: one trace comes back for each request, in the order of the requests, whatever happened to it; a rollout
    that was lost through our fault, or that its tree's budget did not pay for, comes back as that, and never with a
    reward.
    """

    async def run(
        self,
        requests: Sequence[RolloutRequest],
        limits: AgentLimits,
        sampling: Sampling,
        on_trace: OnTrace = ...,
    ) -> list[Trace]:
        """One judged trace for each request; `on_trace` gets each the moment it is ready."""
        ...


class RollsInSteps(Rolls, Protocol):
    """The interface that training needs."""

    @property
    def is_here(self) -> bool:
        """Whether rollouts run in this process, and wait for whatever else it does."""
        ...

    async def num_prompt_tokens(self, problems: Sequence[Problem]) -> list[int]: ...

    def begin_step(self, step: int) -> None:
        """Record from here on what engines and rollouts do."""
        ...

    async def end_step(self) -> StepRecord:
        """The record of what engines and rollouts did since `begin_step`."""
        ...
