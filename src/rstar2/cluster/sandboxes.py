"""Makes one sandbox of all machines' cores: a node on each, and a pool over them.

Invariant: a node listens on its machine's private address alone, and requires the run's token. A node that dies is
restarted; its calls are rerun elsewhere meanwhile.
"""

import asyncio
import os
import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from aiohttp import web

from rstar2.cluster.actors import answer, kill, living_machines, machine_address, start_on_node
from rstar2.errors import InfrastructureError
from rstar2.grading import Grader
from rstar2.sandbox import LocalExecutor
from rstar2.sandbox.http import ServiceSettings, create_app
from rstar2.sandbox.local import LocalConfig
from rstar2.sandbox.pool import PoolExecutor, RemoteNode

START_S = 300.0
CHECK_PERIOD_S = 1.0
RESTART_PAUSE_S = 1.0
WATCH_PERIOD_S = 5.0


class SandboxActor:
    """The execution service on one machine, as an actor that `SandboxCluster` makes remote."""

    def __init__(self, token: str, num_slots: int | None) -> None:
        self._token = token
        self._config = LocalConfig() if num_slots is None else LocalConfig(num_young=num_slots)
        self._executor: LocalExecutor | None = None
        self._runner: web.AppRunner | None = None

    async def start(self) -> tuple[str, int]:
        """Starts the service; returns its address, and how many calls it can run at a time."""
        self._executor = await LocalExecutor(self._config).__aenter__()
        host = machine_address()
        table = [asdict(guarantee) for guarantee in self._executor.guarantees]
        app = create_app(
            self._executor,
            ServiceSettings(token=self._token, listening_host=host),
            grader=Grader(self._executor),
            guarantees=lambda: table,
        )
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        listener = socket.create_server((host, 0))
        await web.SockSite(self._runner, listener).start()
        return f"http://{host}:{listener.getsockname()[1]}", self._config.num_young

    async def pid(self) -> int:
        return os.getpid()


class SandboxCluster:
    """Keeps a sandbox node on each machine, in a pool."""

    def __init__(self, pool: PoolExecutor, num_slots: int | None, report: Callable[[str], None]) -> None:
        self.pool = pool
        self._num_slots = num_slots
        self._report = report
        self._token = secrets.token_hex(32)
        self._actors: dict[str, Any] = {}
        self._supervisors: dict[str, asyncio.Task[None]] = {}
        self._watcher: asyncio.Task[None] | None = None

    @property
    def actors(self) -> dict[str, Any]:
        """The actors by machine id."""
        return dict(self._actors)

    async def start(self) -> None:
        """Starts a node on each present machine, and later on each that joins. InfrastructureError if none starts."""
        errors = await asyncio.gather(*self._keep_new_machines(), return_exceptions=True)
        if all(errors):
            raise InfrastructureError(f"no sandbox could be started: {errors[0]}")
        self._watcher = asyncio.create_task(self._watch_machines())

    async def close(self) -> None:
        tasks = [*self._supervisors.values(), *([self._watcher] if self._watcher else ())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.pool.close()
        for actor in self._actors.values():
            kill(actor)

    def _keep_new_machines(self) -> "list[asyncio.Future[None]]":
        new = [node_id for node_id in living_machines() if node_id not in self._supervisors]
        joined = []
        for node_id in new:
            first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._supervisors[node_id] = asyncio.create_task(self._keep(node_id, first))
            joined.append(first)
        return joined

    async def _watch_machines(self) -> None:
        while True:
            await asyncio.sleep(WATCH_PERIOD_S)
            for first in self._keep_new_machines():
                first.set_result(None)  # it has no waiter

    async def _keep(self, node_id: str, first: "asyncio.Future[None]") -> None:
        """Keeps a node running on this machine until the run ends or the machine leaves."""
        while node_id in living_machines():
            actor = start_on_node(SandboxActor, (self._token, self._num_slots), node_id)
            self._actors[node_id] = actor
            try:
                url, num_slots = await asyncio.wait_for(answer(actor.start.remote()), START_S)
            except (InfrastructureError, TimeoutError) as error:
                kill(actor)
                if not first.done():
                    first.set_exception(error)
                self._report(f"no sandbox could be started on node {node_id[:8]} ({error})")
                await asyncio.sleep(RESTART_PAUSE_S)
                continue
            node = RemoteNode(url, self._token)
            self.pool.add_node(url, node, num_slots, node.probe)
            if first.done():
                self._report(f"a sandbox joined on node {node_id[:8]}")
            else:
                first.set_result(None)
            with suppress(InfrastructureError):
                while True:
                    await answer(actor.pid.remote())
                    await asyncio.sleep(CHECK_PERIOD_S)
            self._report(f"the sandbox on node {node_id[:8]} has disconnected: its calls are rerun elsewhere")
            self.pool.lose_node(url)
            await self.pool.remove_node(url, 0.0)
            kill(actor)
        del self._supervisors[node_id], self._actors[node_id]
        self._report(f"machine {node_id[:8]} left, and its sandbox with it")
