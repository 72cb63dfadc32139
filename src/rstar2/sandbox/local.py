"""The sandbox in this process: templates and slots as children, no server."""

import asyncio
import math
import os
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Self

from rstar2.sandbox.execution import Execution, OnOutput
from rstar2.sandbox.executor import Request, Session
from rstar2.sandbox.isolation.guarantees import Guarantee
from rstar2.sandbox.isolation.quota import core_quota
from rstar2.sandbox.notebooks.local_session import LocalSessions
from rstar2.sandbox.slots.dispatcher import Dispatcher
from rstar2.sandbox.slots.slot_factory import SlotConfig, SlotFactory


def usable_cores() -> int:
    """Cores that the affinity mask and control groups allow; part of a core counts as one."""
    num_allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = core_quota()
    return num_allowed if quota is None else max(1, min(num_allowed, math.ceil(quota)))


@dataclass(frozen=True, slots=True)
class LocalConfig:
    slots: SlotConfig = field(default_factory=SlotConfig)
    num_young: int = field(default_factory=lambda: 4 * usable_cores())
    """Maximum concurrent executions younger than a tenth of a second. More than the cores, because a program that
    sleeps must not leave a core idle."""
    max_slots: int = 256
    """Maximum concurrent executions, young and old."""
    queue_capacity: int = 100_000
    max_live_sessions: int = 256
    """The maximum number of live sessions. Beyond it the least recently used lose their processes, and are rebuilt when
    used."""


class LocalExecutor:
    """Satisfies `Executor`. Use as an async context manager, or `await start()` and `await close()`."""

    def __init__(
        self, config: LocalConfig | None = None, make_factory: Callable[[SlotConfig], SlotFactory] = SlotFactory
    ) -> None:
        self.config = config or LocalConfig()
        self._make_factory = make_factory
        self._factory: SlotFactory | None = None
        self._dispatcher: Dispatcher | None = None
        self._sessions: LocalSessions | None = None
        self._starting = asyncio.Lock()

    async def start(self) -> None:
        async with self._starting:
            if self._dispatcher is not None:
                return
            self._factory = self._make_factory(self.config.slots)
            await self._factory.start()
            self._dispatcher = Dispatcher(
                self._factory,
                num_young=self.config.num_young,
                max_slots=self.config.max_slots,
                queue_capacity=self.config.queue_capacity,
            )
            self._sessions = LocalSessions(self._factory, max_live=self.config.max_live_sessions)

    async def run(self, request: Request, on_output: OnOutput | None = None) -> Execution:
        dispatcher = self._dispatcher or await self._running()
        job = dispatcher.submit(request, on_output)
        try:
            return await job.future
        except asyncio.CancelledError:
            dispatcher.cancel(job)
            raise

    async def run_many(self, requests: Iterable[Request]) -> AsyncIterator[tuple[int, Execution]]:
        dispatcher = await self._running()
        flow = dispatcher.new_flow()
        finished: asyncio.Queue[tuple[int, Execution]] = asyncio.Queue()
        jobs = []

        def deliver(index: int, future: asyncio.Future[Execution]) -> None:
            if not future.cancelled():
                finished.put_nowait((index, future.result()))

        try:
            for index, request in enumerate(requests):
                job = dispatcher.submit(request if request.flow else replace(request, flow=flow))
                jobs.append(job)
                job.future.add_done_callback(lambda done, index=index: deliver(index, done))  # type: ignore[misc]
            for _ in range(len(jobs)):
                yield await finished.get()
        finally:
            for job in jobs:
                if not job.future.done():
                    dispatcher.cancel(job)

    async def session(self) -> Session:
        await self._running()
        assert self._sessions is not None
        return self._sessions.open()

    async def _running(self) -> Dispatcher:
        if self._dispatcher is None:
            await self.start()
        assert self._dispatcher is not None
        return self._dispatcher

    @property
    def guarantees(self) -> list[Guarantee]:
        return self._factory.guarantees if self._factory else []

    def status(self) -> dict[str, Any]:
        """Counters and levels for operators, as plain values."""
        if self._factory is None or self._dispatcher is None or self._sessions is None:
            return {"started": False}
        template = self._factory.templates.current
        counters = self._dispatcher.counters
        return {
            "started": True,
            "fast_path": bool(template and template.facts["fast"]),
            "libraries_missing": template.facts["missing"] if template else [],
            "template_deaths": self._factory.templates.num_deaths,
            "queued": len(self._dispatcher.queue),
            "queue_capacity": self._dispatcher.queue.capacity,
            "running": self._dispatcher.num_running,
            "slots": self._dispatcher.num_slots,
            "slots_made": counters.num_slots_made,
            "slots_lost": counters.num_slots_lost,
            "executions_started": counters.num_started,
            "executions_retried": counters.num_retried,
            "executions_starved": counters.num_starved,
            "executions_by_status": dict(counters.by_status),
            "sessions": self._sessions.num_open,
            "sessions_live": self._sessions.trees.num_live,
        }

    async def close(self) -> None:
        if self._sessions is not None:
            await self._sessions.trees.close()
        if self._dispatcher is not None:
            await self._dispatcher.close()
        if self._factory is not None:
            await self._factory.close()
        self._factory = self._dispatcher = self._sessions = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
