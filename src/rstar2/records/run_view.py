"""The reading side of a run directory: for viewers, reports and analysis. It never writes.

Everything may be read while the run is being written. The `read_*_from` methods take the offset that the last call
returned, and return what was written since, so a viewer can follow a run.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from rstar2.errors import UserError
from rstar2.records.branches import iterate_traces
from rstar2.records.codec import RecordError, decode
from rstar2.records.jsonl import is_being_written
from rstar2.records.problem import Group
from rstar2.records.record_file import iterate, read_from
from rstar2.records.run_info import Event, RunInfo, RunStatus, StepMetrics
from rstar2.records.run_layout import RunLayout, segment, segment_steps
from rstar2.records.schedule import StepRecord
from rstar2.records.trace import Trace

Record = TypeVar("Record")


class RunView:
    """A read-only view of one run."""

    def __init__(self, path: Path) -> None:
        self.layout = RunLayout(path)
        if not self.layout.info.is_file():
            raise UserError(f"{path} is not a run directory: it has no run.json")

    @property
    def path(self) -> Path:
        return self.layout.path

    @property
    def info(self) -> RunInfo:
        """The current content of `run.json`."""
        try:
            return decode(RunInfo, self.layout.info.read_bytes())
        except RecordError as error:
            raise RecordError(f"{self.layout.info}: {error}") from error

    @property
    def status(self) -> RunStatus:
        """The run's status. A run that says running but has no living writer was killed, and so interrupted."""
        is_live = is_being_written(self.layout.events)
        # The status is read after the lock was tested: a run that ends in between wrote its status before it released
        # the lock.
        status = self.info.status
        return RunStatus.INTERRUPTED if status is RunStatus.RUNNING and not is_live else status

    @property
    def recipe_toml(self) -> str:
        return self.layout.recipe.read_text(encoding="utf-8")

    def metrics(self) -> Iterator[StepMetrics]:
        return iterate(StepMetrics, self.layout.metrics)

    def read_metrics_from(self, offset: int) -> tuple[list[StepMetrics], int]:
        return read_from(StepMetrics, self.layout.metrics, offset)

    def events(self) -> Iterator[Event]:
        return iterate(Event, self.layout.events)

    def read_events_from(self, offset: int) -> tuple[list[Event], int]:
        return read_from(Event, self.layout.events, offset)

    def trace_steps(self) -> list[int]:
        """The steps that have traces, in order."""
        return segment_steps(self.layout.traces)

    def traces(self, step: int) -> Iterator[Trace]:
        return (trace for trace, _ in iterate_traces(self._segment(self.layout.traces, step)))

    def read_traces_from(self, step: int, offset: int) -> tuple[list[Trace], int]:
        traces = []
        for trace, end in iterate_traces(self._segment(self.layout.traces, step), offset):
            traces.append(trace)
            offset = end
        return traces, offset

    def group_steps(self) -> list[int]:
        """The steps that have groups, in order."""
        return segment_steps(self.layout.groups)

    def groups(self, step: int) -> Iterator[Group]:
        return iterate(Group, self._segment(self.layout.groups, step))

    def schedule_steps(self) -> list[int]:
        """The steps whose engines were recorded, in order."""
        return segment_steps(self.layout.schedule)

    def step_records(self, step: int) -> Iterator[StepRecord]:
        """The step's records, one for each time that the step was run; the last counts."""
        return iterate(StepRecord, self._segment(self.layout.schedule, step))

    def _segment(self, folder: Path, step: int) -> Path:
        path = segment(folder, step)
        if not path.is_file():
            steps = segment_steps(folder)
            held = f"it has steps {steps[0]} to {steps[-1]}" if steps else "it has none yet"
            raise UserError(f"{self.path} has no {folder.name} of step {step}; {held}")
        return path
