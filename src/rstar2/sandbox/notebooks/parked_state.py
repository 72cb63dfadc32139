"""What the host sees in /proc of a parked state of a notebook: whether forks of it would share anything.

A state is looked at before a cell starts from it, so a look is short: each file is read once, with no more system calls
than that takes.
"""

import os
import signal
from contextlib import suppress
from dataclasses import dataclass

from rstar2.sandbox.slots import processes

_MEANINGLESS = sum(
    1 << number - 1 for number in (signal.SIGCHLD, signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
)
"""Signals of which a parked state may have some: its children end with their cell, and it was stopped more than once,
which is forgotten when it continues."""
_SETTABLE_FLAGS = os.O_NONBLOCK | os.O_APPEND | getattr(os, "O_ASYNC", 0) | getattr(os, "O_DIRECT", 0)
_READ_BYTES = 1 << 14


@dataclass(slots=True)
class ParkedState:
    """The process of one state of a tree."""

    inner_pid: int
    """Its id inside the tree's namespace."""
    inodes: tuple[int, ...]
    """The inodes of the descriptors that it was given."""
    pid: int = 0
    """Its id here; 0: it was not looked for."""

    def shares_nothing(self, init_pid: int, harmless: frozenset[bytes], *, is_newest: bool) -> bool:
        """Whether two forks of it would be independent: no memory is mapped as shared but the harmless mappings that it
        started with, no descriptor is open but those that it was given, no thread could open some later, and no signal
        waits for it, which another process would have sent. False if it cannot be seen. `is_newest`: nothing has run
        since it was parked that could have changed its descriptors."""
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
    """Lines of its memory map. OSError if it cannot be seen."""
    lines = _read(f"/proc/{pid}/maps").splitlines()
    # "START-END rwxs ...": the letter before the second space says whether the mapping is shared or private.
    return frozenset(line for line in lines if line[line.find(b" ") + 4 : line.find(b" ") + 5] != b"p")


def _pid_outside(init_pid: int, inner_pid: int) -> int:
    """The id that a child of a slot's init, known by its id inside, has here. OSError if it is gone."""
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
    """Whether all descriptors are of these pipes and sockets. With plain flags: as they were given, since the flags of
    an open pipe are seen by all that have it."""
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
    """ValueError if it is not there. The kernel escapes line ends in the name of a process, which comes first."""
    start = text.index(name) + len(name)
    return text[start : text.index(b"\n", start)].strip()


def _read(path: str) -> bytes:
    """Without the calls by which Python makes a file object."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        text = piece = os.read(fd, _READ_BYTES)
        while piece:
            piece = os.read(fd, _READ_BYTES)
            text += piece
        return text
    finally:
        os.close(fd)
