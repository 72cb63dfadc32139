"""Starts the engines of a run, delivers new weights to them, and replaces those that die or hang.

Invariant: an engine that the driver knows has the weights that were delivered last. A lost engine is replaced by one of
another name, which joins when it has those weights; its rollouts continue elsewhere.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from typing import Any

from ray.util.placement_group import PlacementGroup

from rstar2.cluster.actors import ActorLost, Process, answer, ask_each, kill, start_in_bundle
from rstar2.cluster.engine_actor import EngineActor, EnginePlan
from rstar2.cluster.placement import Placement
from rstar2.cluster.weight_sync import WeightSync
from rstar2.engine.remote import RemoteEngine
from rstar2.engine.remote.wire import Frame
from rstar2.errors import InfrastructureError, UserError
from rstar2.records import Trace
from rstar2.rollout import EngineSpeed
from rstar2.rollout.driver import Driver

START_S = 1800.0
"""Timeout of a start: vLLM compiles and measures for minutes, and a large model is read from a shared disk."""
TURN_S = 600.0
"""Timeout for an engine to sleep or to wake."""
REPLACE_PAUSE_S = 1.0
MAX_FAILURES = 5
"""After this many engines in a row that failed before their first token, a place of the placement group stays empty."""


class EngineFleet:
    def __init__(
        self,
        plan: EnginePlan,
        group: PlacementGroup,
        placement: Placement,
        driver: Driver[Trace],
        weight_sync: WeightSync,
        speed: EngineSpeed,
        report: Callable[[str], None],
        silence_s: float,
        *,
        in_turns: bool,
    ) -> None:
        """`in_turns`: whether engines and ranks share their GPUs."""
        self._plan = plan
        self._group = group
        self._placement = placement
        self._driver = driver
        self._weight_sync = weight_sync
        self._in_turns = in_turns
        self._speed = speed
        self._report = report
        self._silence_s = silence_s
        self._numbers = count()
        self._actors: dict[str, Any] = {}
        self._processes: dict[str, Process] = {}
        self._engines: dict[str, RemoteEngine] = {}
        self._given_up: set[str] = set()
        self._supervisors: list[asyncio.Task[None]] = []
        self._empty_places: set[int] = set()
        self._version: int | None = None
        """The version that was delivered last; None if engines have the weights that they were started with."""
        self._is_changing = asyncio.Lock()
        """A lock that is held while the ranks learn, until all engines have the new weights, and while an engine joins:
        so none joins with weights that differ from the others'."""
        self._may_start = asyncio.Event()
        """Cleared while the ranks have the GPUs, so that no engine is started on one meanwhile."""
        self._may_start.set()
        self._starting: set[str] = set()
        self._none_starts = asyncio.Event()
        self._none_starts.set()

    async def start(self) -> None:
        """Starts all engines; raises the error of one that cannot be started after all retries."""
        joined = [asyncio.get_running_loop().create_future() for _ in self._placement.engine_bundles]
        self._supervisors = [
            asyncio.create_task(self._keep(bundle, future))
            for bundle, future in zip(self._placement.engine_bundles, joined, strict=True)
        ]
        await asyncio.gather(*joined)

    @asynccontextmanager
    async def paused_for_weight_sync(self, version: int) -> AsyncIterator[None]:
        """Inside it the ranks learn, and shared GPUs are theirs alone. After it all engines have the new weights. An
        engine that cannot take them is killed and replaced."""
        if self._in_turns:
            self._may_start.clear()
            await self._none_starts.wait()
        async with self._is_changing:
            if self._in_turns:
                await self._ask_all("sleep")
            yield
            if self._in_turns:
                await self._ask_all("wake_for_weights")
            self._version = version
            self._weight_sync.weights_changed()
            self._give_up(await self._weight_sync.deliver(self._joined(), version))
            if self._in_turns:
                await self._ask_all("wake")
        self._may_start.set()

    async def close(self) -> None:
        for supervisor in self._supervisors:
            supervisor.cancel()
        await asyncio.gather(*self._supervisors, return_exceptions=True)
        for name in list(self._actors):
            await self._drop(name)

    def _joined(self) -> dict[str, Any]:
        """Engines that the driver knows, except those that were given up."""
        return {name: self._actors[name] for name in self._engines if name not in self._given_up}

    async def _ask_all(self, method: str) -> None:
        self._give_up(await ask_each(self._joined(), method, deadline_s=TURN_S))

    def _give_up(self, failures: Mapping[str, str]) -> None:
        """Kills engines that failed. Their supervisor tasks notice the loss and start others, or have done so
        already."""
        for name, why in failures.items():
            actor = self._actors.get(name)
            if actor is None:
                continue
            self._report(f"{name} is given up: {why}")
            self._given_up.add(name)
            self._driver.lose_engine(name)
            kill(actor, self._processes.get(name))

    async def _keep(self, bundle: int, first: "asyncio.Future[None]") -> None:
        """Keeps an engine running in one place until the run ends, or until several in a row made no token."""
        num_failures, why = 0, ""
        while num_failures < MAX_FAILURES:
            if num_failures:
                await asyncio.sleep(REPLACE_PAUSE_S * 2**num_failures)
            name = f"engine-{next(self._numbers)}"
            await self._may_start.wait()
            started_s = time.monotonic()
            try:
                with self._counted_as_starting(name):
                    engine = await self._start_one(name, bundle)
            except Exception as error:
                await self._drop(name)
                num_failures, why = num_failures + 1, str(error)
                if not first.done() and (isinstance(error, UserError) or num_failures == MAX_FAILURES):
                    first.set_exception(error)
                    return
                self._report(f"no engine could be started in place {bundle} ({why})")
                continue
            if first.done():
                self._report(f"{name} joined after {time.monotonic() - started_s:.1f} s")
            else:
                first.set_result(None)
            why = str(await engine.lost())
            num_failures = 0 if engine.has_generated else num_failures + 1
            self._report(f"{why}: its rollouts continue elsewhere")
            self._driver.lose_engine(name)
            await self._drop(name)
        self._report(f"place {bundle} stays empty: {num_failures} engines in a row made no token")
        self._empty_places.add(bundle)
        if self._empty_places == set(self._placement.engine_bundles):
            self._driver.give_up(f"no engine is left: {num_failures} in a row made no token; the last one: {why}")

    @contextmanager
    def _counted_as_starting(self, name: str) -> Iterator[None]:
        self._starting.add(name)
        self._none_starts.clear()
        try:
            yield
        finally:
            self._starting.discard(name)
            if not self._starting:
                self._none_starts.set()

    async def _start_one(self, name: str, bundle: int) -> RemoteEngine:
        actor = start_in_bundle(
            EngineActor,
            (self._plan,),
            self._group,
            bundle,
            num_gpus=self._placement.gpus_per_engine,
            is_concurrent=True,
        )
        self._actors[name] = actor
        try:
            load, self._processes[name] = await asyncio.wait_for(answer(actor.start.remote()), START_S)
        except TimeoutError:
            raise InfrastructureError(f"{name} was not ready after {START_S:g} s") from None
        async with self._is_changing:
            if self._version is not None:
                failures = await self._weight_sync.deliver({name: actor}, self._version)
                if failures:
                    raise InfrastructureError(f"{name} did not get the present weights: {failures[name]}")
            engine = RemoteEngine(_RayChannel(actor), load, name, self._silence_s)
            self._engines[name] = engine
            self._driver.add_engine(name, engine, self._speed)
        return engine

    async def _drop(self, name: str) -> None:
        self._given_up.discard(name)
        engine = self._engines.pop(name, None)
        if engine is not None:
            await engine.close()
        actor = self._actors.pop(name, None)
        if actor is not None:
            kill(actor, self._processes.pop(name, None))


class _RayChannel:
    """Satisfies `Channel`: frames go as calls, and come back from a call that waits for the next one."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def send(self, frame: Frame) -> None:
        self._actor.act.remote(frame)

    async def receive(self) -> Frame | None:
        try:
            frame: Frame = await answer(self._actor.next_frame.remote())
        except ActorLost:
            return None
        return frame

    async def close(self) -> None:
        """Does nothing: the fleet ends the actor."""
