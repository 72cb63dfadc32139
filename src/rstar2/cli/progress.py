"""How a wait is shown on stderr: a live line at a terminal, and elsewhere a plain line every so often.

stdout is for results, so that `--json` can be read by programs.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LINE_PERIOD_S = 10.0
"""The time between two plain lines about the same wait."""


def minutes(seconds: float) -> str:
    whole_minutes, rest = divmod(int(seconds), 60)
    hours, whole_minutes = divmod(whole_minutes, 60)
    return f"{hours}:{whole_minutes:02d}:{rest:02d}" if hours else f"{whole_minutes}:{rest:02d}"


@contextmanager
def every_so_often(tick: Callable[[], None], period_s: float = LINE_PERIOD_S) -> Iterator[None]:
    """Calls `tick` from a separate thread while the block runs, however busy the block is."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(period_s):
            tick()

    thread = threading.Thread(target=run, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def counted(what: str, total: int, period_s: float = LINE_PERIOD_S) -> Iterator[Callable[[], None]]:
    """Shows how many of `total` are done. The caller calls the yielded function once for each."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from rstar2.cli.console import Console

    console = Console(stderr=True)
    if console.is_terminal:
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        with Progress(*columns, console=console) as bars:
            task = bars.add_task(what, total=total)
            yield lambda: bars.advance(task)
        return
    num_done, started_s = 0, time.monotonic()

    def advance() -> None:
        nonlocal num_done
        num_done += 1

    def tick() -> None:
        elapsed = minutes(time.monotonic() - started_s)
        console.print(f"{what}: {num_done} of {total} done, {elapsed}", markup=False, highlight=False, soft_wrap=True)

    tick()
    with every_so_often(tick, period_s):
        yield advance


@contextmanager
def waiting(what: str, period_s: float = LINE_PERIOD_S) -> Iterator[None]:
    """Shows what is waited for, and how long by now."""
    from rstar2.cli.console import Console

    console = Console(stderr=True)
    if console.is_terminal:
        with console.status(what):
            yield
        return
    started_s = time.monotonic()

    def tick() -> None:
        elapsed = minutes(time.monotonic() - started_s)
        console.print(f"{what}, {elapsed}", markup=False, highlight=False, soft_wrap=True)

    tick()
    with every_so_often(tick, period_s):
        yield
