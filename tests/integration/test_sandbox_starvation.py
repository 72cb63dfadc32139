"""A program that this machine does not run is not blamed for it; one that sleeps or never ends is stopped as ever."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rstar2.sandbox import ExecutionStatus, Limits
from rstar2.sandbox.isolation import guarantees

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timing,  # what a kernel gives to whom among many is what is measured here
    pytest.mark.skipif(sys.platform != "linux", reason="the sandbox needs Linux"),
]
S = ExecutionStatus
RUNNER = Path(__file__).with_name("sandbox_starved_runner.py")
DEADLINE_S = 240

WALL_S = 0.75
BURN = "import time\ndef burn(cpu_s):\n    while time.thread_time() < cpu_s: pass\n"
COMPUTE = BURN + "burn(0.3)\nprint('done')"
IN_A_CHILD = BURN + (
    "import os\nif (pid := os.fork()) == 0:\n    burn(0.3)\n    os._exit(0)\nos.waitpid(pid, 0)\nprint('done')"
)
IN_THREADS = BURN + (
    "import threading\nthreads = [threading.Thread(target=burn, args=(0.15,)) for _ in range(2)]\n"
    "for thread in threads: thread.start()\nfor thread in threads: thread.join()\nprint('done')"
)
SLEEP = "import time\ntime.sleep(60)"
SLEEP_BESIDE_SPINNERS = (
    "import os, time\nfor _ in range(4):\n    if os.fork() == 0:\n        while True: pass\n" + SLEEP
)
ENDLESS = "while True: pass"
HOPELESS_LOOPS = 80
"""They leave a program half of the CPU time with which it would count as having run."""

CASES: dict[str, dict[str, Any]] = {
    "compute": {"code": COMPUTE, "wall_s": WALL_S, "num_loops": 6},
    "in a child": {"code": IN_A_CHILD, "wall_s": WALL_S, "num_loops": 6},
    "in threads": {"code": IN_THREADS, "wall_s": WALL_S, "num_loops": 6},
    "sleep": {"code": SLEEP, "wall_s": WALL_S, "num_loops": 6},
    "cheat": {"code": SLEEP_BESIDE_SPINNERS, "wall_s": WALL_S, "num_loops": 6},
    "endless": {"code": ENDLESS, "wall_s": WALL_S, "num_loops": 2},
    "hopeless": {"code": BURN + "burn(5)", "wall_s": 0.3, "num_loops": HOPELESS_LOOPS},
    "after": {"code": "print('still there')", "wall_s": 10.0, "num_loops": 0},
}


def run(cases: dict[str, dict[str, Any]], **mode: Any) -> dict[str, dict[str, Any]]:
    if mode["user"] and not guarantees.detect().is_privileged:
        pytest.skip("root alone can become another user")
    command = [sys.executable, str(RUNNER), json.dumps(mode)]
    ended = subprocess.run(command, input=json.dumps(cases), capture_output=True, text=True, timeout=DEADLINE_S)
    assert ended.returncode == 0, ended.stderr
    found: dict[str, dict[str, Any]] = json.loads(ended.stdout)
    return found


@pytest.mark.parametrize("door", ["local", "session"])
def test_beside_busy_loops(door: str) -> None:
    found = run(CASES, fast=True, user=False, door=door)
    check(found)
    longest_s = Limits(wall_s=WALL_S).longest_s
    for name in ("in a child", "in threads"):
        assert (found[name]["status"], found[name]["stdout"]) == (S.OK, "done\n"), (name, found[name])
    assert found["endless"]["status"] == S.TIMEOUT, found["endless"]
    assert found["endless"]["cpu_s"] > 0.8 * WALL_S, "stopped before it had its time"
    assert found["cheat"]["status"] in (S.TIMEOUT, S.INFRASTRUCTURE)
    assert found["cheat"]["wall_s"] < longest_s * 1.5, "the bound is hard"


@pytest.mark.parametrize(
    ("fast", "user", "door"),
    [
        (False, False, "local"),
        (True, True, "local"),
        (False, True, "local"),
        (True, True, "session"),
        (True, False, "http"),
    ],
)
def test_the_same_holds_on_each_path_and_through_each_door(fast: bool, user: bool, door: str) -> None:
    check(
        run({name: CASES[name] for name in ("compute", "sleep", "hopeless", "after")}, fast=fast, user=user, door=door)
    )


def check(found: dict[str, dict[str, Any]]) -> None:
    assert (found["compute"]["status"], found["compute"]["stdout"]) == (S.OK, "done\n"), found["compute"]
    assert found["compute"]["wall_s"] > WALL_S, "it was not starved: the loops did not hold the core"
    assert found["sleep"]["status"] == S.TIMEOUT, found["sleep"]
    assert found["sleep"]["wall_s"] < Limits(wall_s=WALL_S).longest_s / 2, "a sleeper gains nothing"
    assert found["hopeless"]["status"] == S.INFRASTRUCTURE, found["hopeless"]
    assert "too busy" in found["hopeless"]["message"]
    assert (found["after"]["status"], found["after"]["stdout"]) == (S.OK, "still there\n"), "the worker is as it was"


@contextlib.contextmanager
def cpu_group() -> Iterator[Path]:
    """In which a low priority counts against everybody in it, whatever their session."""
    roots = [
        Path(line.split(" ")[1])
        for line in Path("/proc/self/mounts").read_text().splitlines()
        if line.split(" ")[2] == "cgroup" and "cpu" in line.split(" ")[3].split(",")
    ]
    group = next((root / f"rstar2-test-{os.getpid()}" for root in roots), Path("/nowhere"))
    try:
        group.mkdir()
    except OSError:
        pytest.skip("no group with a share of the cores can be made here")
    try:
        yield group
    finally:
        group.rmdir()


@pytest.mark.parametrize("user", [False, True], ids=["root", "user"])
@pytest.mark.parametrize("fast", [True, False], ids=["fast", "python"])
def test_a_program_that_its_low_share_starves_is_begun_again_at_full_share(fast: bool, user: bool) -> None:
    cases = {name: CASES[name] for name in ("compute", "sleep")}
    with cpu_group() as group:
        found = run(cases, fast=fast, user=user, door="local", cpu_group=str(group))
    assert (found["compute"]["status"], found["compute"]["num_attempts"]) == (S.OK, 2), found["compute"]
    assert (found["sleep"]["status"], found["sleep"]["num_attempts"]) == (S.TIMEOUT, 1), found["sleep"]
