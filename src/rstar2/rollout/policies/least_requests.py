"""`least-requests`: verl's default. A new rollout goes to the engine with the fewest requests in flight, and its later
turns follow it there.

As in verl's `GlobalRequestLoadBalancer`: a request is in flight from the moment it is sent until its turn ends, so a
rollout at its tool does not count; ties go to the engine that comes first; there is no limit to what is sent.
"""

from collections.abc import Sequence

from rstar2.rollout.policies.sticky import StickyPolicy


class LeastRequests(StickyPolicy):
    def place(self, rollouts: Sequence[str]) -> list[str]:
        placed = []
        for _ in rollouts:
            engine = min(self.engines, key=self.num_inflight.__getitem__)
            self.num_inflight[engine] += 1
            placed.append(engine)
        return placed
