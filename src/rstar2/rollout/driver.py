"""The live driver: the scheduler's decisions carried out on real engines.

Whoever runs a rollout asks for tokens through its `PlacedRollout`, as if it had an engine of its own. Behind it the
turn waits until the scheduler has decided where it runs, and goes on elsewhere when its engine is lost or it had to
make room. The scheduler never sees a token, the rollout never sees an engine.

Invariant: a rollout's function is called once and ends once, whatever happens to engines. Tokens that came out before
an engine was lost are kept, and the turn continues after them; nothing that a lost engine still says is listened to.
When `run` returns or is cancelled, scheduler and engines hold nothing of its rollouts any more, wherever each of them
was.
"""

import asyncio
import gc
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, Generic, TypeVar

from rstar2.engine import Engine, EngineLoad
from rstar2.errors import InfrastructureError, UserError
from rstar2.records import SpanKind, StepRecord
from rstar2.rollout.placed_rollout import PlacedRollout
from rstar2.rollout.recorder import StepRecorder
from rstar2.rollout.scheduler import (
    Cancel,
    Decision,
    EngineJoined,
    EngineLost,
    EngineReported,
    EngineSpeed,
    Evict,
    Fact,
    KeepWaiting,
    Move,
    Resume,
    RolloutEnded,
    RolloutSpec,
    RolloutsSubmitted,
    Scheduler,
    Start,
    TokensGrown,
)

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
        self._seats: dict[str, PlacedRollout] = {}
        self._errands: set[asyncio.Task[None]] = set()
        self._given_up: set[str] = set()
        """Rollouts whose cache may be gone when they go on."""
        self._max_concurrent = max_concurrent
        self._unsubmitted: OrderedDict[str, RolloutSpec] = OrderedDict()
        self._in_flight: set[str] = set()
        """Rollouts that the scheduler was told of, and that have not ended."""
        self._report_period_s = report_period_s
        self._patience_s = patience_s
        self._untold_loss: str | None = None
        """The last engine, when it is lost: schedulers always know of one, so they are told when the next joins."""
        self._giving_up: asyncio.TimerHandle | None = None
        """While the next is waited for."""

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
            self._giving_up = asyncio.get_running_loop().call_later(self._patience_s, self._give_up)
        else:
            self._give_up()

    def _give_up(self) -> None:
        self._giving_up = None
        for seat in self._seats.values():
            seat.fail(InfrastructureError(f"engine {self._untold_loss} was the last one, and it is lost"))

    def _tell_last_loss(self) -> None:
        if self._giving_up is not None:
            self._giving_up.cancel()
            self._giving_up = None
        name, self._untold_loss = self._untold_loss, None
        if name is not None:
            self.tell(EngineLost(self.clock(), name))

    @property
    def _is_scheduled(self) -> bool:
        """Whether there is an engine, or one is waited for."""
        return bool(self._engines) or self._giving_up is not None

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
        self, specs: Sequence[RolloutSpec], rollout: Callable[[PlacedRollout], Awaitable[Result]]
    ) -> list[Result | BaseException]:
        """Run `rollout` once for each spec. The results are in the order of `specs`; or what was raised instead."""
        if not self._is_scheduled:
            raise InfrastructureError("there is no engine to run rollouts on: none was added, or all are lost")
        seats = {spec.rollout: PlacedRollout(self, spec) for spec in specs}
        assert len(seats) == len(specs) and not seats.keys() & self._seats.keys(), "a rollout's id is its own"
        # What was there before will still be there after: the garbage collector need not look at it meanwhile.
        gc.freeze()
        self._seats |= seats
        reporter = asyncio.create_task(self._report())
        tasks = [asyncio.create_task(self._run_one(seat, rollout)) for seat in seats.values()]
        try:
            self._unsubmitted |= {spec.rollout: spec for spec in specs}
            self._submit_more()
            if tasks:
                await asyncio.wait(tasks)
            return await asyncio.gather(*tasks, return_exceptions=True)
        except BaseException:
            await self._abandon(seats.values(), tasks)
            raise
        finally:
            gc.unfreeze()
            reporter.cancel()
            await asyncio.gather(reporter, *self._errands, return_exceptions=True)

    async def _abandon(self, seats: Collection[PlacedRollout], tasks: Sequence[asyncio.Task[Result]]) -> None:
        """Those that wait go first, so that none of them is started in place of the others."""
        for seat in seats:
            self._unsubmitted.pop(seat.spec.rollout, None)
        for seat in seats:
            if not seat.has_been_placed:
                self._leave(seat, was_abandoned=True)
        for task in tasks:
            task.cancel()
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            for seat in seats:  # a task that is cancelled before it has begun never reports its end
                self._leave(seat, was_abandoned=True)

    def _submit_more(self) -> None:
        """As many as may be in flight; where their number is limited some at a time, because each time costs a look at
        all of them."""
        num_free = len(self._unsubmitted)
        if self._max_concurrent is not None:
            num_free = min(num_free, self._max_concurrent - len(self._in_flight))
            if self._in_flight and num_free < self._max_concurrent // SUBMISSIONS_PER_LIMIT:
                return
        if num_free > 0 and self._is_scheduled:
            specs = dict(self._unsubmitted.popitem(last=False) for _ in range(num_free))
            try:
                self.tell(RolloutsSubmitted(self.clock(), tuple(specs.values())))
            except UserError as error:
                for rollout in specs:
                    self._seats[rollout].fail(error)
            else:
                self._in_flight |= specs.keys()

    async def _run_one(self, seat: PlacedRollout, rollout: Callable[[PlacedRollout], Awaitable[Result]]) -> Result:
        was_abandoned = True
        try:
            await seat.placed()
            self.recorder.enter(seat.spec.rollout, SpanKind.TOOL)
            result = await rollout(seat)
            was_abandoned = False
            return result
        finally:
            self._leave(seat, was_abandoned=was_abandoned)

    def _leave(self, seat: PlacedRollout, *, was_abandoned: bool) -> None:
        """The rollout is over, wherever it was. Saying it twice changes nothing."""
        rollout = seat.spec.rollout
        if self._seats.get(rollout) is not seat:
            return
        del self._seats[rollout]
        self.recorder.end(rollout)
        self._given_up.discard(rollout)
        self._unsubmitted.pop(rollout, None)
        if rollout in self._in_flight:
            self._in_flight.remove(rollout)
            self._release(rollout, seat.engine, has_open_turn=seat.has_open_turn)
            self.tell(RolloutEnded(self.clock(), rollout, seat.num_tokens, was_abandoned))
        self._submit_more()

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

    def _release(self, rollout: str, name: str | None, *, has_open_turn: bool = False) -> None:
        engine = self._engines.get(name) if name is not None else None
        if engine is not None and name is not None:
            self._run_errand(name, _end_session(engine, rollout) if has_open_turn else engine.release(rollout))

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


async def _end_session(engine: Engine, session: str) -> None:
    """Of a rollout that failed in the middle of a turn: what reads the turn is not closed before it is collected."""
    await engine.cancel(session)
    await engine.release(session)
