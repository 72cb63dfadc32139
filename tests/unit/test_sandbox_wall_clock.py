"""When a program at its wall limit may go on, and what /proc says of its tasks."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rstar2.sandbox.slots.starvation import STEP_S, ProgramThread, WallClock, tasks_below

pytestmark = [pytest.mark.unit, pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")]
WALL_S, BOUND_S = 1.0, 10.0


def asleep(cpu_s: float = 0.0, delay_s: float = 0.0, number: int = 1) -> ProgramThread:
    return ProgramThread(number, cpu_s, delay_s, is_runnable=False)


def runnable(cpu_s: float = 0.0, delay_s: float = 0.0, number: int = 1) -> ProgramThread:
    return ProgramThread(number, cpu_s, delay_s, is_runnable=True)


@pytest.mark.parametrize(
    ("tasks", "more_s"),
    [
        ([], 0),  # nothing is known of it
        ([asleep()], 0),
        ([asleep(cpu_s=0.3)], 0),  # it computed, then slept
        ([runnable(cpu_s=1.0)], 0),  # it never ends
        ([runnable(cpu_s=0.1, delay_s=0.9)], 0.9),
        ([asleep(cpu_s=0.1, delay_s=0.5)], 0.5),  # it sleeps now, and was held up before
        ([asleep(), runnable(cpu_s=0.1, delay_s=0.9, number=2)], 0.9),  # it waits for its child
        ([runnable(cpu_s=0.1, delay_s=0.9, number=i) for i in range(4)], 0.6),
        ([runnable(cpu_s=0.25, delay_s=0.75, number=i) for i in range(4)], 0),  # its own threads held each other up
        ([asleep(delay_s=0.001)], STEP_S),
    ],
)
def test_the_first_look(tasks: list[ProgramThread], more_s: float) -> None:
    clock = WallClock(WALL_S, BOUND_S)
    assert clock.more_s(1.0, tasks) == pytest.approx(more_s)
    assert clock.is_starved == bool(more_s)


def test_an_endless_loop_gets_its_time_at_whatever_share() -> None:
    clock, elapsed_s, share = WallClock(WALL_S, BOUND_S), WALL_S, 0.2
    while more_s := clock.more_s(elapsed_s, [runnable(share * elapsed_s, (1 - share) * elapsed_s)]):
        elapsed_s += more_s
    assert not clock.is_starved
    assert WALL_S <= share * elapsed_s < WALL_S + 2 * STEP_S


def test_at_the_bound_it_is_stopped_and_starved() -> None:
    clock, elapsed_s, share = WallClock(WALL_S, BOUND_S), WALL_S, 0.05
    while more_s := clock.more_s(elapsed_s, [runnable(share * elapsed_s, (1 - share) * elapsed_s)]):
        elapsed_s += more_s
    assert elapsed_s == pytest.approx(BOUND_S)
    assert clock.is_starved


def test_a_wait_that_is_not_counted_yet_is_waited_for() -> None:
    """The kernel adds a wait when it ends: until then a starved task looks like one that slept."""
    clock = WallClock(WALL_S, BOUND_S)
    waiting = runnable(cpu_s=0.1)
    for look in range(3):
        assert clock.more_s(WALL_S + look * STEP_S, [waiting]) == STEP_S
    assert clock.had_s == pytest.approx(0.1)
    assert clock.more_s(1.06, [runnable(cpu_s=0.11, delay_s=0.95)]) == pytest.approx(0.89)


def test_a_sleeper_that_wakes_for_each_look_is_stopped_at_the_second() -> None:
    clock = WallClock(WALL_S, BOUND_S)
    assert clock.more_s(1.0, [runnable(cpu_s=0.01)]) == STEP_S
    assert clock.more_s(1.02, [runnable(cpu_s=0.02), runnable(number=2)]) == 0
    assert not clock.is_starved


# ---- /proc ----


def test_the_tasks_of_real_processes() -> None:
    """A child that computes, its child that is stopped, and a thread of the first."""
    code = (
        "import os, threading, time\n"
        "if (pid := os.fork()) == 0:\n    time.sleep(99)\n"
        "os.kill(pid, 19)\nos.waitpid(pid, os.WUNTRACED)\n"
        "threading.Thread(target=time.sleep, args=(99,), daemon=True).start()\n"
        "while time.process_time() < 0.05: pass\n"
        "print(pid, flush=True)\nwhile True: pass\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, process_group=0) as child:
        try:
            assert child.stdout is not None
            stopped = int(child.stdout.readline())
            tasks = {task.id: task for task in tasks_below(os.getpid())}
            (thread,) = set(map(int, os.listdir(f"/proc/{child.pid}/task"))) - {child.pid}  # noqa: PTH208
        finally:
            os.killpg(child.pid, signal.SIGKILL)
    assert tasks[child.pid].cpu_s > 0.03
    assert tasks[child.pid].is_runnable
    assert tasks[thread].cpu_s < tasks[child.pid].cpu_s
    assert not tasks[thread].is_runnable
    assert stopped not in tasks


def add_process(
    proc: Path, pid: int, parent: int, *, state: str = "R", cpu_s: float, age_s: float, num_sleeps: int
) -> None:
    """As a kernel without schedstat and without lists of children shows it."""
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    started = int((time.clock_gettime(time.CLOCK_BOOTTIME) - age_s) * ticks_per_s)
    after_name = [state, str(parent), *"0" * 9, str(int(cpu_s * ticks_per_s)), "0", *"0" * 6, str(started), "0"]
    for folder in (proc / str(pid), proc / str(pid) / "task" / str(pid)):
        folder.mkdir(parents=True)
        (folder / "stat").write_text(f"{pid} (a ) name) {' '.join(after_name)}\n")
        (folder / "status").write_text(f"Name:\tx\nvoluntary_ctxt_switches:\t{num_sleeps}\n")


def test_without_schedstat_a_task_that_never_slept_was_held_up(tmp_path: Path) -> None:
    add_process(tmp_path, 1, 0, cpu_s=0, age_s=100, num_sleeps=0)
    add_process(tmp_path, 2, 1, cpu_s=0.5, age_s=10, num_sleeps=3)
    add_process(tmp_path, 3, 2, cpu_s=0.5, age_s=10, num_sleeps=5000)
    add_process(tmp_path, 4, 2, state="S", cpu_s=0.5, age_s=10, num_sleeps=1)
    add_process(tmp_path, 5, 2, state="T", cpu_s=0.5, age_s=10, num_sleeps=1)
    (tmp_path / "2/task/2/schedstat").write_text("0 0 0\n")  # compiled in, and not switched on
    tasks = {task.id: task for task in tasks_below(1, tmp_path)}
    assert set(tasks) == {2, 3, 4}
    assert tasks[2].delay_s == pytest.approx(9.5, abs=1)
    assert [tasks[number].delay_s for number in (3, 4)] == [0, 0]
    assert {task.cpu_s for task in tasks.values()} == {0.5}


def test_a_process_that_is_gone_has_no_tasks(tmp_path: Path) -> None:
    assert tasks_below(77, tmp_path) == []
