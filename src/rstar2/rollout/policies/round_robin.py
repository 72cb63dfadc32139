"""`round-robin`: the next rollout to the next engine, whatever they hold; each stays where it was sent."""

from collections.abc import Sequence

from rstar2.rollout.policies.sticky import StickyPolicy


class RoundRobin(StickyPolicy):
    def __init__(self) -> None:
        super().__init__()
        self._next = 0

    def place(self, rollouts: Sequence[str]) -> list[str]:
        placed = []
        for _ in rollouts:
            engine = self.engines[self._next % len(self.engines)]
            self._next += 1
            self.num_inflight[engine] += 1
            placed.append(engine)
        return placed
