"""Traces written down beside the rollouts, not between them.

A thread does it; but an interpreter runs one thread at a time, and rollouts that end by the thousand in a second wait
for each trace that is written among them. So traces lie for up to `HOLD_S`, unless somebody has time for them now.

Invariant: traces are written in the order in which they were given; whoever has waited for `settled` finds what was
given before in its files, or hears why it could not be written. A kill of the process loses those of the last moments,
which are rolled out again.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import Self

from rstar2.records import Trace

HOLD_S = 2.0
"""What a kill may cost of the rollouts. Steps of a small model on a GPU are hardly longer, large ones take minutes."""


class TraceKeeper:
    """Used as a context: at its end everything is written."""

    def __init__(self, write: Callable[[Trace], None], hold_s: float = HOLD_S) -> None:
        self._write = write
        self._hold_s = hold_s
        self._traces: deque[Trace] = deque()
        self._changed = threading.Condition()
        self._num_given = 0
        self._num_written = 0
        self._is_time = False
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
            self._num_given += 1
            if len(self._traces) == 1:
                self._changed.notify_all()

    def begin_writing(self) -> None:
        """Now is the time for what was given so far."""
        with self._changed:
            self._is_time = bool(self._traces)
            self._changed.notify_all()

    async def settled(self) -> None:
        """Returns when all that was given so far is written; raises what writing raised."""
        self.begin_writing()
        await asyncio.to_thread(self._wait, self._num_given)
        self._raise()

    def _wait(self, num_given: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._num_written >= num_given or self._error is not None)

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        while self._error is None:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._traces) or self._is_over)
                if not self._traces:
                    return
                self._changed.wait_for(lambda: self._is_time or self._is_over, self._hold_s)
                num_due, self._is_time = len(self._traces), False
            self._write_first(num_due)
            with self._changed:
                self._changed.notify_all()

    def _write_first(self, num_due: int) -> None:
        try:
            for _ in range(num_due):
                self._write(self._traces[0])
                self._traces.popleft()
                self._num_written += 1
        except BaseException as error:
            self._error = error
