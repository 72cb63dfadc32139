"""Watches one running program from the process that forked it: feeds its stdin, collects its output, enforces its
limits.

Used by slots without the C extension (`portable_fork.py`) and by sessions (`session_tree.py`). Output and input stay in
memory outside Python's heap, which forks of the watching process would inherit.
"""

import math
import mmap
import os
import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from rstar2.sandbox.execution import MAX_OUTPUT_BYTES
from rstar2.sandbox.slots import interpreter
from rstar2.sandbox.slots.wire import MORE_TIME, Flag, RequestHeader, partial, question

_CUT_FLAGS = (Flag.STDOUT_CUT, Flag.STDERR_CUT, Flag.VALUE_CUT)


class Buffer:
    """Memory outside Python's heap. Unless `inherited`, forks do not get it."""

    def __init__(self, num_bytes: int, *, inherited: bool) -> None:
        self._map = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if not inherited:
            self._map.madvise(mmap.MADV_DONTFORK)
        self.view = memoryview(self._map)

    def clear(self) -> None:
        self._map.madvise(mmap.MADV_DONTNEED)


class Stream:
    """One output of a program, up to a limit."""

    def __init__(self) -> None:
        self.buffer = Buffer(MAX_OUTPUT_BYTES + 1, inherited=False)
        self.fd, self.limit, self.length, self.cut = -1, 0, 0, False

    def start(self, fd: int, limit: int) -> None:
        os.set_blocking(fd, False)
        self.fd, self.limit, self.length, self.cut = fd, limit, 0, False

    def drain(self) -> bool:
        """Read the available output; False when all writers have closed the pipe."""
        while not self.cut:
            room = self.limit - self.length
            try:
                if room:
                    got = os.readv(self.fd, [self.buffer.view[self.length : self.limit]])
                else:
                    got = len(os.read(self.fd, 1))
            except BlockingIOError:
                return True
            if not got:
                return False
            if room:
                self.length += got
            else:
                self.cut = True
        return True

    @property
    def content(self) -> memoryview:
        return self.buffer.view[: self.length]


def new_streams() -> tuple[Stream, ...]:
    """The streams for stdout, stderr and the value."""
    return Stream(), Stream(), Stream()


def start_streams(streams: tuple[Stream, ...], read_ends: list[int], header: RequestHeader) -> None:
    for number, (stream, fd) in enumerate(zip(streams, read_ends, strict=True), start=1):
        stream.start(fd, header.value_bytes if number == interpreter.VALUE_FD else header.output_bytes)


def close_streams(streams: tuple[Stream, ...]) -> None:
    """Read the rest of the output, and close the pipes."""
    for stream in streams:
        stream.drain()
        os.close(stream.fd)


def cut_flags(streams: tuple[Stream, ...]) -> Flag:
    """The flags of the streams that exceeded their limit."""
    return Flag(sum(flag for stream, flag in zip(streams, _CUT_FLAGS, strict=True) if stream.cut))


@dataclass
class Watch:
    caller: socket.socket
    header: RequestHeader
    streams: tuple[Stream, ...]
    stdin: memoryview
    stdin_fd: int
    """Stdin's write end; -1 once all is written or the reader has closed it."""
    end_fds: tuple[int, ...]
    """One of these is readable when the program has ended."""
    question_prefix: bytes = b""
    on_old: Callable[[], None] = lambda: None
    """Called when the program is no longer young."""
    is_asking: bool = False
    """True until the caller answers whether the program may continue."""
    passed_on: tuple[int, int] = (0, 0)
    """The lengths of stdout and stderr that the caller has."""

    def until_end(self, started: float) -> Flag:
        """Wait until the program ends or a limit is reached; EOFError if the caller has closed the socket."""
        os.set_blocking(self.stdin_fd, False)
        poller = select.poll()
        for fd in self.end_fds:  # first: if the program ended before the answer came, the end counts
            poller.register(fd, select.POLLIN)
        poller.register(self.caller, select.POLLIN | select.POLLRDHUP)
        poller.register(self.stdin_fd, select.POLLOUT)
        outputs = {stream.fd: stream for stream in self.streams}
        for fd in outputs:
            poller.register(fd, select.POLLIN)
        last, old_at = started + self.header.longest_ms / 1000, started + self.header.young_ms / 1000
        ask_at = started + self.header.wall_ms / 1000
        stream_s, pass_on_at = self.header.stream_ms / 1000, math.inf
        passed_on_at = -math.inf
        while True:
            now = time.monotonic()
            if now >= last:
                return Flag.TIMED_OUT
            if now >= ask_at:
                self.caller.sendall(self.question_prefix + question(now - started))
                ask_at, self.is_asking = math.inf, True
            if now >= old_at:
                self.on_old()
                old_at = math.inf
            if now >= pass_on_at:
                self._pass_on(now - started)
                passed_on_at, pass_on_at = now, math.inf
            for fd, _ in poller.poll((min(last, ask_at, old_at, pass_on_at) - now) * 1000 + 1):
                if fd == self.caller.fileno():
                    if not self.is_asking:
                        raise EOFError
                    more_ms = self.receive_more_time()
                    if not more_ms:
                        return Flag.TIMED_OUT
                    ask_at = time.monotonic() + more_ms / 1000
                elif fd == self.stdin_fd:
                    self._feed()
                    if not self.stdin:
                        poller.unregister(fd)
                        self.close_stdin()
                elif fd in self.end_fds:
                    return Flag(0)
                elif not outputs[fd].drain():
                    poller.unregister(fd)
            if any(stream.cut for stream in self.streams):
                return Flag(0)
            if stream_s and self.passed_on != self._written:
                pass_on_at = min(pass_on_at, passed_on_at + stream_s)

    @property
    def _written(self) -> tuple[int, int]:
        return self.streams[0].length, self.streams[1].length

    def _pass_on(self, elapsed_s: float) -> None:
        parts = [stream.content[done:] for stream, done in zip(self.streams[:2], self.passed_on, strict=True)]
        self.passed_on = self._written
        self.caller.sendall(self.question_prefix + partial(elapsed_s, *map(len, parts)))
        for part in parts:
            self.caller.sendall(part)

    def _feed(self) -> None:
        try:
            self.stdin = self.stdin[os.write(self.stdin_fd, self.stdin) :] if self.stdin else self.stdin
        except BlockingIOError:
            return
        except OSError:  # the reader has closed the pipe
            self.stdin = self.stdin[:0]

    def close_stdin(self) -> None:
        if self.stdin_fd >= 0:
            os.close(self.stdin_fd)
            self.stdin_fd = -1

    def receive_more_time(self) -> int:
        """Receive the answer, in milliseconds. Each question has one answer, even if the program ended first."""
        self.is_asking = False
        answer = bytearray(MORE_TIME.size)
        receive_into(self.caller, memoryview(answer))
        more_ms: int = MORE_TIME.unpack(answer)[0]
        return more_ms


def receive_into(caller: socket.socket, place: memoryview) -> None:
    while place:
        got = caller.recv_into(place)
        if not got:
            raise EOFError
        place = place[got:]
