"""Resampling: selects which of the sampled rollouts of one problem are kept.

Invariants: of N scored rollouts exactly `min(num_kept, N)` are kept (`off`: all N); a rollout without a reward never
is. In every selection but `release`, which failures are kept does not depend on any penalty, and the order in which
rollouts are given does not change any rollout's chance.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rstar2.errors import UserError
from rstar2.extensions import SELECTIONS
from rstar2.records.trace import FULL_REWARD

MIN_OF_A_CLASS = 2
"""At least this many successes and this many failures are kept, if there are that many: the release's floor, so that a
rare class is seen."""

DEFAULT_EPSILON = 0.1
"""Added to a penalty before it is inverted: a clean trace weighs 10, one whose every second call fails 1.67."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """The rollouts of one problem that a selection chooses from: more than `num_kept` of them have a reward."""

    rewards: NDArray[np.float64]
    """NaN for a rollout that has none."""
    penalties: NDArray[np.float64]
    num_kept: int
    epsilon: float
    """Added to a penalty before it is inverted."""
    is_success: NDArray[np.bool_]
    """Which rollouts are successes; not read for a rollout without a reward."""

    @property
    def successes(self) -> NDArray[np.intp]:
        return np.flatnonzero(self.is_success & ~np.isnan(self.rewards))

    @property
    def failures(self) -> NDArray[np.intp]:
        return np.flatnonzero(~self.is_success & ~np.isnan(self.rewards))


@dataclass(frozen=True, slots=True)
class SelectionRule:
    """A selection rule. `choose` is called only if more rollouts have a reward than may be kept."""

    choose: Callable[[Candidates, np.random.Generator], NDArray[np.intp]]
    """The indices of the rollouts that are kept."""
    keeps_all: bool = False
    """Whether every rollout that has a reward is kept; `choose` is not called then."""
    reads_failures: bool = False
    """Whether the penalties of failures count, too."""
    balanced_blocks: bool = False
    """Whether answer blocks are counted as the released code counts them (`count_balanced_answer_blocks`)."""


def quotas(num_successes: int, num_failures: int, num_kept: int) -> tuple[int, int]:
    """How many successes and how many failures are kept, `min(num_kept, all)` together.

    Both classes are kept in proportion; a half goes to the rarer class, and to the successes if neither is rarer. At
    least `min(2, n)` of a class with n members, or `min(1, n)` where `num_kept` is 2 or 3 and cannot hold two of each.
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
    """The release's quotas: each class in proportion, a half rounded to the even number, at least `MIN_OF_A_CLASS` of a
    class that has that many. Where the release would fail, because its two numbers do not add up, successes take the
    rest."""
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
    selection: str = "paper",
    rng: np.random.Generator,
    epsilon: float = DEFAULT_EPSILON,
    is_success: ArrayLike | None = None,
) -> NDArray[np.bool_]:
    """Returns True for each rollout that is kept. A reward of NaN means none. A full reward is a success, unless
    `is_success` says which are.

    Faults and undecided verdicts leave fewer rollouts scored than planned. Still `num_kept` are kept if there are that
    many, so that the group weighs the same in its batch, and otherwise all. Penalties of rollouts without a reward are
    not read and may be NaN; those of failures only `release` reads.
    """
    rule: SelectionRule = SELECTIONS.load(selection)
    scores = np.asarray(rewards, dtype=np.float64)
    candidates = Candidates(
        scores,
        np.asarray(penalties, dtype=np.float64),
        num_kept,
        epsilon,
        scores >= FULL_REWARD if is_success is None else np.asarray(is_success, dtype=np.bool_),
    )
    _check(candidates, rule)
    scored = np.flatnonzero(~np.isnan(candidates.rewards))
    kept = np.zeros(candidates.rewards.shape, dtype=np.bool_)
    kept[scored if rule.keeps_all or len(scored) <= num_kept else rule.choose(candidates, rng)] = True
    return kept


def _paper(candidates: Candidates, rng: np.random.Generator) -> NDArray[np.intp]:
    """Keeps both classes in proportion: failures uniformly, successes without replacement, weight 1 / (penalty +
    epsilon)."""
    return _by_class(candidates, candidates.penalties[candidates.successes] + candidates.epsilon, rng)


def _quotas(candidates: Candidates, rng: np.random.Generator) -> NDArray[np.intp]:
    """Keeps both classes in proportion, each uniformly: `paper` without its weights, the control for its class
    balance."""
    return _by_class(candidates, 1.0, rng)


def _by_class(
    candidates: Candidates, inverse_weights: float | NDArray[np.float64], rng: np.random.Generator
) -> NDArray[np.intp]:
    successes, failures = candidates.successes, candidates.failures
    num_successes_kept, num_failures_kept = quotas(len(successes), len(failures), candidates.num_kept)
    # Failures are drawn first: one generator chooses the same ones whatever the successes' penalties and weights.
    kept_failures = rng.choice(failures, num_failures_kept, replace=False)
    # The order of independent exponential clocks with rates w is that of drawing one by one with weights w and no
    # replacement (Efraimidis and Spirakis, 2006).
    order = np.argsort(rng.exponential(size=len(successes)) * inverse_weights, kind="stable")
    return np.concatenate([successes[order[:num_successes_kept]], kept_failures])


def _release(candidates: Candidates, _rng: np.random.Generator) -> NDArray[np.intp]:
    """Does as the released `roc.py`, without random draws: by class, the lowest penalty first, equal ones as given."""
    classes = (candidates.successes, candidates.failures)
    numbers = release_quotas(len(classes[0]), len(classes[1]), candidates.num_kept)
    return np.concatenate(
        [
            members[np.argsort(candidates.penalties[members], kind="stable")[:number]]
            for members, number in zip(classes, numbers, strict=True)
        ]
    )


def _random(candidates: Candidates, rng: np.random.Generator) -> NDArray[np.intp]:
    """Draws uniformly, blind to reward and penalty: the control that costs the same number of sampled rollouts."""
    scored = np.flatnonzero(~np.isnan(candidates.rewards))
    return rng.choice(scored, candidates.num_kept, replace=False)


PAPER = SelectionRule(_paper)
QUOTAS = SelectionRule(_quotas)
RELEASE = SelectionRule(_release, reads_failures=True, balanced_blocks=True)
RANDOM = SelectionRule(_random)
OFF = SelectionRule(_random, keeps_all=True)


def _check(candidates: Candidates, rule: SelectionRule) -> None:
    rewards, penalties = candidates.rewards, candidates.penalties
    if rewards.ndim != 1 or rewards.shape != penalties.shape:
        raise UserError(f"rewards {rewards.shape} and penalties {penalties.shape}: give one of each for each rollout")
    if candidates.num_kept < 1:
        raise UserError(f"num_kept is {candidates.num_kept}: keep at least 1 rollout")
    if not candidates.epsilon > 0:
        raise UserError(
            f"epsilon is {candidates.epsilon}: it must be above 0, or a clean trace would weigh infinitely much"
        )
    if candidates.is_success.shape != rewards.shape:
        raise UserError(f"is_success {candidates.is_success.shape}: give one for each of {rewards.shape} rewards")
    if not np.all(penalties[candidates.successes] >= 0):
        raise UserError("penalties: each success needs one that is 0 or more")
    if rule.reads_failures and not np.all(penalties[candidates.failures] >= 0):
        raise UserError("penalties: the release chooses failures by penalty too; each needs one that is 0 or more")
