"""A problem, and a group: the rollouts of one problem in one step, and what was decided about each of them."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

PROBLEM_SCHEMA_VERSION = 1
GROUP_SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Problem:
    """One task. `answer` is the gold as its source wrote it; only graders read it, never the model. Both may be empty
    where an environment reads its `row`."""

    id: str
    problem: str
    answer: str
    source: str = ""
    level: str | None = None
    subject: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    row: dict[str, Any] = field(default_factory=dict)
    """The row of the data set as it is, for environments other than mathematics."""
    environment: str = ""
    """The name of its environment in the recipe; empty for the recipe's default."""
    schema_version: int = PROBLEM_SCHEMA_VERSION


class Selection(StrEnum):
    """What was decided about one rollout of a group."""

    KEPT = "kept"
    DOWNSAMPLED = "downsampled"
    """Resampling on correct left the rollout out."""
    UNSCORED = "unscored"
    """The rollout has no reward, because of an infrastructure fault or an undecided verdict, so nothing can be learnt
    from it."""
    EQUAL_REWARDS = "equal_rewards"
    """Every kept reward of the group is the same, so the group was dropped."""


@dataclass(frozen=True, slots=True)
class Group:
    """The rollouts of one problem in one step. Each tuple has one entry per rollout, in `trace_ids` order; None where a
    rollout has no such value."""

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
    """Which penalties weighed against a success: `both`, `errors`, `format`, or `repetition`: that and both."""
    repetition_penalties: tuple[float | None, ...] = ()
    """Empty if they did not count."""
    is_right: tuple[bool, ...] = ()
    """Whether each rollout is right, as its trace says; one without a reward is not. If left out, a full reward is
    right."""
    is_success: tuple[bool, ...] = ()
    """Which rollouts were successes for resampling. If left out, a reward above 0 is a success."""
    token_advantages: tuple[tuple[tuple[int, float | None], ...], ...] = ()
    """In a tree, for each rollout, pairs of a number of its sampled tokens, in order, and their advantage; None if they
    are not trained, or trained in another rollout that shares them. Empty if every kept rollout has one advantage."""
    schema_version: int = GROUP_SCHEMA_VERSION

    def __post_init__(self) -> None:
        num_rollouts = len(self.trace_ids)
        if not self.is_right:
            object.__setattr__(self, "is_right", tuple(r is not None and r >= 1 for r in self.rewards))
        if not self.is_success:
            object.__setattr__(self, "is_success", tuple(r is not None and r > 0 for r in self.rewards))
        columns = ["rewards", "error_penalties", "format_penalties", "advantages", "selections"]
        columns += [name for name in ("token_advantages", "repetition_penalties") if getattr(self, name)]
        for name in (*columns, "is_right", "is_success"):
            if len(getattr(self, name)) != num_rollouts:
                raise ValueError(
                    f"group {self.id}: {name} has {len(getattr(self, name))} entries for {num_rollouts} rollouts"
                )
