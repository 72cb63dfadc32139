"""Whether a program that is at its wall limit has had its time, or was kept waiting for a core by this machine.

The wall limit is for programs that sleep, wait or compute. Time in which a program could run and was not run is the
machine's doing and does not count. So a program has had its time once its tasks together have had the limit in CPU
time, or the limit has passed but for the time that they waited for a core. Whatever it does, it is stopped at a bound
(`Limits.longest_s`). If it has hardly been run by then, that is an infrastructure fault.
"""

from collections.abc import Iterable
from dataclasses import dataclass

STEP_S = 0.02
"""The least time between two looks: longer than a tick of the kernel's clock, by which it counts CPU time."""

ENOUGH_SHARE = 0.25
"""Of the wall limit, in CPU time: whoever has had less by the bound has hardly been run. Programs that crowd each other
out, as endless loops do, have had more, and are stopped for what they do."""


@dataclass(frozen=True, slots=True)
class Task:
    """One thread of a program, by the kernel's counts."""

    id: int
    cpu_s: float
    delay_s: float
    """How long it could run and was not run; without the wait that it is in, which is added when that ends."""
    is_runnable: bool


class WallClock:
    """Decides for one execution, each time that its slot asks."""

    def __init__(self, wall_s: float, bound_s: float) -> None:
        self._wall_s = wall_s
        self.bound_s = bound_s
        self._in_doubt: frozenset[Task] | None = None
        self.had_s = 0.0
        """Of its time, by the last look."""
        self.is_starved = False
        """By the last look; stays so where the bound then ended it."""

    def more_s(self, elapsed_s: float, tasks: Iterable[Task]) -> float:
        """How much longer it may run before the next look; 0: stop it."""
        seen = frozenset(tasks)
        cpu_s = sum(task.cpu_s for task in seen)
        self.had_s = max(cpu_s, elapsed_s - sum(task.delay_s for task in seen))
        left_s = self._wall_s - self.had_s
        self.is_starved = left_s > 0
        if self.is_starved:
            self._in_doubt = None
        elif cpu_s < self._wall_s:
            # The wait that a task is in may be long and is not counted yet: look again until each has had a turn.
            before = self._in_doubt
            runnable = frozenset(task for task in seen if task.is_runnable)
            self._in_doubt = runnable if before is None else runnable & before
            self.is_starved = bool(self._in_doubt)
            if self.is_starved and before is not None:
                self.had_s = cpu_s
        return max(0.0, min(max(left_s, STEP_S), self.bound_s - elapsed_s)) if self.is_starved else 0.0
