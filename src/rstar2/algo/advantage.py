"""Advantages: how much better than the group a rollout was; one value for all of its tokens.

`(r - mean) / std` over the kept rollouts, where std is the sample's (divided by n - 1), as in the release and in TRL.
No epsilon is added to it: it is 0 only for equal rewards, and those have the advantage 0 by definition.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray


def rewards_are_equal(rewards: ArrayLike) -> bool:
    """True if the rewards cannot tell one rollout from another, so that the group teaches nothing."""
    values = np.asarray(rewards, dtype=np.float64)
    return bool(values.size == 0 or np.all(values == values[0]))


def group_advantages(rewards: ArrayLike) -> NDArray[np.float64]:
    """The advantage of each rollout among these, which are the kept ones of one problem."""
    values = np.asarray(rewards, dtype=np.float64)
    if rewards_are_equal(values):
        return np.zeros_like(values)
    deviations = values - values.mean()
    return np.asarray(deviations / values.std(ddof=1), dtype=np.float64)
