"""The live driver: the scheduler's decisions carried out on real engines.

A rollout asks for tokens through its `PlacedRollout`, as if it had its own engine. Behind it the turn waits until the
scheduler has decided where it runs, and continues elsewhere when its engine is lost or the turn was preempted. The
scheduler never sees a token, the rollout never sees an engine.

Invariant: a rollout's function is called once and ends once, whatever happens to engines. Tokens that arrived before an
engine was lost are kept, and the turn continues after them; later output of a lost engine is ignored. When `run`
returns or is cancelled, scheduler and engines hold nothing of its rollouts any more but what they have learnt: lengths,
and for branches where rollouts ended.
"""

import asyncio
import gc
import math
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
"""How often loads and progress are reported: in a second a cache fills by a few percent at most."""
SUBMISSIONS_PER_LIMIT = 16


class Driver(Generic[Result]):
    """Runs rollouts; between `begin_step` and `end_step` it also records what engines and rollouts did."""

    def __init__(
        self,
        scheduler: Scheduler,
        clock: Callable[[], float] = time.monotonic,
        report_period_s: float = REPORT_PERIOD_S,
        engine_timeout_s: float = 0.0,
        max_concurrent: int | None = None,
    ) -> None:
        """`engine_timeout_s`: how long rollouts wait for an engine to join when the last one is lost, or the last that
        is large enough for them. `max_concurrent`: how many rollouts are submitted to the scheduler at a time; all if
        None."""
        self.clock = clock
        self.recorder = StepRecorder(0, time.time(), clock)
        self._scheduler = scheduler
        self._engines: dict[str, Engine] = {}
        self._cache_tokens: dict[str, float] = {}
        """How many tokens each engine's cache holds; infinity where that is not known."""
        self._handles: dict[str, PlacedRollout] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._evicted: set[str] = set()
        """Rollouts that were evicted or cancelled: their cache may be lost when they continue."""
        self._max_concurrent = max_concurrent
        self._unsubmitted: OrderedDict[str, RolloutSpec] = OrderedDict()
        self._in_flight: set[str] = set()
        """Rollouts that were submitted to the scheduler and have not ended."""
        self._report_period_s = report_period_s
        self._reporter: asyncio.Task[None] | None = None
        self._num_runs = 0
        """How many calls of `run` are in progress; one reporter serves them all."""
        self._engine_timeout_s = engine_timeout_s
        self._last_lost: str | None = None
        """The name of the last engine, if that is lost. A scheduler must always have an engine, so it gets `EngineLost`
        only when the next one joins."""
        self._engine_timer: asyncio.TimerHandle | None = None
        """Set while rollouts wait for the next engine."""

    def add_engine(self, name: str, engine: Engine, speed: EngineSpeed, num_cache_tokens: int | None = None) -> None:
        """An engine joins, before a run or in the middle of it. `num_cache_tokens` is for engines that do not report
        the size of their cache, such as a server behind an OpenAI interface."""
        load = engine.load()
        self._engines[name] = engine
        self.recorder.engine_joined(name, load)
        num_tokens = load.num_blocks * load.block_size if num_cache_tokens is None else num_cache_tokens
        self._cache_tokens[name] = num_tokens or math.inf
        self.tell(EngineJoined(self.clock(), name, num_tokens, speed))
        self._report_last_loss()

    def lose_engine(self, name: str) -> None:
        """An engine is lost; its rollouts continue elsewhere. Idempotent."""
        if name not in self._engines:
            return
        del self._engines[name], self._cache_tokens[name]
        self.recorder.engine_lost(name)
        if self._engines:
            self.tell(EngineLost(self.clock(), name))
            if self._engine_timeout_s:
                asyncio.get_running_loop().call_later(self._engine_timeout_s, self._fail_too_large)
            else:
                self._fail_too_large()
            return
        self._last_lost = name
        if self._engine_timeout_s:
            self._engine_timer = asyncio.get_running_loop().call_later(self._engine_timeout_s, self.give_up)
        else:
            self.give_up()

    def give_up(self, reason: str | None = None) -> None:
        """No engine will join any more: all rollouts fail, for this reason."""
        if self._engine_timer is not None:
            self._engine_timer.cancel()
            self._engine_timer = None
        error = InfrastructureError(reason or f"engine {self._last_lost} was the last one, and it is lost")
        for handle in self._handles.values():
            handle.fail(error)

    def _fail_too_large(self) -> None:
        """Rollouts that may outgrow every engine that is left fail: they would wait for one for ever."""
        largest = max(self._cache_tokens.values(), default=math.inf)
        for handle in self._handles.values():
            need = handle.spec.num_prompt_tokens + handle.spec.max_response_tokens
            if need > largest:
                handle.fail(
                    InfrastructureError(
                        f"rollout {handle.spec.rollout} may need {need} tokens of cache; an engine that had them is "
                        f"lost, and those that are left have at most {largest:.0f}"
                    )
                )

    def _report_last_loss(self) -> None:
        if self._engine_timer is not None:
            self._engine_timer.cancel()
            self._engine_timer = None
        name, self._last_lost = self._last_lost, None
        if name is not None:
            self.tell(EngineLost(self.clock(), name))

    @property
    def _is_scheduled(self) -> bool:
        """Whether there is an engine, or rollouts wait for one."""
        return bool(self._engines) or self._engine_timer is not None

    def engine(self, name: str) -> Engine | None:
        return self._engines.get(name)

    def begin_step(self, step: int) -> None:
        """Record from here on. Any number of `run`s may follow, sequentially or concurrently."""
        loads = self._loads()
        self.recorder = StepRecorder(step, time.time(), self.clock)
        for name, load in loads.items():
            self.recorder.engine_joined(name, load)

    def end_step(self) -> StepRecord:
        """The record of the step since `begin_step`, for `RunDirectory.write_step_record`."""
        self.recorder.sample(self._loads())
        return self.recorder.record()

    async def run(
        self, specs: Sequence[RolloutSpec], rollout: Callable[[PlacedRollout], Awaitable[Result]]
    ) -> list[Result | BaseException]:
        """Run `rollout` once for each spec. Results, or the exceptions raised instead, are in the order of `specs`."""
        if not self._is_scheduled:
            raise InfrastructureError("there is no engine to run rollouts on: none was added, or all are lost")
        handles = {spec.rollout: PlacedRollout(self, spec) for spec in specs}
        assert len(handles) == len(specs) and not handles.keys() & self._handles.keys(), "a rollout's id is its own"
        # Objects that exist now outlive this call, so garbage collection need not scan them during it.
        gc.freeze()
        self._handles |= handles
        self._num_runs += 1
        self._reporter = self._reporter or asyncio.create_task(self._report())
        tasks = [asyncio.create_task(self._run_one(handle, rollout)) for handle in handles.values()]
        try:
            self._unsubmitted |= {spec.rollout: spec for spec in specs}
            self._submit_more()
            if tasks:
                await asyncio.wait(tasks)
            return await asyncio.gather(*tasks, return_exceptions=True)
        except BaseException:
            await self._abandon(handles.values(), tasks)
            raise
        finally:
            gc.unfreeze()
            self._num_runs -= 1
            await asyncio.gather(*self._stop_reporter(), *self._background, return_exceptions=True)

    def _stop_reporter(self) -> "list[asyncio.Task[None]]":
        """Cancels the reporter when no `run` is in progress any more, and returns it to be awaited; otherwise
        nothing."""
        if self._num_runs or self._reporter is None:
            return []
        reporter, self._reporter = self._reporter, None
        reporter.cancel()
        return [reporter]

    async def _abandon(self, handles: Collection[PlacedRollout], tasks: Sequence[asyncio.Task[Result]]) -> None:
        """Cancels these rollouts. Those that wait leave first, so that none of them is started in place of a cancelled
        one."""
        for handle in handles:
            self._unsubmitted.pop(handle.spec.rollout, None)
        for handle in handles:
            if not handle.has_been_placed:
                self._leave(handle, was_abandoned=True)
        for task in tasks:
            task.cancel()
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            for handle in handles:  # a task that is cancelled before it has begun never reports its end
                self._leave(handle, was_abandoned=True)

    def _submit_more(self) -> None:
        """Submits as many rollouts as may be in flight. If that number is limited, they are submitted in batches,
        because each submission costs time for all of them."""
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
                    self._handles[rollout].fail(error)
            else:
                self._in_flight |= specs.keys()

    async def _run_one(self, handle: PlacedRollout, rollout: Callable[[PlacedRollout], Awaitable[Result]]) -> Result:
        was_abandoned = True
        try:
            await handle.placed()
            self.recorder.enter(handle.spec.rollout, SpanKind.TOOL)
            result = await rollout(handle)
            was_abandoned = False
            return result
        finally:
            self._leave(handle, was_abandoned=was_abandoned)

    def _leave(self, handle: PlacedRollout, *, was_abandoned: bool) -> None:
        """The rollout is over, in whatever state. Idempotent."""
        rollout = handle.spec.rollout
        if self._handles.get(rollout) is not handle:
            return
        del self._handles[rollout]
        self.recorder.end(rollout)
        self._evicted.discard(rollout)
        self._unsubmitted.pop(rollout, None)
        if rollout in self._in_flight:
            self._in_flight.remove(rollout)
            self._release(rollout, handle.engine, has_open_turn=handle.has_open_turn)
            self.tell(RolloutEnded(self.clock(), rollout, handle.num_tokens, was_abandoned))
        self._submit_more()

    def tell(self, fact: Fact) -> None:
        """Pass a fact to the scheduler, and carry out its decisions."""
        for decision in self._scheduler.handle(fact):
            self._carry_out(decision)

    def _carry_out(self, decision: Decision) -> None:
        counts = self.recorder.counts
        match decision:
            case Start():
                counts.num_starts += 1
                self._handles[decision.rollout].place(decision.engine)
            case Resume():
                if decision.rollout in self._evicted:
                    self._count_moved_tokens(decision.rollout)
                self._handles[decision.rollout].place(decision.engine)
            case Move():
                counts.num_moves += 1
                self._count_moved_tokens(decision.rollout)
                self._release(decision.rollout, decision.source)
                self._handles[decision.rollout].place(decision.target)
            case Evict():
                counts.num_evictions += 1
                self._evicted.add(decision.rollout)
                self._release(decision.rollout, decision.engine)
            case Cancel():
                counts.num_cancels += 1
                self._evicted.add(decision.rollout)
                if (engine := self._engines.get(decision.engine)) is not None:
                    self._run_in_background(decision.engine, engine.cancel(decision.rollout))
            case KeepWaiting():
                pass

    def _count_moved_tokens(self, rollout: str) -> None:
        self._evicted.discard(rollout)
        self.recorder.counts.num_moved_tokens += self._handles[rollout].num_tokens

    def _release(self, rollout: str, name: str | None, *, has_open_turn: bool = False) -> None:
        engine = self._engines.get(name) if name is not None else None
        if engine is not None and name is not None:
            self._run_in_background(name, _end_session(engine, rollout) if has_open_turn else engine.release(rollout))

    def _run_in_background(self, name: str, request: Coroutine[Any, Any, None]) -> None:
        """Run a request to an engine in the background."""

        async def run() -> None:
            try:
                await request
            except InfrastructureError:
                self.lose_engine(name)

        task = asyncio.create_task(run())
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(self._report_period_s)
            loads = self._loads()
            self.recorder.sample(loads)
            if self._scheduler.wants_reports:
                self._report_progress(loads)

    def _report_progress(self, loads: Mapping[str, EngineLoad]) -> None:
        now_s = self.clock()
        for handle in list(self._handles.values()):
            if handle.is_generating:
                self.tell(TokensGrown(now_s, handle.spec.rollout, handle.num_tokens))
        for name, load in loads.items():
            self.tell(EngineReported(now_s, name, load))

    def _loads(self) -> dict[str, EngineLoad]:
        """The loads of the engines that answer."""
        loads: dict[str, EngineLoad] = {}
        for name, engine in list(self._engines.items()):
            try:
                loads[name] = engine.load()
            except InfrastructureError:
                self.lose_engine(name)
        return loads


async def _end_session(engine: Engine, session: str) -> None:
    """Ends the session of a rollout that failed in the middle of a turn: its stream would stay open until garbage
    collection."""
    await engine.cancel(session)
    await engine.release(session)
