"""Restarts a driver that was killed, which then resumes its run.

The driver is a child of this process, which does nothing but wait for it. If the driver exits by itself, with success
or an error, this process ends too; only after a signal from outside is the driver restarted.
"""

import ctypes
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rstar2.records import RunView
from rstar2.records.run_layout import RunLayout


def num_checkpoints(run: Path) -> int:
    """How many checkpoints were ever saved, including those before a resume; 0 for a folder that is no run yet."""
    if not RunLayout(run).info.is_file():
        return 0
    return sum(1 for event in RunView(run).events() if event.kind == "checkpoint")


MAX_DEATHS_WITHOUT_PROGRESS = 3
_ASKED_FOR = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_COMMAND = (sys.executable, "-m", "rstar2")
_PR_SET_PDEATHSIG = 1


def supervise(begin: Sequence[str], resume: Sequence[str], run: Path, report: Callable[[str], None]) -> int:
    """Runs the driver until it exits by itself, and returns its exit code. `begin` and `resume` are arguments of
    `rstar2`."""
    arguments, num_deaths, last_seen = begin, 0, 0
    while True:
        code = _run(arguments)
        if code >= 0 or -code in _ASKED_FOR:
            return code if code >= 0 else 128 - code
        name = signal.Signals(-code).name
        seen = num_checkpoints(run)
        num_deaths = 1 if seen > last_seen else num_deaths + 1
        last_seen = seen
        if num_deaths == MAX_DEATHS_WITHOUT_PROGRESS:
            report(f"the driver was ended by {name} {num_deaths} times without a checkpoint in between: giving up")
            return 128 - code
        has_begun = RunLayout(run).info.is_file()
        report(f"the driver was ended by {name}: " + ("it resumes its run" if has_begun else "it starts again"))
        arguments = resume if has_begun else begin


def _run(arguments: Sequence[str]) -> int:
    """Runs one driver. Ctrl-C reaches every process of the terminal: the driver decides what it means, and this one
    waits."""
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with subprocess.Popen([*_COMMAND, *arguments], preexec_fn=_as_child) as process:
            stop = signal.signal(signal.SIGTERM, lambda number, _frame: process.send_signal(number))
            try:
                return process.wait()
            finally:
                signal.signal(signal.SIGTERM, stop)
    finally:
        signal.signal(signal.SIGINT, previous)


def _as_child() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
