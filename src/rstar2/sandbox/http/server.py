"""Serves an application on listening sockets until it is drained. The model server of `rstar2 serve` uses it too."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Sequence
from typing import Protocol

from aiohttp import web

from rstar2.sandbox.http.connections import Connections, raise_descriptor_limit

protocol_logger = logging.getLogger(f"{__name__}.protocol")
# aiohttp logs a traceback for each request that is not HTTP. Such a request gets a 400; it must not fill the disk with
# logs.
protocol_logger.setLevel(logging.CRITICAL)
BACKLOG = 4096
"""The number of connections that may wait to be accepted; a burst of callers must not be refused."""


class ConnectionSettings(Protocol):
    @property
    def max_connections(self) -> int: ...

    @property
    def header_timeout_s(self) -> float: ...

    @property
    def keepalive_s(self) -> float: ...


class Drainable(Protocol):
    """The part of an application that the server uses."""

    connections: Connections | None
    """The open connections; the server sets this when it starts."""

    @property
    def settings(self) -> ConnectionSettings: ...

    @property
    def idle(self) -> asyncio.Event:
        """Set while no request is in flight."""
        ...

    def begin_draining(self) -> None:
        """Refuse new work from now on."""
        ...


DRAINABLE = web.AppKey("drainable", Drainable)


class Server:
    """Serves an application whose `DRAINABLE` is set. A request is cancelled when its caller disconnects."""

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
        """Refuse new work, let requests in flight finish, then stop. Returns whether all of them finished in time."""
        self._service.begin_draining()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._service.idle.wait()
        is_done = self._service.idle.is_set()
        for listening in self._listening:
            listening.close()
        await self._runner.cleanup()
        return is_done
