"""What a simulation runs: rollouts whose lengths, turns and tool delays are already known to it, and to no policy."""

from dataclasses import dataclass
from functools import cached_property

from rstar2.rollout.facts import RolloutSpec


@dataclass(frozen=True, slots=True)
class PlannedTurn:
    """So many sampled tokens; then, but after the last turn, a tool that takes `tool_s` and appends tokens."""

    num_sampled_tokens: int
    num_appended_tokens: int = 0
    tool_s: float = 0.0


@dataclass(frozen=True)
class PlannedRollout:
    spec: RolloutSpec
    turns: tuple[PlannedTurn, ...]

    def __post_init__(self) -> None:
        if not self.turns or any(turn.num_sampled_tokens < 1 for turn in self.turns):
            raise ValueError(f"rollout {self.spec.rollout} needs at least one turn of at least one token")

    @cached_property
    def num_sampled_tokens(self) -> int:
        return sum(turn.num_sampled_tokens for turn in self.turns)


@dataclass(frozen=True, slots=True)
class Workload:
    name: str
    rollouts: tuple[PlannedRollout, ...]
