"""The live driver: the scheduler's decisions carried out on real engines.

Whoever runs a rollout asks for tokens through its `Seat`, as if it had an engine of its own. Behind it the turn waits
until the scheduler has decided where it runs, and goes on elsewhere when its engine is lost or it had to make room. The
scheduler never sees a token, the rollout never sees an engine.

Invariant: a rollout's function is called once and ends once, whatever happens to engines. Tokens that came out before
an engine was lost are kept, and the turn continues after them; nothing that a lost engine still says is listened to.
"""

import asyncio
import gc
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Generic, TypeVar

from rstar2.engine import Engine, EngineLoad
from rstar2.errors import InfrastructureError
from rstar2.records import SpanKind, StepRecord
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
from rstar2.rollout.recorder import StepRecorder
from rstar2.rollout.scheduler import Scheduler
from rstar2.rollout.seat import Seat

Result = TypeVar("Result")

REPORT_PERIOD_S = 1.0
"""How often loads and progress are reported: in a second a cache fills by no more than a few hundredths."""
SUBMISSIONS_PER_LIMIT = 16


class Driver(Generic[Result]):
    """Runs rollouts; between `begin_step` and `end_step` it also writes down what engines and rollouts did."""

    def __init__(
        self,
        scheduler: Scheduler,
        clock: Callable[[], float] = time.monotonic,
        report_period_s: float = REPORT_PERIOD_S,
        patience_s: float = 0.0,
        max_concurrent: int | None = None,
    ) -> None:
        """`patience_s`: how long rollouts wait for an engine to join when the last one is lost. `max_concurrent`: how
        many the scheduler is told of at a time; None: of all."""
        self.clock = clock
        self.recorder = StepRecorder(0, time.time(), clock)
        self._scheduler = scheduler
        self._engines: dict[str, Engine] = {}
        self._seats: dict[str, Seat] = {}
        self._errands: set[asyncio.Task[None]] = set()
        self._given_up: set[str] = set()
        """Rollouts whose cache may be gone when they go on."""
        self._max_concurrent = max_concurrent
        self._unsubmitted: deque[RolloutSpec] = deque()
        self._in_flight: set[str] = set()
        """Rollouts that the scheduler was told of, and that have not ended."""
        self._report_period_s = report_period_s
        self._patience_s = patience_s
        self._untold_loss: str | None = None
        """The last engine, when it is lost: schedulers always know of one, so they are told when the next joins."""
        self._deadline: asyncio.TimerHandle | None = None

    def add_engine(self, name: str, engine: Engine, speed: EngineSpeed, num_cache_tokens: int | None = None) -> None:
        """An engine joins, before a run or in the middle of it. `num_cache_tokens` is for engines that cannot say
        themselves what their cache holds, such as a server behind an OpenAI interface."""
        load = engine.load()
        self._engines[name] = engine
        self.recorder.engine_joined(name, load)
        num_tokens = load.num_blocks * load.block_size if num_cache_tokens is None else num_cache_tokens
        self.tell(EngineJoined(self.clock(), name, num_tokens, speed))
        self._tell_last_loss()

    def lose_engine(self, name: str) -> None:
        """An engine is gone; what it ran goes on elsewhere. Saying it twice changes nothing."""
        if name not in self._engines:
            return
        del self._engines[name]
        self.recorder.engine_lost(name)
        if self._engines:
            self.tell(EngineLost(self.clock(), name))
            return
        self._untold_loss = name
        if self._patience_s:
            self._deadline = asyncio.get_running_loop().call_later(self._patience_s, self._give_up)
        else:
            self._give_up()

    def _give_up(self) -> None:
        name, self._untold_loss = self._untold_loss, None
        for seat in self._seats.values():
            seat.fail(InfrastructureError(f"engine {name} was the last one, and it is lost"))

    def _tell_last_loss(self) -> None:
        name, self._untold_loss = self._untold_loss, None
        if name is not None:
            assert self._deadline is not None
            self._deadline.cancel()
            self.tell(EngineLost(self.clock(), name))

    @property
    def _is_scheduled(self) -> bool:
        """Whether there is an engine, or one is waited for."""
        return bool(self._engines) or self._untold_loss is not None

    def engine(self, name: str) -> Engine | None:
        return self._engines.get(name)

    def begin_step(self, step: int) -> None:
        """Record from here on. Any number of `run`s may follow, one after the other or side by side."""
        loads = self._loads()
        self.recorder = StepRecorder(step, time.time(), self.clock)
        for name, load in loads.items():
            self.recorder.engine_joined(name, load)

    def end_step(self) -> StepRecord:
        """What happened since `begin_step`; for `RunDirectory.write_step_record`."""
        self.recorder.sample(self._loads())
        return self.recorder.record()

    async def run(
        self, specs: Sequence[RolloutSpec], rollout: Callable[[Seat], Awaitable[Result]]
    ) -> list[Result | BaseException]:
        """Run `rollout` once for each spec. The results are in the order of `specs`; or what was raised instead."""
        if not self._is_scheduled:
            raise InfrastructureError("there is no engine to run rollouts on: none was added, or all are lost")
        # What was there before will still be there after: the garbage collector need not look at it meanwhile.
        gc.freeze()
        self._seats |= {spec.rollout: Seat(self, spec) for spec in specs}
        reporter = asyncio.create_task(self._report())
        try:
            tasks = [asyncio.create_task(self._run_one(self._seats[spec.rollout], rollout)) for spec in specs]
            self._unsubmitted += specs
            self._submit_more()
            return await asyncio.gather(*tasks, return_exceptions=True)
        except asyncio.CancelledError:
            self._unsubmitted.clear()
            raise
        finally:
            gc.unfreeze()
            reporter.cancel()
            await asyncio.gather(reporter, *self._errands, return_exceptions=True)

    def _submit_more(self) -> None:
        """As many as may be in flight; where their number is limited some at a time, because each time costs a look at
        all of them."""
        num_free = len(self._unsubmitted)
        if self._max_concurrent is not None:
            num_free = min(num_free, self._max_concurrent - len(self._in_flight))
            if self._in_flight and num_free < self._max_concurrent // SUBMISSIONS_PER_LIMIT:
                return
        if num_free > 0 and self._is_scheduled:
            specs = tuple(self._unsubmitted.popleft() for _ in range(num_free))
            self._in_flight |= {spec.rollout for spec in specs}
            self.tell(RolloutsSubmitted(self.clock(), specs))

    async def _run_one(self, seat: Seat, rollout: Callable[[Seat], Awaitable[Result]]) -> Result:
        try:
            await seat.placed()
            return await self._run_placed(seat, rollout)
        finally:
            self._in_flight.discard(seat.spec.rollout)
            self._submit_more()

    async def _run_placed(self, seat: Seat, rollout: Callable[[Seat], Awaitable[Result]]) -> Result:
        self.recorder.enter(seat.spec.rollout, SpanKind.TOOL)
        try:
            return await rollout(seat)
        finally:
            seat.leave()
            self.recorder.end(seat.spec.rollout)
            self._given_up.discard(seat.spec.rollout)
            del self._seats[seat.spec.rollout]
            if self._is_scheduled:
                self._release(seat.spec.rollout, seat.engine)
                self.tell(RolloutEnded(self.clock(), seat.spec.rollout, seat.num_tokens))

    def tell(self, fact: Fact) -> None:
        """Tell the scheduler, and do what it says."""
        for decision in self._scheduler.handle(fact):
            self._carry_out(decision)

    def _carry_out(self, decision: Decision) -> None:
        counts = self.recorder.counts
        match decision:
            case Start():
                counts.num_starts += 1
                self._seats[decision.rollout].place(decision.engine)
            case Resume():
                if decision.rollout in self._given_up:
                    self._count_moved_tokens(decision.rollout)
                self._seats[decision.rollout].place(decision.engine)
            case Move():
                counts.num_moves += 1
                self._count_moved_tokens(decision.rollout)
                self._release(decision.rollout, decision.source)
                self._seats[decision.rollout].place(decision.target)
            case Evict():
                counts.num_evictions += 1
                self._given_up.add(decision.rollout)
                self._release(decision.rollout, decision.engine)
            case Cancel():
                counts.num_cancels += 1
                self._given_up.add(decision.rollout)
                if (engine := self._engines.get(decision.engine)) is not None:
                    self._run_errand(decision.engine, engine.cancel(decision.rollout))
            case KeepWaiting():
                pass

    def _count_moved_tokens(self, rollout: str) -> None:
        self._given_up.discard(rollout)
        self.recorder.counts.num_moved_tokens += self._seats[rollout].num_tokens

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
        while True:
            await asyncio.sleep(self._report_period_s)
            loads = self._loads()
            self.recorder.sample(loads)
            if self._scheduler.wants_reports:
                self._tell_progress(loads)

    def _tell_progress(self, loads: Mapping[str, EngineLoad]) -> None:
        now_s = self.clock()
        for seat in list(self._seats.values()):
            if seat.is_generating:
                self.tell(TokensGrown(now_s, seat.spec.rollout, seat.num_tokens))
        for name, load in loads.items():
            self.tell(EngineReported(now_s, name, load))

    def _loads(self) -> dict[str, EngineLoad]:
        """Of the engines that can still be asked."""
        loads: dict[str, EngineLoad] = {}
        for name, engine in list(self._engines.items()):
            try:
                loads[name] = engine.load()
            except InfrastructureError:
                self.lose_engine(name)
        return loads
