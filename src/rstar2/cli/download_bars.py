"""Downloads as rich bars on stderr, so that stdout holds nothing but the result."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rstar2.cli.output import note

if TYPE_CHECKING:
    from rstar2.models.progress import Advance


class DownloadBars:
    """Satisfies `rstar2.models.progress.Progress`."""

    def note(self, message: str) -> None:
        note(message)

    @contextmanager
    def stage(self, title: str, total_bytes: int | None = None) -> Iterator["Advance"]:
        from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        from rstar2.cli.console import Console

        columns = [SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()]
        if total_bytes is not None:
            columns.append(DownloadColumn())
        with Progress(*columns, console=Console(stderr=True)) as bars:
            task = bars.add_task(title, total=total_bytes)
            yield lambda num_bytes: bars.update(task, completed=num_bytes)
            bars.update(task, total=total_bytes or 1, completed=total_bytes or 1)
