"""Advantages: how much better a rollout was than its group; one value for all of its tokens.

An estimator takes the rewards of the kept rollouts of one problem and returns one advantage for each. It is not called
if all rewards are equal: the advantages are 0 then by definition.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rstar2.extensions import ADVANTAGES


def rewards_are_equal(rewards: ArrayLike) -> bool:
    """True if the rewards cannot tell one rollout from another, so that the group teaches nothing."""
    values = np.asarray(rewards, dtype=np.float64)
    return bool(values.size == 0 or np.all(values == values[0]))


def group_advantages(rewards: ArrayLike, estimator: str = "grpo") -> NDArray[np.float64]:
    """The advantage of each of these rollouts, which are the kept ones of one problem."""
    values = np.asarray(rewards, dtype=np.float64)
    if rewards_are_equal(values):
        return np.zeros_like(values)
    return np.asarray(ADVANTAGES.load(estimator)(values), dtype=np.float64)


def grpo(rewards: NDArray[np.float64]) -> NDArray[np.float64]:
    """`(r - mean) / std`, where std is the sample's (divided by n - 1), as in the release and in TRL. No epsilon is
    added to it: it is 0 only for equal rewards."""
    advantages: NDArray[np.float64] = (rewards - rewards.mean()) / rewards.std(ddof=1)
    return advantages


def dr_grpo(rewards: NDArray[np.float64]) -> NDArray[np.float64]:
    """`r - mean`, as in Dr. GRPO: without the division by std, a group in which few rollouts differ does not weigh
    more."""
    advantages: NDArray[np.float64] = rewards - rewards.mean()
    return advantages


def rloo(rewards: NDArray[np.float64]) -> NDArray[np.float64]:
    """`r` minus the mean of the others (REINFORCE leave-one-out): a baseline that does not depend on the rollout."""
    return dr_grpo(rewards) * (len(rewards) / (len(rewards) - 1))
