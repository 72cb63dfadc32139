"""Traces written down beside the rollouts, not between them: a disk may take as long for a trace as its rollout took.

Invariant: traces are written in the order in which they were given; whoever has waited for `settled` finds all of them
in their files, or hears why they could not be written. A kill of the process loses those of the last moment, which are
rolled out again.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import Self

from rstar2.records import Trace


class TraceKeeper:
    """Used as a context: at its end everything is written."""

    def __init__(self, write: Callable[[Trace], None]) -> None:
        self._write = write
        self._traces: deque[Trace] = deque()
        self._changed = threading.Condition()
        self._is_over = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="rstar2-traces", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        self._thread.join()

    def keep(self, trace: Trace) -> None:
        self._raise()
        with self._changed:
            self._traces.append(trace)
            self._changed.notify_all()

    async def settled(self) -> None:
        """Returns when all that was given is written; raises what writing raised."""
        await asyncio.to_thread(self._wait)
        self._raise()

    def _wait(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._traces or self._error is not None)

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        while self._error is None:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._traces) or self._is_over)
                if not self._traces:
                    return
                trace = self._traces[0]
            try:
                self._write(trace)
            except BaseException as error:
                self._error = error
            with self._changed:
                self._traces.popleft()
                self._changed.notify_all()
