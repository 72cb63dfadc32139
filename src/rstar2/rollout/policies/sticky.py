"""`round-robin` and `least-requests`, and what all policies without admission share: every rollout is sent to an engine
at once, and stays there.

The engine queues what does not fit. The rollouts of a lost engine are placed again by the same rule; a rollout that was
at its tool then moves when the tool returns.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from rstar2.errors import InfrastructureError
from rstar2.rollout.scheduler import (
    Decision,
    EngineJoined,
    EngineLost,
    Fact,
    Move,
    Resume,
    RolloutEnded,
    RolloutsSubmitted,
    Start,
    ToolReturned,
    TurnEnded,
)


class StickyPolicy(ABC):
    wants_reports = False

    def __init__(self) -> None:
        self.engines: list[str] = []
        self.num_inflight: dict[str, int] = {}
        """Turns that were sent to each engine and have not ended."""
        self.engine_of: dict[str, str] = {}
        self._generating: dict[str, None] = {}
        self._lost_from: dict[str, str] = {}

    @abstractmethod
    def place(self, rollouts: Sequence[str]) -> Sequence[str]:
        """Returns an engine for each of these rollouts, and counts it in `num_inflight`."""

    def handle(self, fact: Fact) -> Sequence[Decision]:
        match fact:
            case RolloutsSubmitted():
                return self._start([spec.rollout for spec in fact.rollouts])
            case TurnEnded():
                self._end_turn(fact.rollout)
            case ToolReturned():
                return (self.resume(fact.rollout),)
            case RolloutEnded():
                if fact.rollout in self._generating:
                    self._end_turn(fact.rollout)
                self._lost_from.pop(fact.rollout, None)
                del self.engine_of[fact.rollout]
            case EngineJoined():
                self.engines.append(fact.engine)
                self.num_inflight[fact.engine] = 0
            case EngineLost():
                return self._place_again(fact.engine)
            case _:
                pass
        return ()

    def _end_turn(self, rollout: str) -> None:
        del self._generating[rollout]
        self.num_inflight[self.engine_of[rollout]] -= 1

    def resume(self, rollout: str) -> Decision:
        engine = self.engine_of[rollout]
        self._generating[rollout] = None
        self.num_inflight[engine] += 1
        source = self._lost_from.pop(rollout, None)
        return Resume(rollout, engine) if source is None else Move(rollout, source, engine)

    def _start(self, rollouts: Sequence[str]) -> list[Decision]:
        decisions: list[Decision] = []
        for rollout, engine in zip(rollouts, self._placed(rollouts), strict=True):
            self.engine_of[rollout] = engine
            self._generating[rollout] = None
            decisions.append(Start(rollout, engine))
        return decisions

    def _place_again(self, lost: str) -> list[Decision]:
        self.engines.remove(lost)
        del self.num_inflight[lost]
        stranded = [rollout for rollout, engine in self.engine_of.items() if engine == lost]
        at_tool = [rollout for rollout in stranded if rollout not in self._generating]
        interrupted = [rollout for rollout in stranded if rollout in self._generating]
        decisions: list[Decision] = []
        for rollout, engine in zip(interrupted, self._placed(interrupted), strict=True):
            self.engine_of[rollout] = engine
            decisions.append(Move(rollout, lost, engine))
        for rollout, engine in zip(at_tool, self._placed(at_tool), strict=True):
            self.engine_of[rollout] = engine
            self.num_inflight[engine] -= 1
            self._lost_from.setdefault(rollout, lost)
        return decisions

    def _placed(self, rollouts: Sequence[str]) -> Sequence[str]:
        if not self.engines:
            raise InfrastructureError(f"no engine is left for {len(rollouts)} rollouts")
        return self.place(rollouts)


class RoundRobin(StickyPolicy):
    """The next rollout goes to the next engine, whatever they hold."""

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


class LeastRequests(StickyPolicy):
    """verl's default: a new rollout goes to the engine with the fewest requests in flight.

    As in verl's `GlobalRequestLoadBalancer`: a request is in flight from the moment it is sent until its turn ends, so
    a rollout at its tool does not count; ties go to the engine that comes first; there is no limit to what is sent.
    """

    def place(self, rollouts: Sequence[str]) -> list[str]:
        placed = []
        for _ in rollouts:
            engine = min(self.engines, key=self.num_inflight.__getitem__)
            self.num_inflight[engine] += 1
            placed.append(engine)
        return placed
