"""How the chance that a rollout ends depends on the number of its turn, beyond what its length says."""

import numpy as np
import numpy.typing as npt

PRIOR_WEIGHT = 64.0
"""How many endings "the turn does not matter" counts for: turn numbers are few, and evidence on each is plentiful."""


class TurnRates:
    """For each turn number: endings seen over the endings that lengths alone predict.

    Running turns are counted too, up to their current length; without them every rate would be too high.
    """

    def __init__(self) -> None:
        self._ended = np.zeros(1)
        self._expected = np.zeros(1)
        self._rates = np.ones(1)

    def count(self, turn: int, expected: float, *, has_ended: bool) -> None:
        """A turn of this number is over."""
        self._extend_to(turn)
        self._ended[turn] += has_ended
        self._expected[turn] += expected

    def learn(self, running_turns: npt.NDArray[np.int64], expected: npt.NDArray[np.float64]) -> None:
        """Update the rates, given how many endings were expected of the running turns."""
        self._extend_to(int(running_turns.max(initial=0)))
        running = np.bincount(running_turns, expected, len(self._ended))
        self._rates = (self._ended + PRIOR_WEIGHT) / (self._expected + running + PRIOR_WEIGHT)

    def rate(self, turn: int) -> float:
        return float(self._rates[turn]) if turn < len(self._rates) else 1.0

    def rates(self, turns: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        return np.asarray(self._rates[turns])

    def _extend_to(self, turn: int) -> None:
        num_more = turn + 1 - len(self._ended)
        if num_more > 0:
            self._ended = np.append(self._ended, np.zeros(num_more))
            self._expected = np.append(self._expected, np.zeros(num_more))
