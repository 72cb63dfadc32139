"""Bounds the connections of a server: it closes silent ones, and idle ones when there are too many. If all connections
have requests, those beyond the bound may ask only for health.

Without a bound, a few hundred silent connections use up the file descriptors of the process, and neither callers nor
the operator's health check get in.
"""

import asyncio
import resource
import socket
from collections.abc import Callable
from contextlib import suppress
from itertools import chain, islice
from typing import Any

NUM_SPARE = 64
"""Connections beyond the bound that may ask for the service's health, and nothing else."""
MAX_CONNECTIONS = 16_384
NUM_LOOKED_AT = 1_024
"""Of this many connections, the least recently heard, one is chosen to make room for a new one."""


def raise_descriptor_limit() -> None:
    """Raise the limit on file descriptors to its maximum."""
    with suppress(ValueError, OSError):
        _, maximum = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (maximum, maximum))


def affordable_connections() -> int:
    """Connections that the limit on descriptors allows besides slots and sessions."""
    _, maximum = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if maximum == resource.RLIM_INFINITY else max(NUM_SPARE, min(MAX_CONNECTIONS, maximum // 2))


def aiohttp_has_request(handler: Any) -> bool:
    """Whether an aiohttp handler has an unanswered request, with its whole head: it is not waiting for one. It names no
    current request while it starts handling one, nor while it writes the answer."""
    return handler._waiter is None or handler._waiter.done()


class Connections:
    """Makes the protocol of each connection: the handler's own, watched. `has_request(handler)` says whether it has the
    whole head of an unanswered request."""

    def __init__(
        self,
        make_handler: Callable[[], asyncio.Protocol],
        max_open: int,
        header_timeout_s: float,
        has_request: Callable[[Any], bool] = aiohttp_has_request,
    ) -> None:
        self._make_handler = make_handler
        self.max_open = max_open
        self.header_timeout_s = header_timeout_s
        self.has_request = has_request
        self.silent: dict[_Connection, None] = {}
        """Connections from which the first request, or the rest of a later request's head, is awaited; oldest first."""
        self.open: dict[_Connection, None] = {}
        """Connections within the bound; the least recently heard first."""
        self.spare: set[asyncio.BaseTransport] = set()

    def __call__(self) -> asyncio.Protocol:
        return _Connection(self, self._make_handler())

    async def listen(self, sock: socket.socket, backlog: int) -> asyncio.Server:
        return await asyncio.get_running_loop().create_server(self, sock=sock, backlog=backlog)

    def is_spare(self, transport: asyncio.BaseTransport | None) -> bool:
        """Whether the connection is beyond the bound."""
        return transport in self.spare

    def admit(self, connection: "_Connection", transport: asyncio.BaseTransport) -> bool:
        if len(self.open) >= self.max_open and (idle := self._idle()) is not None:
            idle.close()
        if len(self.open) < self.max_open:
            self.open[connection] = None
            return True
        if len(self.spare) < NUM_SPARE:
            self.spare.add(transport)
            return True
        return False

    def heard(self, connection: "_Connection") -> None:
        if connection in self.open:
            del self.open[connection]
            self.open[connection] = None

    def _idle(self) -> "_Connection | None":
        """A connection that can be closed without losing a request, preferably one that never sent one."""
        candidates = chain(self.silent, islice(self.open, NUM_LOOKED_AT))
        return next((found for found in candidates if found in self.open and not found.has_request), None)


class _Connection(asyncio.Protocol):
    def __init__(self, table: Connections, handler: asyncio.Protocol) -> None:
        self._table = table
        self._handler = handler
        self._transport: asyncio.Transport | None = None
        self._is_admitted = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def has_request(self) -> bool:
        return self._table.has_request(self._handler)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._is_admitted = self._table.admit(self, transport)
        if not self._is_admitted:
            transport.abort()
            return
        self._await_head()
        self._handler.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if not self._is_admitted:
            return
        self._handler.data_received(data)
        self._table.heard(self)
        if self.has_request:
            self._be_heard()
        elif self._timer is None:  # the first bytes of a head on a kept connection
            self._await_head()

    def _await_head(self) -> None:
        self._table.silent[self] = None
        self._timer = asyncio.get_running_loop().call_later(self._table.header_timeout_s, self._on_time)

    def _on_time(self) -> None:
        if self.has_request:
            self._be_heard()
        else:
            self.close()

    def _be_heard(self) -> None:
        self._table.silent.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def eof_received(self) -> bool | None:
        return self._handler.eof_received() if self._is_admitted else None

    def pause_writing(self) -> None:
        self._handler.pause_writing()

    def resume_writing(self) -> None:
        self._handler.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._forget()
        if self._is_admitted:
            self._handler.connection_lost(error)

    def close(self) -> None:
        self._forget()
        if self._transport is not None:
            self._transport.abort()

    def _forget(self) -> None:
        self._be_heard()
        self._table.open.pop(self, None)
        if self._transport is not None:
            self._table.spare.discard(self._transport)
