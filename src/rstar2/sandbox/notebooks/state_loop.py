"""The loop of a session's parked interpreters, each of which holds the state that one cell left.

A state parks until it gets the descriptors for a fork. The fork gets the cell, runs it, and parks in this same loop.
The interpreter belongs to the user: a cell can replace any name bound here, and then breaks only its own session. Each
object that a fork touches costs a copied page, so the path to the cell is short.
"""

import contextlib
import os
import random
import resource
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable

from rstar2.sandbox.isolation import confine
from rstar2.sandbox.slots import interpreter
from rstar2.sandbox.slots.wire import NUM_CELL_DESCRIPTORS, RequestHeader

try:
    from rstar2.sandbox.slots import _fork as fast_fork  # type: ignore[attr-defined]
except ImportError:
    fast_fork = None

FORK, HELLO = b"f", b"h"
"""`FORK`: to a state, with its fork's descriptors. `HELLO`: from the fork, and from the state once it has closed
them."""
RUN = struct.Struct("=III")
"""The message to a fork: the length of the code that follows, the CPU limit in seconds, the length of stdin."""
DONE = struct.Struct("=BiQI")
"""At a cell's end: marker, exit code, CPU microseconds, peak KiB."""
_EXTRA_PROCESSES = 64
"""Room for parked states, which count against the process limit too."""
_DESCRIPTORS = struct.Struct(f"={NUM_CELL_DESCRIPTORS}i")
_DESCRIPTORS_BYTES = socket.CMSG_SPACE(_DESCRIPTORS.size)
_FIRST_READ_BYTES = 4096
# These are bound here, so that a cell that replaces `os.fork` and the like does not break its own session.
_fork, _exit, _waitpid, _dup2, _close = os.fork, os._exit, os.waitpid, os.dup2, os.close
_getstate, _setstate = random.getstate, random.setstate
_fork_sibling = fast_fork.fork_sibling if fast_fork is not None else None
_threads: dict[object, object] = threading._active  # type: ignore[attr-defined]
_getrusage, _setrlimit = resource.getrusage, resource.setrlimit
_min, _suppress = min, contextlib.suppress


def confine_root(limits: RequestHeader, uid: int, base_data_bytes: int, base_address_bytes: int) -> None:
    """Hard limits of the session: no cell can raise them, and every cell inherits them."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    confine.limit_open_files()
    values = {
        resource.RLIMIT_DATA: base_data_bytes + limits.data_bytes,
        resource.RLIMIT_FSIZE: limits.file_bytes,
        resource.RLIMIT_NPROC: limits.num_processes + _EXTRA_PROCESSES,
    }
    if limits.address_bytes:
        values[resource.RLIMIT_AS] = base_address_bytes + limits.address_bytes
    for kind, value in values.items():
        resource.setrlimit(kind, (value, value))
    if uid >= 0:
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)


def tid_address() -> int:
    """The argument of `run`. Call this before the system-call filter is installed."""
    address: int = fast_fork.tid_address() if fast_fork is not None else 0
    return address


def run(channel: socket.socket, namespace: dict[str, object], tid_address: int) -> None:
    """Park; fork for each cell that arrives. The fork runs the cell and then parks in this same loop."""
    number, had_stdin = 0, False
    channel_fd = channel.fileno()
    fork_cell = _make_fork(tid_address)
    while True:
        message, ancillary, _, _ = channel.recvmsg(len(FORK), _DESCRIPTORS_BYTES)
        if message != FORK or not ancillary:
            _exit(0)
        fds = _DESCRIPTORS.unpack_from(ancillary[0][2])
        try:
            is_base = fork_cell()
        except BlockingIOError:  # what earlier cells started and never waited for still counts against the limit
            _reap()
            is_base = fork_cell()
        if is_base:
            for fd in fds:
                _close(fd)
            channel.send(HELLO)
            continue
        _take_descriptors(fds, channel_fd)
        channel.send(HELLO)  # the kernel adds our process id
        source, cpu_s, stdin_len = _receive_cell(channel)
        number += 1
        # The buffer of stdin may hold unread input of an earlier cell, which is not for this one.
        if (had_stdin or stdin_len) and sys.stdin is sys.__stdin__:
            interpreter.open_stdin()
        had_stdin = stdin_len > 0
        _setrlimit(resource.RLIMIT_CPU, (cpu_s, resource.RLIM_INFINITY))
        code = interpreter.run_cell(source, namespace, f"<cell {number}>")
        _setrlimit(resource.RLIMIT_CPU, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        for stream in (sys.stdout, sys.stderr):
            with _suppress(OSError, ValueError, AttributeError):
                stream.flush()
        used = _getrusage(resource.RUSAGE_SELF)
        code = code if code >= 0 else interpreter.EXIT_RAISED
        channel.send(DONE.pack(1, code, int((used.ru_utime + used.ru_stime) * 1e6), used.ru_maxrss))


def _make_fork(tid_address: int) -> Callable[[], bool]:
    """Make the function that forks a child of the controller, which reaps it; it returns True in the forking process.
    With one thread no fork hooks run: cells follow each other as in a notebook, which does not fork."""

    def fork_cell() -> bool:
        if _fork_sibling is not None and tid_address and len(_threads) == 1:
            pid = _fork_sibling(tid_address)
            if pid is not None:
                return bool(pid)
        generator = _getstate()  # a hook would reseed it, and a cell's random.seed(1) must hold in the next
        middle = _fork()
        if middle:
            _waitpid(middle, 0)
            return True
        if _fork():
            _exit(0)
        _setstate(generator)
        return False

    return fork_cell


def _take_descriptors(fds: tuple[int, ...], channel_fd: int) -> None:
    """Move the streams to 0..3 and the channel into the base's place; close all but what earlier cells opened."""
    _dup2(fds[0], channel_fd, inheritable=False)  # first: a cell may have closed a stream, whose number this then has
    for target, fd in enumerate(fds[1:]):
        _dup2(fd, target, inheritable=target != interpreter.VALUE_FD)
    for fd in fds:
        if fd > interpreter.VALUE_FD and fd != channel_fd:
            _close(fd)


def _receive_cell(channel: socket.socket) -> tuple[bytes, int, int]:
    """Receive a cell's source, CPU limit and length of stdin."""
    received = channel.recv(_FIRST_READ_BYTES)
    while len(received) < RUN.size:
        received += _receive_some(channel, RUN.size - len(received))
    code_len, cpu_s, stdin_len = RUN.unpack_from(received)
    source = received[RUN.size :]
    if len(source) < code_len:
        whole = bytearray(source)
        while len(whole) < code_len:
            whole += _receive_some(channel, _min(code_len - len(whole), 1 << 20))
        source = bytes(whole)
    return source, cpu_s, stdin_len


def _receive_some(channel: socket.socket, num_bytes: int) -> bytes:
    piece = channel.recv(num_bytes)
    if not piece:
        _exit(0)
    return piece


def _reap() -> None:
    with _suppress(ChildProcessError):
        while _waitpid(-1, os.WNOHANG)[0]:
            pass
