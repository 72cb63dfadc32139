"""How many connections a server holds: silent ones are closed, and beyond the bound only health is answered.

Without a bound, a few hundred connections that say nothing use up the descriptors of the process, and neither callers
nor the operator's health check get in.
"""

import asyncio
import resource
import socket
from collections.abc import Callable
from contextlib import suppress

NUM_SPARE = 64
"""Connections beyond the bound that may ask for the service's health, and nothing else."""
MAX_CONNECTIONS = 16_384
_END_OF_HEAD = b"\r\n\r\n"


def raise_descriptor_limit() -> None:
    """To what the machine allows this process."""
    with suppress(ValueError, OSError):
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def affordable_connections() -> int:
    """What the limit on descriptors leaves when slots and sessions have theirs."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if most == resource.RLIM_INFINITY else max(NUM_SPARE, min(MAX_CONNECTIONS, most // 2))


class Connections:
    """Makes the protocol of each connection: the handler's own, watched."""

    def __init__(self, make_handler: Callable[[], asyncio.Protocol], max_open: int, header_timeout_s: float) -> None:
        self._make_handler = make_handler
        self.max_open = max_open
        self.header_timeout_s = header_timeout_s
        self.silent: dict[_Connection, None] = {}
        """Those that have not sent a first request, the oldest first."""
        self.open: set[asyncio.BaseTransport] = set()
        self.spare: set[asyncio.BaseTransport] = set()

    def __call__(self) -> asyncio.Protocol:
        return _Connection(self, self._make_handler())

    async def listen(self, sock: socket.socket, backlog: int) -> asyncio.Server:
        return await asyncio.get_running_loop().create_server(self, sock=sock, backlog=backlog)

    def is_spare(self, transport: asyncio.BaseTransport | None) -> bool:
        """Whether the connection is one beyond the bound."""
        return transport in self.spare

    def admit(self, transport: asyncio.BaseTransport) -> bool:
        if len(self.open) >= self.max_open and self.silent:
            next(iter(self.silent)).close()
        if len(self.open) < self.max_open:
            self.open.add(transport)
            return True
        if len(self.spare) < NUM_SPARE:
            self.spare.add(transport)
            return True
        return False


class _Connection(asyncio.Protocol):
    def __init__(self, table: Connections, handler: asyncio.Protocol) -> None:
        self._table = table
        self._handler = handler
        self._transport: asyncio.Transport | None = None
        self._is_admitted = False
        self._head = b""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._is_admitted = self._table.admit(transport)
        if not self._is_admitted:
            transport.abort()
            return
        self._table.silent[self] = None
        self._timer = asyncio.get_running_loop().call_later(self._table.header_timeout_s, self.close)
        self._handler.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._timer is not None:
            self._look_for_the_end_of_the_head(data)
        if self._is_admitted:
            self._handler.data_received(data)

    def _look_for_the_end_of_the_head(self, data: bytes) -> None:
        seen = self._head + data
        if _END_OF_HEAD in seen:
            self._be_heard()
        else:
            self._head = seen[-(len(_END_OF_HEAD) - 1) :]

    def _be_heard(self) -> None:
        self._table.silent.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._head = b""

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
        if self._transport is not None:
            self._table.open.discard(self._transport)
            self._table.spare.discard(self._transport)
