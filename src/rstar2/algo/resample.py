"""Which of the sampled rollouts of one problem are kept.

Invariants: of N scored rollouts exactly `min(num_kept, N)` are kept (mode `off`: all N); a rollout without a reward
never is. In every mode but `release`, what is kept of the failures does not depend on any penalty, and the order in
which rollouts are given does not matter: each keeps its chance wherever it stands.
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
    QUOTAS = "quotas"
    """By class, in proportion, each class uniformly: `paper` without its weights, the control for its class balance."""
    RELEASE = "release"
    """As the released `roc.py`, without a draw: by class, the lowest penalty first, equals in the order given."""
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


def release_quotas(num_successes: int, num_failures: int, num_kept: int) -> tuple[int, int]:
    """The release's: each class in proportion, a half rounded to the even number, at least `MIN_OF_A_CLASS` of a class
    that has as many. Where the release would fail, because its two numbers do not add up, successes take the rest."""
    num_all = num_successes + num_failures
    if num_all <= num_kept:
        return num_successes, num_failures
    floor = min(MIN_OF_A_CLASS, num_kept // 2)
    least_successes, least_failures = min(floor, num_successes), min(floor, num_failures)
    kept_successes, kept_failures = (round(num * num_kept / num_all) for num in (num_successes, num_failures))
    if kept_failures <= least_failures:
        kept_successes, kept_failures = num_kept - least_failures, least_failures
    if kept_successes <= least_successes:
        return least_successes, num_kept - least_successes
    return num_kept - kept_failures, kept_failures


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
    Penalties of rollouts without a reward are not read and may be NaN; those of failures only `release` reads.
    """
    rewards, penalties = np.asarray(rewards, dtype=np.float64), np.asarray(penalties, dtype=np.float64)
    _check(rewards, penalties, num_kept, epsilon, mode)
    scored = np.flatnonzero(~np.isnan(rewards))
    kept = np.zeros(rewards.shape, dtype=np.bool_)
    if mode is Mode.OFF or len(scored) <= num_kept:
        kept[scored] = True
    elif mode is Mode.RANDOM:
        kept[rng.choice(scored, num_kept, replace=False)] = True
    else:
        successes, failures = np.flatnonzero(rewards > 0), np.flatnonzero(rewards <= 0)
        if mode is Mode.RELEASE:
            for members, quota in zip(
                (successes, failures), release_quotas(len(successes), len(failures), num_kept), strict=True
            ):
                kept[members[np.argsort(penalties[members], kind="stable")[:quota]]] = True
            return kept
        num_successes_kept, num_failures_kept = quotas(len(successes), len(failures), num_kept)
        # Failures are drawn first: one generator chooses the same ones whatever the successes' penalties and the mode.
        kept[rng.choice(failures, num_failures_kept, replace=False)] = True
        inverse_weights = penalties[successes] + epsilon if mode is Mode.PAPER else 1.0
        # The order of independent exponential clocks with rates w is that of drawing one by one with weights w and no
        # replacement (Efraimidis and Spirakis, 2006).
        order = np.argsort(rng.exponential(size=len(successes)) * inverse_weights, kind="stable")
        kept[successes[order[:num_successes_kept]]] = True
    return kept


def _check(
    rewards: NDArray[np.float64], penalties: NDArray[np.float64], num_kept: int, epsilon: float, mode: Mode
) -> None:
    if rewards.ndim != 1 or rewards.shape != penalties.shape:
        raise UserError(f"rewards {rewards.shape} and penalties {penalties.shape}: give one of each for each rollout")
    if num_kept < 1:
        raise UserError(f"num_kept is {num_kept}: keep at least 1 rollout")
    if not epsilon > 0:
        raise UserError(f"epsilon is {epsilon}: it must be above 0, or a clean trace would weigh infinitely much")
    if not np.all(penalties[rewards > 0] >= 0):
        raise UserError("penalties: each success needs one that is 0 or more")
    if mode is Mode.RELEASE and not np.all(penalties[rewards <= 0] >= 0):
        raise UserError("penalties: the release chooses failures by penalty too; each needs one that is 0 or more")
