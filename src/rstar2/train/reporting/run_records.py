"""Writes a training run's records into its run directory, and passes them to its observers.

A thread writes traces. An interpreter runs one thread at a time, so when thousands of rollouts end in one second, each
write would delay them. So traces are held back for up to `HOLD_S`, or until `begin_writing`.

Invariant: traces are written in the order in which they were given; after `settled` they are in their files, or the
error that prevented it was raised. If the process is killed, the traces of the last moments are lost, and their
rollouts are sampled again.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from rstar2.records import Group, RunDirectory, StepRecord, Trace
from rstar2.records.rewind import Mark, mark
from rstar2.train.reporting.observer import Observer

HOLD_S = 2.0
"""Seconds of rollouts that a kill may cost. A step of a small model on a GPU takes hardly longer."""


class RunRecords:
    """The records of a run. Used as a context: at its end every trace is written."""

    def __init__(self, run: RunDirectory, observer: Observer, *, hold_s: float = HOLD_S) -> None:
        self._run = run
        self._observer = observer
        self._traces = TraceWriter(run.write_trace, hold_s)

    def __enter__(self) -> Self:
        self._traces.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._traces.__exit__(*error)

    def phase(self, name: str, num_steps: int, num_done: int) -> None:
        self._observer.phase(name, num_steps, num_done)

    def waits_for(self, what: str) -> None:
        self._observer.waits_for(what)

    def rollouts_begun(self, num_begun: int) -> None:
        self._observer.rollouts_begun(num_begun)

    def say(self, message: str) -> None:
        self._observer.say(message)

    def event(self, kind: str, message: str, data: Mapping[str, Any] | None = None) -> None:
        self._run.write_event(kind, message, data)

    def metrics(self, step: int, stage: str, values: Mapping[str, float]) -> None:
        self._run.write_metrics(step, stage, values)
        self._observer.metrics(step, stage, values)

    def keep_trace(self, trace: Trace) -> None:
        self._traces.keep(trace)
        self._observer.rollouts(1)

    def begin_writing(self) -> None:
        """Write the traces so far now, and not at the end of `hold_s`."""
        self._traces.begin_writing()

    async def settled(self) -> None:
        """Returns when all traces so far are written; raises what writing raised."""
        await self._traces.settled()

    def write_groups(self, groups: Sequence[Group]) -> None:
        for group in groups:
            self._run.write_group(group)

    def write_schedule(self, schedule: StepRecord) -> None:
        self._run.write_step_record(schedule)

    def sync(self) -> None:
        self._run.sync()

    def mark(self, step: int) -> Mark:
        """The present length of every file, to which a resumed run goes back."""
        return mark(self._run.layout, step)


class TraceWriter:
    """Writes traces in a thread. Used as a context: at its end everything is written."""

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
        """Write what was given so far now, and not at the end of `hold_s`."""
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
