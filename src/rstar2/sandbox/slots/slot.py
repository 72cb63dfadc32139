"""The host's end of one slot: a socket for requests and replies, one at a time."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable

from rstar2.sandbox.isolation.cgroup import SlotGroup
from rstar2.sandbox.slots import processes, wire
from rstar2.sandbox.slots.processes import MemoryWatch

_SOCKET_BUFFER_BYTES = 1 << 20
_READ_BYTES = 1 << 14
"""Most replies are far smaller; a larger buffer would be mapped and unmapped for each reply."""


class SlotChannel:
    """Sends a request without blocking the loop, collects the reply, and reports when the slot has exited.

    `on_reply(header, body)` and `on_lost()` are called from the event loop; neither is called after `on_lost`.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        channel: socket.socket,
        *,
        prefix_bytes: int,
        on_reply: Callable[[bytes, bytes], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._socket = channel
        self._fd = channel.fileno()
        self._header_bytes = prefix_bytes + wire.REPLY.size
        self._prefix_bytes = prefix_bytes
        self._received = bytearray()
        self._expected = 0
        self._unsent: memoryview | None = None
        self._on_reply, self._on_lost = on_reply, on_lost
        self.is_open = True
        channel.setblocking(False)
        loop.add_reader(self._fd, self._on_readable)

    def send(self, data: bytes) -> None:
        try:
            sent = self._socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            return  # the slot has exited: the reader is about to report it
        if sent < len(data):
            self._unsent = memoryview(data)[sent:]
            self._loop.add_writer(self._fd, self._on_writable)

    def _on_writable(self) -> None:
        assert self._unsent is not None
        try:
            self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except BlockingIOError:
            return
        except OSError:
            self._unsent = self._unsent[:0]
        if not self._unsent:
            self._unsent = None
            self._loop.remove_writer(self._fd)

    def _on_readable(self) -> None:
        try:
            data = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            self._on_lost()
            return
        self._received += data
        while self.is_open and len(self._received) >= self._header_bytes:
            if not self._expected:
                _, _, *lengths, _, _, _ = wire.REPLY.unpack_from(self._received, self._prefix_bytes)
                self._expected = self._header_bytes + sum(lengths)
            if len(self._received) < self._expected:
                return
            header = bytes(self._received[: self._header_bytes])
            body = bytes(self._received[self._header_bytes : self._expected])
            del self._received[: self._expected]
            self._expected = 0
            self._on_reply(header, body)

    def close(self) -> None:
        """Close the channel. This also cancels a running execution: its slot notices, kills all its processes and
        exits."""
        if self.is_open:
            self.is_open = False
            self._loop.remove_reader(self._fd)
            if self._unsent is not None:
                self._loop.remove_writer(self._fd)
            self._socket.close()


def socket_pair() -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER_BYTES)
    return ours, theirs


def kill_quietly(pid: int) -> None:
    """Kill a slot's init, which ends its process namespace."""
    if pid > 0:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


class MemoryAccount:
    """The memory limit of all processes of a slot together, and whether it killed one. The kernel enforces the limit if
    there is a memory group; otherwise the host polls."""

    def __init__(self, group: SlotGroup | None) -> None:
        self.group = group
        self._num_kills = group.num_kills() if group else 0
        self._watch = MemoryWatch()
        self._limit_bytes = 0
        self._was_stopped = False

    def begin(self, limit_bytes: int) -> None:
        """Set the limit for an execution; earlier kills do not count for it."""
        self._limit_bytes, self._was_stopped = limit_bytes, False
        if self.group is not None:
            self.group.set_limit(limit_bytes)
            self._num_kills = self.group.num_kills()

    @property
    def ends_slot(self) -> bool:
        """Whether a kill for memory also ends the slot's own process, which may still answer before it is its turn."""
        return self.group is not None and self.group.is_killed_together

    def look(self, pid: int) -> None:
        """Kill the processes below the slot's init `pid` if they exceed the limit and the kernel does not enforce
        it."""
        if self.group is None and pid > 0 and self._watch.exceeds(pid, self._limit_bytes):
            self._was_stopped = True
            for process in processes.running_below(pid):
                processes.kill(process.pid)

    def was_killed(self) -> bool:
        if self.group is None:
            return self._was_stopped
        before = self._num_kills
        with contextlib.suppress(OSError):  # the group was removed, and its counter with it
            self._num_kills = self.group.num_kills()
        return self._num_kills > before
