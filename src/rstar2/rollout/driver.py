"""The live driver: the scheduler's decisions carried out on real engines.

Whoever runs a rollout asks for tokens through its `Seat`, as if it had an engine of its own. Behind it the turn waits
until the scheduler has decided where it runs, and goes on elsewhere when its engine is lost or it had to make room. The
scheduler never sees a token, the rollout never sees an engine.

Invariant: a rollout's function is called once and ends once, whatever happens to engines. Tokens that came out before
an engine was lost are kept, and the turn continues after them; nothing that a lost engine still says is listened to.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from rstar2.engine import Engine
from rstar2.errors import InfrastructureError
from rstar2.rollout.decisions import Cancel, Decision, Evict, KeepWaiting, Move, Resume, Start
from rstar2.rollout.facts import (
    EngineJoined,
    EngineLost,
    EngineReported,
    EngineSpeed,
    Fact,
    RolloutEnded,
    RolloutSpec,
    RolloutsSubmitted,
    TokensGrown,
)
from rstar2.rollout.scheduler import Scheduler
from rstar2.rollout.seat import Seat

Result = TypeVar("Result")

REPORT_PERIOD_S = 1.0
"""How often loads and progress are reported: in a second a cache fills by no more than a few hundredths."""


@dataclass(slots=True)
class DriverStats:
    """What happened so far."""

    num_starts: int = 0
    num_moves: int = 0
    num_cancels: int = 0
    num_evictions: int = 0
    num_engines_lost: int = 0
    queued_s: float = 0.0
    """Of all rollouts together: how long they wanted to run and had no place."""


class Driver(Generic[Result]):
    def __init__(self, scheduler: Scheduler, clock: Callable[[], float] = time.monotonic) -> None:
        self.stats = DriverStats()
        self.clock = clock
        self._scheduler = scheduler
        self._engines: dict[str, Engine] = {}
        self._seats: dict[str, Seat] = {}
        self._errands: set[asyncio.Task[None]] = set()

    def add_engine(self, name: str, engine: Engine, speed: EngineSpeed) -> None:
        """An engine joins, before a run or in the middle of it."""
        self._engines[name] = engine
        load = engine.load()
        self.tell(EngineJoined(self.clock(), name, load.num_blocks * load.block_size, speed))

    def lose_engine(self, name: str) -> None:
        """An engine is gone; what it ran goes on elsewhere. Saying it twice changes nothing."""
        if name not in self._engines:
            return
        del self._engines[name]
        self.stats.num_engines_lost += 1
        if self._engines:
            self.tell(EngineLost(self.clock(), name))
            return
        for seat in self._seats.values():
            seat.fail(InfrastructureError(f"engine {name} was the last one, and it is lost"))

    def engine(self, name: str) -> Engine | None:
        return self._engines.get(name)

    async def run(
        self, specs: Sequence[RolloutSpec], rollout: Callable[[Seat], Awaitable[Result]]
    ) -> list[Result | BaseException]:
        """Run `rollout` once for each spec. The results are in the order of `specs`; or what was raised instead."""
        self._seats |= {spec.rollout: Seat(self, spec) for spec in specs}
        reporter = asyncio.create_task(self._report())
        try:
            tasks = [asyncio.create_task(self._run_one(self._seats[spec.rollout], rollout)) for spec in specs]
            self.tell(RolloutsSubmitted(self.clock(), tuple(specs)))
            return await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            reporter.cancel()
            await asyncio.gather(reporter, *self._errands, return_exceptions=True)

    async def _run_one(self, seat: Seat, rollout: Callable[[Seat], Awaitable[Result]]) -> Result:
        await seat.placed()
        try:
            return await rollout(seat)
        finally:
            seat.leave()
            self.stats.queued_s += seat.queued_s
            del self._seats[seat.spec.rollout]
            if self._engines:
                self._release(seat.spec.rollout, seat.engine)
                self.tell(RolloutEnded(self.clock(), seat.spec.rollout, seat.num_tokens))

    def tell(self, fact: Fact) -> None:
        """Tell the scheduler, and do what it says."""
        for decision in self._scheduler.handle(fact):
            self._carry_out(decision)

    def _carry_out(self, decision: Decision) -> None:
        match decision:
            case Start():
                self.stats.num_starts += 1
                self._seats[decision.rollout].place(decision.engine)
            case Resume():
                self._seats[decision.rollout].place(decision.engine)
            case Move():
                self.stats.num_moves += 1
                self._release(decision.rollout, decision.source)
                self._seats[decision.rollout].place(decision.target)
            case Evict():
                self.stats.num_evictions += 1
                self._release(decision.rollout, decision.engine)
            case Cancel():
                self.stats.num_cancels += 1
                self._run_errand(decision.engine, self._engines[decision.engine].cancel(decision.rollout))
            case KeepWaiting():
                pass

    def _release(self, rollout: str, name: str | None) -> None:
        engine = self._engines.get(name) if name is not None else None
        if engine is not None and name is not None:
            self._run_errand(name, engine.release(rollout))

    def _run_errand(self, name: str, errand: Coroutine[Any, Any, None]) -> None:
        """Ask something of an engine without waiting for it."""

        async def run() -> None:
            try:
                await errand
            except InfrastructureError:
                self.lose_engine(name)

        task = asyncio.create_task(run())
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    async def _report(self) -> None:
        while self._scheduler.wants_reports:
            await asyncio.sleep(REPORT_PERIOD_S)
            now_s = self.clock()
            for seat in list(self._seats.values()):
                if seat.is_generating:
                    self.tell(TokensGrown(now_s, seat.spec.rollout, seat.num_tokens))
            for name, engine in list(self._engines.items()):
                try:
                    load = engine.load()
                except InfrastructureError:
                    self.lose_engine(name)
                else:
                    self.tell(EngineReported(now_s, name, load))
