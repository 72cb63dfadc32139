"""How downloads and conversions report their progress, independent of the display."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from rstar2.models.card import file_sizes

POLL_INTERVAL_S = 0.25

Advance = Callable[[int], None]
"""Called with the bytes done so far, not with their increase."""


class FetchProgress(Protocol):
    def note(self, message: str) -> None:
        """One line that a person should read."""

    def stage(self, title: str, total_bytes: int | None = None) -> AbstractContextManager[Advance]:
        """A stage of the work; its size is None if it is unknown."""


class SilentProgress:
    """Shows nothing."""

    def note(self, message: str) -> None:
        pass

    @contextmanager
    def stage(self, title: str, total_bytes: int | None = None) -> Iterator[Advance]:  # noqa: ARG002
        yield lambda _num_bytes: None


@contextmanager
def following_size(folder: Path, advance: Advance) -> Iterator[None]:
    """Reports how much has arrived in a folder, whichever program fills it."""
    finished = threading.Event()

    def follow() -> None:
        while not finished.wait(POLL_INTERVAL_S):
            try:
                advance(sum(file_sizes(folder).values()))
            except FileNotFoundError:
                continue  # A temporary file went away between listing and measuring.

    follower = threading.Thread(target=follow, daemon=True, name=f"following {folder.name}")
    follower.start()
    try:
        yield
    finally:
        finished.set()
        follower.join()
