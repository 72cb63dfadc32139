"""Ctrl-C, and the SIGTERM of Slurm, Kubernetes and systemd: both give a verb the time to save what it has.

The exit code is 128 and the signal's number: 130 or 143.
"""

import asyncio
import signal
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import typer

from rstar2.cli.output import note


class Interrupts:
    """The first signal cancels what runs, a second Ctrl-C ends it at once. A second SIGTERM is the same one: a driver
    gets it from its supervisor, too."""

    def __init__(self) -> None:
        self._signal: int | None = None
        self._running: asyncio.Task[None] | None = None

    @contextmanager
    def watched(self) -> Iterator[None]:
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        self._watch()
        try:
            yield
        except KeyboardInterrupt:
            number = signal.Signals(self._signal or signal.SIGINT)
            note(f"interrupted by {number.name}")
            raise typer.Exit(128 + number) from None
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """KeyboardInterrupt when a signal has ended it."""
        self._watch()  # Ray has installed its own handler there.

        async def main() -> None:
            self._running = asyncio.current_task()
            try:
                await work
            finally:
                self._running = None

        try:
            asyncio.run(main())
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None

    def _watch(self) -> None:
        signal.signal(signal.SIGTERM, self._take)
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # a shell's background job is not for Ctrl-C
            signal.signal(signal.SIGINT, self._take)

    def _take(self, number: int, _frame: FrameType | None) -> None:
        is_first = self._signal is None
        self._signal = self._signal or number
        if self._running is not None and is_first:
            self._running.cancel()
            self._running.get_loop().call_soon_threadsafe(lambda: None)  # it may be asleep
        elif is_first or number == signal.SIGINT:
            raise KeyboardInterrupt
