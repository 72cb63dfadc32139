"""Which of the sampled rollouts of one problem are kept.

Invariants: of N scored rollouts exactly `min(num_kept, N)` are kept (mode `off`: all N); a rollout without a reward
never is; what is kept of the failures does not depend on any penalty; and the order in which rollouts are given does
not matter: each keeps its chance wherever it stands.
"""

from enum import StrEnum

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rstar2.errors import UserError

MIN_OF_A_CLASS = 2
"""Successes, and failures, that are kept if there are as many: the release's floor, so that a rare class is seen."""

DEFAULT_EPSILON = 0.1
"""Added to a penalty before it is inverted: a clean trace weighs 10, one whose every second call fails 1.67."""


class Mode(StrEnum):
    """How rollouts are chosen."""

    PAPER = "paper"
    """By class, in proportion. Failures uniformly; successes without replacement, weight 1 / (penalty + epsilon)."""
    RELEASE = "release"
    """As `paper`, but successes strictly by penalty, the lowest first; equals are drawn."""
    RANDOM = "random"
    """Uniformly, blind to reward and penalty: the control that costs as many sampled rollouts."""
    OFF = "off"
    """All are kept: plain GRPO."""


def quotas(num_successes: int, num_failures: int, num_kept: int) -> tuple[int, int]:
    """How many successes and how many failures are kept, `min(num_kept, all)` together.

    In proportion; a half goes to the rarer class, and to the successes if neither is. At least `min(2, n)` of a class
    with n members, or `min(1, n)` where `num_kept` is 2 or 3 and cannot hold two of each.
    """
    num_all = num_successes + num_failures
    if num_all <= num_kept:
        return num_successes, num_failures
    quota, remainder = divmod(num_kept * num_successes, num_all)
    if 2 * remainder > num_all or (2 * remainder == num_all and num_successes <= num_failures):
        quota += 1
    floor = min(MIN_OF_A_CLASS, num_kept // 2)
    least = max(min(floor, num_successes), num_kept - num_failures)
    most = min(num_successes, num_kept - min(floor, num_failures))
    quota = min(max(quota, least), most)
    return quota, num_kept - quota


def resample(
    rewards: ArrayLike,
    penalties: ArrayLike,
    *,
    num_kept: int,
    mode: Mode,
    rng: np.random.Generator,
    epsilon: float = DEFAULT_EPSILON,
) -> NDArray[np.bool_]:
    """True for each rollout that is kept. A reward above 0 is a success; NaN means that there is none.

    With faults and undecided verdicts fewer than planned are scored. Then still `num_kept` are kept as long as there
    are that many, so that the group weighs the same in its batch, and all of them if there are fewer.
    Penalties of failures and of rollouts without a reward are not read and may be NaN.
    """
    rewards, penalties = np.asarray(rewards, dtype=np.float64), np.asarray(penalties, dtype=np.float64)
    _check(rewards, penalties, num_kept, epsilon)
    scored = np.flatnonzero(~np.isnan(rewards))
    kept = np.zeros(rewards.shape, dtype=np.bool_)
    if mode is Mode.OFF or len(scored) <= num_kept:
        kept[scored] = True
    elif mode is Mode.RANDOM:
        kept[rng.choice(scored, num_kept, replace=False)] = True
    else:
        successes, failures = np.flatnonzero(rewards > 0), np.flatnonzero(rewards <= 0)
        num_successes_kept, num_failures_kept = quotas(len(successes), len(failures), num_kept)
        # Failures are drawn first: one generator chooses the same ones whatever the successes' penalties and the mode.
        kept[rng.choice(failures, num_failures_kept, replace=False)] = True
        order = _success_order(penalties[successes], mode, rng, epsilon)
        kept[successes[order[:num_successes_kept]]] = True
    return kept


def _success_order(
    penalties: NDArray[np.float64], mode: Mode, rng: np.random.Generator, epsilon: float
) -> NDArray[np.intp]:
    if mode is Mode.RELEASE:
        # List order may be the order of finishing, which would favour the short among equals.
        return np.lexsort((rng.random(len(penalties)), penalties))
    # The order of independent exponential clocks with rates w is that of drawing one by one with weights w and no
    # replacement (Efraimidis and Spirakis, 2006).
    return np.argsort(rng.exponential(size=len(penalties)) * (penalties + epsilon), kind="stable")


def _check(rewards: NDArray[np.float64], penalties: NDArray[np.float64], num_kept: int, epsilon: float) -> None:
    if rewards.ndim != 1 or rewards.shape != penalties.shape:
        raise UserError(f"rewards {rewards.shape} and penalties {penalties.shape}: give one of each for each rollout")
    if num_kept < 1:
        raise UserError(f"num_kept is {num_kept}: keep at least 1 rollout")
    if not epsilon > 0:
        raise UserError(f"epsilon is {epsilon}: it must be above 0, or a clean trace would weigh infinitely much")
    if not np.all(penalties[rewards > 0] >= 0):
        raise UserError("penalties: each success needs one that is 0 or more")
