"""Decides which of one problem's rollouts are kept, and with which advantage; from arrays, or from traces.

Invariant: a group is trained on or dropped as one. In a dropped group no rollout has an advantage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rstar2.algo.advantage import group_advantages, rewards_are_equal
from rstar2.algo.penalties import Penalty, TracePenalty, repetition_penalty, trace_penalty
from rstar2.algo.resample import DEFAULT_EPSILON, SelectionRule, resample
from rstar2.algo.tree import paths_of, token_advantages
from rstar2.errors import UserError
from rstar2.extensions import ADVANTAGES, SELECTIONS, TREE_ADVANTAGES
from rstar2.records import Group, Outcome, Selection, Trace, Verdict
from rstar2.settings import pick

if TYPE_CHECKING:
    from rstar2.config import Recipe


@dataclass(frozen=True, slots=True)
class RocSettings:
    group_size: int = 16
    """How many rollouts are kept, G. Twice as many are sampled."""
    selection: str = "paper"
    advantage: str = "grpo"
    penalty: Penalty = Penalty.BOTH
    """Which penalties of a trace count. With arrays, the caller has already combined those that count."""
    penalty_epsilon: float = DEFAULT_EPSILON
    overlong_filtering: bool = False
    """Whether truncated rollouts are left out, as if they had no reward."""
    format_reward: float = 0.0
    """What a rollout with nothing missing from its form gets beside its reward, right or wrong."""
    drop_equal_groups: bool = True
    """Whether a group of equal rewards is dropped; otherwise it stays, with advantages of 0."""
    tree_advantage: str | None = None
    """How the turns that leaves of a tree share get advantages. None: rollouts share no turns."""

    @classmethod
    def of(cls, recipe: Recipe) -> Self:
        tree = recipe.rollout.tree
        tree_advantage = None if tree is None else tree.advantage
        return pick(cls, recipe.algo, penalty=Penalty(recipe.algo.penalty), tree_advantage=tree_advantage)

    @property
    def rule(self) -> SelectionRule:
        rule: SelectionRule = SELECTIONS.load(self.selection)
        return rule


@dataclass(frozen=True, slots=True)
class Choice:
    kept: NDArray[np.bool_]
    """The rollouts that resampling kept."""
    advantages: NDArray[np.float64]
    """NaN for each rollout that is not trained on: it was not kept, or the group was dropped."""


def choose_rollouts(
    rewards: ArrayLike,
    penalties: ArrayLike,
    settings: RocSettings,
    rng: np.random.Generator,
    is_success: ArrayLike | None = None,
) -> Choice:
    """Choose from one reward (NaN: none) and one penalty for each rollout. A full reward is a success, unless
    `is_success` says which are."""
    scores = np.asarray(rewards, dtype=np.float64)
    kept = resample(
        scores,
        penalties,
        num_kept=settings.group_size,
        selection=settings.selection,
        rng=rng,
        epsilon=settings.penalty_epsilon,
        is_success=is_success,
    )
    advantages = np.full(scores.shape, np.nan)
    if not (settings.drop_equal_groups and rewards_are_equal(scores[kept])):
        advantages[kept] = group_advantages(scores[kept], settings.advantage)
    return Choice(kept, advantages)


def decide_group(
    traces: Sequence[Trace],
    num_answer_blocks: Sequence[int],
    settings: RocSettings,
    rng: np.random.Generator,
    *,
    group_id: str,
    step: int,
) -> Group:
    """Decides a group of traces. A trace that has no reward, was lost or not sampled, or has an undecided verdict is
    left out, and gets neither reward nor penalties in the group; its number of answer blocks is not read."""
    problem_ids = {trace.problem_id for trace in traces}
    if len(problem_ids) != 1:
        raise UserError(f"group {group_id} holds rollouts of {len(problem_ids)} problems: give those of exactly one")
    rewards = [_scored_reward(trace, settings) for trace in traces]
    penalties = [
        None if reward is None else _penalty(trace, blocks, settings)
        for trace, blocks, reward in zip(traces, num_answer_blocks, rewards, strict=True)
    ]
    if settings.format_reward:
        rewards = [
            None if reward is None or penalty is None else reward + settings.format_reward * (penalty.format == 0)
            for reward, penalty in zip(rewards, penalties, strict=True)
        ]
    is_right = tuple(reward is not None and bool(trace.is_right) for trace, reward in zip(traces, rewards, strict=True))
    choice = choose_rollouts(
        [np.nan if reward is None else reward for reward in rewards],
        [np.nan if penalty is None else settings.penalty.of(penalty) for penalty in penalties],
        settings,
        rng,
        is_right,
    )
    return Group(
        id=group_id,
        problem_id=problem_ids.pop(),
        step=step,
        trace_ids=tuple(trace.id for trace in traces),
        rewards=tuple(rewards),
        error_penalties=tuple(penalty.error if penalty else None for penalty in penalties),
        format_penalties=tuple(penalty.format if penalty else None for penalty in penalties),
        repetition_penalties=tuple(penalty.repetition if penalty else None for penalty in penalties)
        if settings.penalty is Penalty.REPETITION
        else (),
        penalty=settings.penalty,
        advantages=tuple(None if np.isnan(advantage) else float(advantage) for advantage in choice.advantages),
        selections=_selections(rewards, choice),
        is_right=is_right,
        is_success=is_right,
        token_advantages=_token_advantages(traces, rewards, choice, settings),
    )


def _token_advantages(
    traces: Sequence[Trace], rewards: Sequence[float | None], choice: Choice, settings: RocSettings
) -> tuple[tuple[tuple[int, float | None], ...], ...]:
    if settings.tree_advantage is None:
        return ()
    paths, is_trained = paths_of(traces), ~np.isnan(choice.advantages)
    of_segment = TREE_ADVANTAGES.load(settings.tree_advantage)(
        [path for path, is_kept in zip(paths, is_trained, strict=True) if is_kept],
        np.array([reward for reward, is_kept in zip(rewards, is_trained, strict=True) if is_kept], dtype=np.float64),
        ADVANTAGES.load(settings.advantage),
    )
    return token_advantages(paths, is_trained.tolist(), of_segment)


def _penalty(trace: Trace, num_answer_blocks: int, settings: RocSettings) -> TracePenalty:
    penalty = trace_penalty(trace, num_answer_blocks)
    if settings.penalty is not Penalty.REPETITION:
        return penalty
    return replace(penalty, repetition=repetition_penalty(turn.token_ids for turn in trace.turns))


def _scored_reward(trace: Trace, settings: RocSettings) -> float | None:
    if not trace.outcome.is_scored or (settings.overlong_filtering and trace.outcome is Outcome.TRUNCATED):
        return None
    if trace.verdict is Verdict.UNDECIDED and trace.outcome is not Outcome.TRUNCATED:
        return None
    return trace.reward


def _selections(rewards: Sequence[float | None], choice: Choice) -> tuple[Selection, ...]:
    dropped = bool(np.isnan(choice.advantages).all())
    chosen = Selection.EQUAL_REWARDS if dropped else Selection.KEPT
    return tuple(
        Selection.UNSCORED if reward is None else chosen if kept else Selection.DOWNSAMPLED
        for reward, kept in zip(rewards, choice.kept, strict=True)
    )
