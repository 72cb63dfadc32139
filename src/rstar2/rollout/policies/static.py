"""`static`: an even split up front, and turns that wait for the longest.

Each engine gets the same number of consecutive rollouts, so problems with all their siblings, as verl's batch mode
chunks a batch. The rollouts of an engine take their turns together: the next turn begins when every one of them has
ended its turn and has its tool's result. Tools are called at once, which is faster than the original, where they too
wait for the end of the turn.
"""

from collections.abc import Sequence

from rstar2.rollout.policies.sticky import StickyPolicy
from rstar2.rollout.scheduler import Decision, EngineLost, Fact, RolloutEnded, RolloutsSubmitted, ToolReturned


class Static(StickyPolicy):
    def __init__(self) -> None:
        super().__init__()
        self._num_unfinished: dict[str, int] = {}
        """The number of rollouts of each engine that have not ended."""
        self._ready: dict[str, dict[str, None]] = {}
        """The rollouts of each engine whose tool has returned, and which wait for the others."""

    def place(self, rollouts: Sequence[str]) -> list[str]:
        placed = [self.engines[index * len(self.engines) // len(rollouts)] for index in range(len(rollouts))]
        for engine in placed:
            self.num_inflight[engine] += 1
        return placed

    def handle(self, fact: Fact) -> Sequence[Decision]:
        match fact:
            case ToolReturned():
                engine = self.engine_of[fact.rollout]
                self._ready.setdefault(engine, {})[fact.rollout] = None
                return self._next_turn(engine)
            case RolloutEnded():
                engine = self.engine_of[fact.rollout]
                super().handle(fact)
                self._ready.get(engine, {}).pop(fact.rollout, None)
                self._num_unfinished[engine] -= 1
                return self._next_turn(engine)
            case RolloutsSubmitted() | EngineLost():
                decisions = super().handle(fact)
                self._recount()
                return [*decisions, *(turn for engine in self.engines for turn in self._next_turn(engine))]
            case _:
                return super().handle(fact)

    def _next_turn(self, engine: str) -> list[Decision]:
        ready = self._ready.get(engine, {})
        if not ready or len(ready) < self._num_unfinished[engine]:
            return []
        del self._ready[engine]
        return [self.resume(rollout) for rollout in ready]

    def _recount(self) -> None:
        self._num_unfinished = dict.fromkeys(self.engines, 0)
        for engine in self.engine_of.values():
            self._num_unfinished[engine] += 1
        ready = [rollout for rollouts in self._ready.values() for rollout in rollouts]
        self._ready = {}
        for rollout in ready:
            self._ready.setdefault(self.engine_of[rollout], {})[rollout] = None
