"""An application on listening sockets, until it is drained. The model server of `rstar2 serve` uses it as well."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Sequence
from typing import Protocol

from aiohttp import web

from rstar2.sandbox.http.connections import Connections, raise_descriptor_limit

protocol_logger = logging.getLogger(f"{__name__}.protocol")
# aiohttp logs a traceback for each request that is not HTTP; it is answered with 400, and callers must not fill disks.
protocol_logger.setLevel(logging.CRITICAL)
BACKLOG = 4096
"""Connections that may wait to be accepted; a burst of callers must not see refusals."""


class ConnectionSettings(Protocol):
    @property
    def max_connections(self) -> int: ...

    @property
    def header_timeout_s(self) -> float: ...

    @property
    def keepalive_s(self) -> float: ...


class Drainable(Protocol):
    """What an application does its work with."""

    connections: Connections | None
    """The connections of the server, once there is one."""

    @property
    def settings(self) -> ConnectionSettings: ...

    @property
    def idle(self) -> asyncio.Event:
        """Set while nothing is in flight."""
        ...

    def begin_draining(self) -> None:
        """From here on new work is refused."""
        ...


DRAINABLE = web.AppKey("drainable", Drainable)


class Server:
    """Serves an application whose `DRAINABLE` is set. A caller that goes away cancels what it asked for."""

    def __init__(self, app: web.Application) -> None:
        self._service = app[DRAINABLE]
        self._runner = web.AppRunner(
            app,
            handler_cancellation=True,
            access_log=None,
            shutdown_timeout=1.0,
            logger=protocol_logger,
            keepalive_timeout=self._service.settings.keepalive_s,
        )
        self._listening: list[asyncio.Server] = []

    async def start(self, sockets: Sequence[socket.socket]) -> None:
        raise_descriptor_limit()
        await self._runner.setup()
        assert self._runner.server is not None
        settings = self._service.settings
        connections = Connections(self._runner.server, settings.max_connections, settings.header_timeout_s)
        self._service.connections = connections
        self._listening = [await connections.listen(sock, BACKLOG) for sock in sockets]

    async def drain(self, timeout_s: float) -> bool:
        """Refuse new work, let what is in flight finish, then stop. Whether all of it did, in that time."""
        self._service.begin_draining()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._service.idle.wait()
        is_done = self._service.idle.is_set()
        for listening in self._listening:
            listening.close()
        await self._runner.cleanup()
        return is_done
