"""Reads the processes of a slot from /proc in the host, and kills or renices them from outside.

A slot's init cannot do this: it has no /proc. What a program does to its own processes (a new session, a raised limit)
does not change what the host sees.
"""

import math
import os
import re
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PROC = Path("/proc")
LOW_NICE = 19
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_STATE, _PARENT, _USER_TICKS, _SYSTEM_TICKS, _START_TICKS = 0, 1, 11, 12, 19
"""Indices of fields in /proc/PID/stat, after the name."""
_USUAL_SOCKET_BYTES = 212_992
_EXACT_SHARE = 0.1
"""The maximum share of the host's time for exact measurements of one slot."""
_RESIDENT = re.compile(rb"^(?:RssAnon|RssShmem|VmSwap):\s+(\d+) kB", re.MULTILINE)
_OWN_PART = re.compile(rb"^(?:Pss_Anon|SwapPss):\s+(\d+) kB", re.MULTILINE)
_SHARED_MAPPING = re.compile(rb"^[0-9a-f]+-[0-9a-f]+ ...s .*$", re.MULTILINE)
_ANY_MAPPING = re.compile(rb"^([0-9a-f]+-[0-9a-f]+ ...[sp]) ", re.MULTILINE)
_PROPORTIONAL = re.compile(rb"^(?:Pss|SwapPss):\s+(\d+) kB", re.MULTILINE)


def children_of(pid: int, proc: Path = PROC) -> list[int]:
    """The children, from one file if the kernel has it, else from every process's parent."""
    threads = proc / str(pid) / "task"
    with suppress(OSError):
        return [int(word) for thread in threads.iterdir() for word in (thread / "children").read_text().split()]
    found = []
    with suppress(OSError):
        for process in proc.iterdir() if threads.exists() else ():
            with suppress(OSError):
                if process.name.isdigit() and int(_stat(proc, int(process.name))[_PARENT]) == pid:
                    found.append(int(process.name))
    return found


def below(pid: int) -> list[int]:
    """All descendants of the process."""
    found = []
    waiting = children_of(pid)
    while waiting:
        child = waiting.pop()
        found.append(child)
        waiting += children_of(child)
    return found


@dataclass(frozen=True, slots=True)
class Running:
    pid: int
    cpu_s: float


def running_below(pid: int, youngest_s: float = math.inf) -> Iterator[Running]:
    """The descendants that are not stopped (parked states of a session are) and that were started in the last
    `youngest_s` seconds."""
    since = (time.clock_gettime(time.CLOCK_BOOTTIME) - youngest_s) * _TICKS_PER_S - 1
    for child in below(pid):
        with suppress(OSError):  # it may end while we look
            stat = _stat(PROC, child)
            if stat[_STATE] not in "TtZX" and int(stat[_START_TICKS]) >= since:
                yield Running(child, (int(stat[_USER_TICKS]) + int(stat[_SYSTEM_TICKS])) / _TICKS_PER_S)


def kill(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def renice(pids: Iterable[int], nice: int) -> None:
    """Renice every thread of each process; forks inherit it."""
    for pid in pids:
        with suppress(OSError):
            for thread in (PROC / str(pid) / "task").iterdir():
                os.setpriority(os.PRIO_PROCESS, int(thread.name), nice)


class MemoryWatch:
    """Checks whether the processes of a slot together exceed a limit. A page that they share counts once. A socket
    counts as full, because the kernel does not tell how much data it holds; each process has one for free."""

    def __init__(self) -> None:
        self._exact_at = 0.0

    def exceeds(self, pid: int, limit_bytes: int) -> bool:
        processes = below(pid)
        resident = sum(_read_sum(child, "status", _RESIDENT) for child in processes)
        num_descriptors = sum(len(_descriptors(child)) for child in processes)
        if resident + num_descriptors * _socket_bytes() <= limit_bytes:
            return False
        started = time.monotonic()
        if started < self._exact_at:
            return False
        sockets = {link for child in processes for link in _links(child) if link.startswith("socket:")}
        in_sockets = max(0, len(sockets) - len(processes)) * _socket_bytes()
        is_above = sum(_own_bytes(child) for child in processes) + in_sockets > limit_bytes
        took_s = time.monotonic() - started
        self._exact_at = started + took_s + min(1.0, took_s / _EXACT_SHARE)
        return is_above


@cache
def _socket_bytes() -> int:
    """The maximum size of a socket's buffer."""
    try:
        return int((PROC / "sys/net/core/wmem_default").read_text())
    except OSError:
        return _USUAL_SOCKET_BYTES


def _descriptors(pid: int) -> list[str]:
    with suppress(OSError):
        return os.listdir(f"{PROC}/{pid}/fd")  # noqa: PTH208 - half the cost
    return []


def _links(pid: int) -> Iterator[str]:
    for name in _descriptors(pid):
        with suppress(OSError):
            yield os.readlink(f"{PROC}/{pid}/fd/{name}")  # noqa: PTH115 - half the cost


def _own_bytes(pid: int) -> int:
    """A process's share of anonymous and shared memory, without the template's image, which is mapped privately from a
    file."""
    try:
        own = _read_sum(pid, "smaps_rollup", _OWN_PART, suppressed=FileNotFoundError)
        if _SHARED_MAPPING.search((PROC / str(pid) / "maps").read_bytes()):
            parts = _ANY_MAPPING.split((PROC / str(pid) / "smaps").read_bytes())[1:]
            shared = b"".join(body for head, body in zip(parts[::2], parts[1::2], strict=True) if head.endswith(b"s"))
            own += _sum(_PROPORTIONAL, shared)
        return own
    except PermissionError:  # root without CAP_SYS_PTRACE: pages that a fork shares count for each process
        return _read_sum(pid, "status", _RESIDENT)
    except OSError:
        return 0


def _read_sum(pid: int, name: str, pattern: "re.Pattern[bytes]", suppressed: type[OSError] = OSError) -> int:
    with suppress(suppressed, ProcessLookupError):
        return _sum(pattern, (PROC / str(pid) / name).read_bytes())
    return 0


def _sum(pattern: "re.Pattern[bytes]", text: bytes) -> int:
    return sum(int(number) for number in pattern.findall(text)) << 10


def _stat(proc: Path, pid: int) -> list[str]:
    """The fields after the process name, which may hold any character."""
    return (proc / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
