"""A problem, and a group: the rollouts of one problem in one step, and what was decided about each of them."""

from dataclasses import dataclass, field
from enum import StrEnum

PROBLEM_SCHEMA_VERSION = 1
GROUP_SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Problem:
    """One task. `answer` is the gold as its source wrote it; only graders read it, never the model."""

    id: str
    problem: str
    answer: str
    source: str = ""
    level: str | None = None
    subject: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    schema_version: int = PROBLEM_SCHEMA_VERSION


class Selection(StrEnum):
    """What became of one rollout of a group."""

    KEPT = "kept"
    DOWNSAMPLED = "downsampled"
    """Resampling on correct left it out."""
    UNSCORED = "unscored"
    """Infrastructure fault or undecided verdict: it has no reward, so nothing can be learnt from it."""
    EQUAL_REWARDS = "equal_rewards"
    """Every kept reward of the group is the same, so the group was dropped."""


@dataclass(frozen=True, slots=True)
class Group:
    """One entry per rollout in each tuple, in `trace_ids` order; None where a rollout has no such value."""

    id: str
    problem_id: str
    step: int
    trace_ids: tuple[str, ...]
    rewards: tuple[float | None, ...]
    error_penalties: tuple[float | None, ...]
    format_penalties: tuple[float | None, ...]
    advantages: tuple[float | None, ...]
    selections: tuple[Selection, ...]
    penalty: str = "both"
    """Which of the two penalties weighed against a success: `both`, `errors` or `format`."""
    schema_version: int = GROUP_SCHEMA_VERSION

    def __post_init__(self) -> None:
        num_rollouts = len(self.trace_ids)
        for name in ("rewards", "error_penalties", "format_penalties", "advantages", "selections"):
            if len(getattr(self, name)) != num_rollouts:
                raise ValueError(
                    f"group {self.id}: {name} has {len(getattr(self, name))} entries for {num_rollouts} rollouts"
                )
