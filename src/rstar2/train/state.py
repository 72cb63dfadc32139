"""The progress of a training run, as far as it is not a tensor: a frozen value, stored as JSON beside the tensors."""

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

from rstar2.train.seeds import Cursor

WARM_UP = "sft"
"""The supervised warm-up's name, where a stage's name is expected."""


@dataclass(frozen=True, slots=True)
class TrainState:
    sft_step: int = 0
    """Optimizer steps of the warm-up that are done."""
    sft_is_done: bool = False
    stage_index: int = 0
    stage_step: int = 0
    """Training steps of the stage that are done."""
    steps_since_reset: int = 0
    """Steps since the optimizer was reset: the warm-up of the learning rate counts from there."""
    step: int = 0
    """Training steps of all stages that are done."""
    cursor: Cursor = field(default_factory=Cursor)
    problem_ids: tuple[str, ...] | None = None
    """The problems that the stage's difficulty filter kept; None before it ran, or if there is no filter."""
    pending_evaluation: str | None = None
    """The name under which an evaluation must run before anything else; None if none is due."""
    recent_rewards: tuple[float, ...] = ()
    """Mean rewards of the stage's last steps."""
    best_reward: float = 0.0
    """The best mean of a window of steps so far, in this stage."""
    steps_without_signal: int = 0
    """Consecutive steps, across stages, that left nothing to train on."""
    older_weights: tuple[str, ...] = ()
    """Earlier weights that may have sampled the stage's next rollouts ahead of learning."""

    def next_stage(self) -> Self:
        return replace(
            self,
            stage_index=self.stage_index + 1,
            stage_step=0,
            cursor=Cursor(),
            problem_ids=None,
            recent_rewards=(),
            best_reward=0.0,
            older_weights=(),
        )

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Self:
        ids = raw["problem_ids"]
        return cls(
            **{
                **raw,
                "cursor": Cursor(**raw["cursor"]),
                "problem_ids": None if ids is None else tuple(ids),
                "recent_rewards": tuple(raw["recent_rewards"]),
                "older_weights": tuple(raw["older_weights"]),
            }
        )
