"""Decides whether a program at its wall limit has used its time, or was starved: kept waiting for a core by this
machine.

The wall limit is for programs that sleep, wait or compute. Time in which a program was runnable and did not run does
not count. So a program has used its time once its tasks together have used the limit in CPU time, or the limit has
passed without counting the time that they waited for a core. In any case it is stopped at a bound (`Limits.longest_s`).
If it has hardly run by then, that is an infrastructure fault.

The times come from /proc. Where the kernel does not count the waits (no schedstat), a runnable task that rarely gave up
its core voluntarily counts as waiting whenever it did not run.
"""

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rstar2.sandbox.slots.processes import PROC, children_of

STEP_S = 0.02
"""The minimum time between two checks: longer than a tick of the kernel clock that counts CPU time."""

ENOUGH_SHARE = 0.25
"""A share of the wall limit, in CPU time: a program that used less by the bound has hardly run. Programs that crowd
each other out, as endless loops do, have used more, and are stopped as timeouts."""


_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_MAX_SLEEPS_PER_S = 10
_STATE, _USER_TICKS, _SYSTEM_TICKS, _START_TICKS = 0, 11, 12, 19
"""Indices of fields in /proc/PID/stat, after the name."""


@dataclass(frozen=True, slots=True)
class ProgramThread:
    """One thread of a program, by the kernel's counts."""

    id: int
    cpu_s: float
    delay_s: float
    """How long the thread was runnable without running, not counting its current wait."""
    is_runnable: bool


class WallClock:
    """Decides, each time that a slot asks, how long its program may go on."""

    def __init__(self, wall_s: float, bound_s: float) -> None:
        self._wall_s = wall_s
        self.bound_s = bound_s
        self._in_doubt: frozenset[ProgramThread] | None = None
        self.had_s = 0.0
        """The time that the program had used at the last check."""
        self.is_starved = False
        """Whether the program was starved at the last check; stays true if the bound then ended it."""

    def more_s(self, elapsed_s: float, tasks: Iterable[ProgramThread]) -> float:
        """How much longer the program may run before the next check; 0: stop it."""
        seen = frozenset(tasks)
        cpu_s = sum(task.cpu_s for task in seen)
        self.had_s = max(cpu_s, elapsed_s - sum(task.delay_s for task in seen))
        left_s = self._wall_s - self.had_s
        self.is_starved = left_s > 0
        if self.is_starved:
            self._in_doubt = None
        elif cpu_s < self._wall_s:
            # The current wait of a task may be long and is not counted yet: check again until each task has run.
            before = self._in_doubt
            runnable = frozenset(task for task in seen if task.is_runnable)
            self._in_doubt = runnable if before is None else runnable & before
            self.is_starved = bool(self._in_doubt)
            if self.is_starved and before is not None:
                self.had_s = cpu_s
        return max(0.0, min(max(left_s, STEP_S), self.bound_s - elapsed_s)) if self.is_starved else 0.0


def tasks_below(pid: int, proc: Path = PROC) -> list[ProgramThread]:
    """The tasks of all descendants of `pid` that can be read and are not stopped (parked states of a session are)."""
    found = []
    for child in children_of(pid, proc):
        with suppress(OSError):  # it may end while we look
            if _stat(proc / str(child))[_STATE] not in "Tt":
                found += list(_tasks_of(child, proc))
                found += tasks_below(child, proc)
    return found


def _tasks_of(pid: int, proc: Path) -> Iterator[ProgramThread]:
    for folder in (proc / str(pid) / "task").iterdir():
        with suppress(OSError):
            yield _read(folder)


def _read(folder: Path) -> ProgramThread:
    stat = _stat(folder)
    is_runnable = stat[_STATE] == "R"
    ticks_s = (int(stat[_USER_TICKS]) + int(stat[_SYSTEM_TICKS])) / _TICKS_PER_S
    num_turns = 0
    with suppress(FileNotFoundError):
        cpu_ns, delay_ns, num_turns = map(int, (folder / "schedstat").read_text().split())
    if num_turns or not ticks_s:
        cpu_s, delay_s = (cpu_ns / 1e9, delay_ns / 1e9) if num_turns else (0.0, 0.0)
        return ProgramThread(int(folder.name), cpu_s, delay_s, is_runnable)
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - int(stat[_START_TICKS]) / _TICKS_PER_S
    never_slept = is_runnable and _num_sleeps(folder) <= _MAX_SLEEPS_PER_S * max(1.0, age_s)
    return ProgramThread(int(folder.name), ticks_s, max(0.0, age_s - ticks_s) if never_slept else 0.0, is_runnable)


def _stat(folder: Path) -> list[str]:
    """The fields of a process or a task, without its name, which may contain any character."""
    return (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()


def _num_sleeps(folder: Path) -> int:
    for line in (folder / "status").read_text(errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name == "voluntary_ctxt_switches":
            return int(value)
    return 0
