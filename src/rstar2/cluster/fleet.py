"""The engines of a run: started, given new weights, and replaced when they die or hang.

Invariant: an engine that the driver knows has the weights that were published last. One that is lost is replaced by
another of another name, which joins when it has them; rollouts that it held go on elsewhere.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from typing import Any

from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup

from rstar2.cluster.actors import ActorLost, Process, answer, kill, start_in_bundle
from rstar2.cluster.engine_actor import EngineActor, EnginePlan
from rstar2.cluster.placement import Placement
from rstar2.engine.remote import RemoteEngine
from rstar2.engine.remote.wire import Frame, decode_load
from rstar2.errors import InfrastructureError, UserError
from rstar2.records import Trace
from rstar2.rollout import EngineSpeed
from rstar2.rollout.driver import Driver

START_S = 1800.0
"""vLLM compiles and measures for minutes, and a large model comes from a shared disk."""
UPDATE_S = 600.0
REPLACE_PAUSE_S = 1.0
MAX_FAILED_STARTS = 5
"""In a row, of one place: a machine on which no engine starts is not asked for ever."""


class EngineFleet:
    def __init__(
        self,
        plan: EnginePlan,
        group: PlacementGroup,
        placement: Placement,
        driver: Driver[Trace],
        speed: EngineSpeed,
        report: Callable[[str], None],
        silence_s: float,
    ) -> None:
        self._plan = plan
        self._group = group
        self._placement = placement
        self._driver = driver
        self._speed = speed
        self._report = report
        self._silence_s = silence_s
        self._numbers = count()
        self._actors: dict[str, Any] = {}
        self._processes: dict[str, Process] = {}
        self._engines: dict[str, RemoteEngine] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self._weights: tuple[Sequence[Any], int] | None = None
        """References to the parcels that were published last, and their version."""
        self._is_changing = asyncio.Lock()
        """Held while weights are published and while an engine joins, so that none joins with old ones."""
        self._is_awake = asyncio.Event()
        """Not set while the ranks have the GPUs: no engine is started on one meanwhile."""
        self._is_awake.set()

    async def start(self) -> None:
        """All engines; or the error of one that cannot be started, however often it is tried."""
        joined = [asyncio.get_running_loop().create_future() for _ in self._placement.engine_bundles]
        self._keepers = [
            asyncio.create_task(self._keep(bundle, future))
            for bundle, future in zip(self._placement.engine_bundles, joined, strict=True)
        ]
        await asyncio.gather(*joined)

    async def publish(self, parcels: Sequence[Any], version: int) -> None:
        """New weights for all. An engine that cannot take them is given up, and replaced."""
        async with self._is_changing:
            self._weights = (parcels, version)
            await self._ask_all("load_weights", parcels, version)

    async def sleep(self) -> None:
        """Leave the GPUs to the ranks, where they share them."""
        self._is_awake.clear()
        await self._ask_all("sleep")

    async def wake(self) -> None:
        await self._ask_all("wake")
        self._is_awake.set()

    async def close(self) -> None:
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        for name in list(self._actors):
            await self._drop(name)

    async def _ask_all(self, method: str, *arguments: Any) -> None:
        async def ask(name: str, actor: Any) -> None:
            try:
                await asyncio.wait_for(answer(getattr(actor, method).remote(*arguments)), UPDATE_S)
            except (InfrastructureError, TimeoutError) as error:
                self._report(f"{name} could not {method.replace('_', ' ')} ({error})")
                self._driver.lose_engine(name)
                kill(actor, self._processes.get(name))

        await asyncio.gather(*(ask(name, self._actors[name]) for name in self._engines))

    async def _keep(self, bundle: int, first: "asyncio.Future[None]") -> None:
        """One place with an engine in it, for as long as the run lasts."""
        num_failures = 0
        while True:
            name = f"engine-{next(self._numbers)}"
            await self._is_awake.wait()
            started_s = time.monotonic()
            try:
                engine = await self._start_one(name, bundle)
            except Exception as error:
                await self._drop(name)
                num_failures += 1
                if not first.done() and (isinstance(error, UserError) or num_failures == MAX_FAILED_STARTS):
                    first.set_exception(error)
                    return
                self._report(f"no engine could be started in place {bundle} ({error})")
                if num_failures == MAX_FAILED_STARTS:
                    self._report(f"place {bundle} stays empty: {num_failures} starts failed in a row")
                    return
                await asyncio.sleep(REPLACE_PAUSE_S * 2**num_failures)
                continue
            num_failures = 0
            if first.done():
                self._report(f"{name} joined after {time.monotonic() - started_s:.1f} s")
            else:
                first.set_result(None)
            why = await engine.lost()
            self._report(f"{why}: its rollouts go on elsewhere, and another engine is started")
            self._driver.lose_engine(name)
            await self._drop(name)

    async def _start_one(self, name: str, bundle: int) -> RemoteEngine:
        actor = start_in_bundle(
            EngineActor,
            (self._plan,),
            self._group,
            bundle,
            num_gpus=self._placement.gpus_per_engine,
            side_by_side=True,
        )
        self._actors[name] = actor
        try:
            load, self._processes[name] = await asyncio.wait_for(answer(actor.start.remote()), START_S)
        except TimeoutError:
            raise InfrastructureError(f"{name} was not ready after {START_S:g} s") from None
        async with self._is_changing:
            if self._weights is not None:
                await asyncio.wait_for(answer(actor.load_weights.remote(*self._weights)), UPDATE_S)
            engine = RemoteEngine(_RayChannel(actor), decode_load(load), name, self._silence_s)
            self._engines[name] = engine
            self._driver.add_engine(name, engine, self._speed)
        return engine

    async def _drop(self, name: str) -> None:
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
        call: Awaitable[Frame] = self._actor.next_frame.remote()
        try:
            return await call
        except (ActorLost, RayError):
            return None

    async def close(self) -> None:
        """The fleet ends the actor."""
