"""Reads from /proc whether forks of a notebook's parked state would share anything.

A state is checked before a cell starts from it, so the check is fast: it reads each file once, with as few system calls
as possible.
"""

import os
import signal
from contextlib import suppress
from dataclasses import dataclass

from rstar2.sandbox.slots import processes

_MEANINGLESS = sum(
    1 << number - 1 for number in (signal.SIGCHLD, signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
)
"""Signals that may be pending for a parked state: its children end with their cell, and it was stopped more than once,
which is forgotten when it continues."""
_SETTABLE_FLAGS = os.O_NONBLOCK | os.O_APPEND | getattr(os, "O_ASYNC", 0) | getattr(os, "O_DIRECT", 0)
_READ_BYTES = 1 << 14


@dataclass(slots=True)
class ParkedState:
    """The process of one state of a tree."""

    inner_pid: int
    """The process id inside the tree's namespace."""
    inodes: tuple[int, ...]
    """The inodes of the descriptors that the process was given."""
    pid: int = 0
    """The process id on the host; 0: not looked up yet."""

    def shares_nothing(self, init_pid: int, harmless: frozenset[bytes], *, is_newest: bool) -> bool:
        """Whether two forks would be independent: the state has no shared mappings beyond the harmless ones from its
        start, no descriptors beyond those it was given, no thread that could open one, and no pending signal, which
        another process would have sent. False if /proc is unreadable. `is_newest`: nothing has run since it was parked
        that could have changed its descriptors."""
        try:
            self.pid = self.pid or _pid_outside(init_pid, self.inner_pid)
            status = _status(self.pid)
            return (
                _inner_pid(status) == self.inner_pid  # and not a later process with the same id here
                and _field(status, b"\nThreads:") == b"1"
                and not (int(_field(status, b"\nSigPnd:"), 16) | int(_field(status, b"\nShdPnd:"), 16)) & ~_MEANINGLESS
                and _has_only(self.pid, self.inodes, with_plain_flags=not is_newest)
                and shared_mappings(self.pid) <= harmless
            )
        except (OSError, ValueError):
            return False


def shared_mappings(pid: int) -> frozenset[bytes]:
    """The shared mappings of a process. OSError if unreadable."""
    lines = _read(f"/proc/{pid}/maps").splitlines()
    # "START-END rwxs ...": the letter before the second space says whether the mapping is shared or private.
    return frozenset(line for line in lines if line[line.find(b" ") + 4 : line.find(b" ") + 5] != b"p")


def _pid_outside(init_pid: int, inner_pid: int) -> int:
    """The host's process id for a child of a slot's init, given its id inside the namespace. OSError if it is gone."""
    with suppress(OSError):  # most often the newest; init has one thread
        newest = _read(f"/proc/{init_pid}/task/{init_pid}/children").split()[-1:]
        if newest and _inner_pid(_status(int(newest[0]))) == inner_pid:
            return int(newest[0])
    for child in reversed(processes.children_of(init_pid)):
        with suppress(OSError):
            if _inner_pid(_status(child)) == inner_pid:
                return child
    raise ProcessLookupError


def _has_only(pid: int, inodes: tuple[int, ...], *, with_plain_flags: bool) -> bool:
    """Whether all open descriptors are these pipes and sockets. `with_plain_flags` also requires that no flag was set,
    since all holders of an open pipe see its flags."""
    known = {f"{kind}:[{inode}]" for kind in ("pipe", "socket") for inode in inodes}
    for name in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208 - half the cost
        if os.readlink(f"/proc/{pid}/fd/{name}") not in known:  # noqa: PTH115 - half the cost
            return False
        if with_plain_flags:
            flags = _field(b"\n" + _read(f"/proc/{pid}/fdinfo/{name}"), b"\nflags:")
            if int(flags, 8) & _SETTABLE_FLAGS:
                return False
    return True


def _status(pid: int) -> bytes:
    return _read(f"/proc/{pid}/status")


def _inner_pid(status: bytes) -> int:
    return int(_field(status, b"\nNSpid:").split()[-1])


def _field(text: bytes, name: bytes) -> bytes:
    """The value of a field; ValueError if it is missing. The kernel escapes newlines in the process name, which comes
    first."""
    start = text.index(name) + len(name)
    return text[start : text.index(b"\n", start)].strip()


def _read(path: str) -> bytes:
    """Read a file without the extra system calls of Python's file objects."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        text = piece = os.read(fd, _READ_BYTES)
        while piece:
            piece = os.read(fd, _READ_BYTES)
            text += piece
        return text
    finally:
        os.close(fd)
