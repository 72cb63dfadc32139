"""The tasks below a process, and how long each had a core or waited for one, as /proc tells.

Where the kernel does not count the waits (no schedstat), a task that can run and hardly ever gave its core up of its
own accord is taken to have waited whenever it was not run. `proc` is where to look; tests give a folder like it.
"""

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from rstar2.sandbox.slots.starvation import Task

_PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_MAX_SLEEPS_PER_S = 10
_STATE, _PARENT, _USER_TICKS, _SYSTEM_TICKS, _START_TICKS = 0, 1, 11, 12, 19
"""In /proc/PID/stat, after the name."""


def tasks_below(pid: int, proc: Path = _PROC) -> list[Task]:
    """Of all processes that descend from `pid`, as far as they can be looked at, but for stopped ones: so a session
    parks its states."""
    found = []
    for child in _children(pid, proc):
        with suppress(OSError):  # it may end while we look
            if _stat(proc / str(child))[_STATE] not in "Tt":
                found += list(_tasks_of(child, proc))
                found += tasks_below(child, proc)
    return found


def _children(pid: int, proc: Path) -> list[int]:
    """In one file where the kernel has it; else by asking every process for its parent."""
    threads = proc / str(pid) / "task"
    with suppress(OSError):
        return [int(word) for thread in threads.iterdir() for word in (thread / "children").read_text().split()]
    found = []
    with suppress(OSError):
        for process in proc.iterdir() if threads.exists() else ():
            with suppress(OSError):
                if process.name.isdigit() and int(_stat(process)[_PARENT]) == pid:
                    found.append(int(process.name))
    return found


def _tasks_of(pid: int, proc: Path) -> Iterator[Task]:
    for folder in (proc / str(pid) / "task").iterdir():
        with suppress(OSError):
            yield _read(folder)


def _read(folder: Path) -> Task:
    stat = _stat(folder)
    is_runnable = stat[_STATE] == "R"
    ticks_s = (int(stat[_USER_TICKS]) + int(stat[_SYSTEM_TICKS])) / _TICKS_PER_S
    num_turns = 0
    with suppress(FileNotFoundError):
        cpu_ns, delay_ns, num_turns = map(int, (folder / "schedstat").read_text().split())
    if num_turns or not ticks_s:
        cpu_s, delay_s = (cpu_ns / 1e9, delay_ns / 1e9) if num_turns else (0.0, 0.0)
        return Task(int(folder.name), cpu_s, delay_s, is_runnable)
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - int(stat[_START_TICKS]) / _TICKS_PER_S
    never_slept = is_runnable and _num_sleeps(folder) <= _MAX_SLEEPS_PER_S * max(1.0, age_s)
    return Task(int(folder.name), ticks_s, max(0.0, age_s - ticks_s) if never_slept else 0.0, is_runnable)


def _stat(folder: Path) -> list[str]:
    """Of a process or a task; its name, which may hold anything, is left out."""
    return (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()


def _num_sleeps(folder: Path) -> int:
    for line in (folder / "status").read_text(errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name == "voluntary_ctxt_switches":
            return int(value)
    return 0
