"""The run directory, which every verb writes, and the only thing that a run and its viewers share.

Invariant: a folder is a run if and only if it holds `run.json`. Everything in it was written by `RunDirectory`, one
process at a time. `RunView` can read it at any moment, also while the run is being written and after it was killed.
"""

import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self, SupportsFloat

import rstar2
from rstar2.errors import InfrastructureError, UserError
from rstar2.records.atomic import replace_file
from rstar2.records.branches import stored
from rstar2.records.codec import encode
from rstar2.records.problem import Group
from rstar2.records.record_file import RecordWriter, SegmentedWriter
from rstar2.records.run_info import Event, HostInfo, RunInfo, RunStatus, StepMetrics
from rstar2.records.run_layout import RunLayout
from rstar2.records.run_view import RunView
from rstar2.records.schedule import StepRecord
from rstar2.records.trace import Trace

SYNC_EVERY_S = 30.0
"""Seconds between syncs, about what a loss of power may cost; a kill of the process costs nothing. A sync takes
milliseconds."""


class RunDirectory:
    """The writing side of one run; made by `create` or `resume`, closed by `finish` or by leaving `with`."""

    def __init__(
        self,
        path: Path,
        info: RunInfo,
        clock: Callable[[], float],
        before_writing: Callable[[], None] = lambda: None,
    ) -> None:
        self.layout = RunLayout(path)
        self.info = info
        self._clock = clock
        # The events are opened first, because their lock says whether this run is ours to write.
        self._events: RecordWriter[Event] = RecordWriter(self.layout.events, sync_every_s=SYNC_EVERY_S)
        before_writing()
        self._metrics: RecordWriter[StepMetrics] = RecordWriter(self.layout.metrics, sync_every_s=SYNC_EVERY_S)
        self._traces: SegmentedWriter[Trace] = SegmentedWriter(
            self.layout.traces, sync_every_s=SYNC_EVERY_S, report_torn=self._report_torn
        )
        self._groups: SegmentedWriter[Group] = SegmentedWriter(
            self.layout.groups, sync_every_s=SYNC_EVERY_S, report_torn=self._report_torn
        )
        self._schedule: SegmentedWriter[StepRecord] = SegmentedWriter(
            self.layout.schedule, sync_every_s=SYNC_EVERY_S, report_torn=self._report_torn
        )

    @classmethod
    def create(
        cls,
        path: Path,
        *,
        verb: str,
        recipe_toml: str,
        seed: int | None = None,
        argv: Sequence[str] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> Self:
        """Start a run in a folder that is new or empty; `run_layout.make_run_folder` makes one at the usual place. A
        run that was killed during its creation left nothing of value: its folder counts as empty."""
        _refuse_used(path)
        layout = RunLayout(path)
        try:
            for folder in layout.folders:
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InfrastructureError(f"cannot create the run folder {path}: {error.strerror}") from error
        info = RunInfo(
            verb=verb,
            rstar2_version=rstar2.__version__,
            argv=tuple(sys.argv if argv is None else argv),
            seed=seed,
            host=HostInfo.this(),
            started=_iso(clock()),
        )
        run = cls(path, info, clock)
        replace_file(layout.recipe, recipe_toml.encode())
        run._write_info(info)
        run.write_event("started", f"{verb} started")
        return run

    @classmethod
    def resume(
        cls,
        path: Path,
        *,
        verb: str,
        clock: Callable[[], float] = time.time,
        before_writing: Callable[[], None] = lambda: None,
    ) -> Self:
        """Continue a run, however it ended. Records that a kill left unfinished are cut off and reported.
        `before_writing` is called when the run is ours alone and before its records are opened."""
        info = RunView(path).info
        if info.verb != verb:
            raise UserError(f"{path} holds a run of `rstar2 {info.verb}`; `rstar2 {verb}` cannot resume it")
        run = cls(path, info, clock, before_writing)
        for writer in (run._events, run._metrics):
            if writer.num_torn_bytes:
                run._report_torn(writer.path, writer.num_torn_bytes)
        resumed = (*info.resumed, _iso(clock()))
        run._write_info(replace(info, status=RunStatus.RUNNING, ended=None, note="", resumed=resumed))
        run.write_event("resumed", f"{verb} resumed")
        return run

    @property
    def path(self) -> Path:
        return self.layout.path

    @property
    def checkpoints(self) -> Path:
        """The trainer's own folder."""
        return self.layout.checkpoints

    def write_metrics(self, step: int, stage: str, values: Mapping[str, SupportsFloat]) -> None:
        """The numbers of one step. One that is not finite is written as null, and an event names it."""
        numbers = {name: float(value) for name, value in values.items()}
        bad = {name: str(number) for name, number in numbers.items() if not math.isfinite(number)}
        kept = {name: None if name in bad else number for name, number in numbers.items()}
        self._metrics.append(StepMetrics(step=step, stage=stage, time=self._clock(), values=kept))
        if bad:
            named = ", ".join(f"{name} is {text}" for name, text in bad.items())
            self.write_event("non_finite_metric", f"at step {step} {named}", {"step": step, "stage": stage, **bad})

    def write_event(self, kind: str, message: str, data: Mapping[str, Any] | None = None) -> None:
        self._events.append(Event(time=self._clock(), kind=kind, message=message, data=dict(data or {})))

    def write_trace(self, trace: Trace) -> None:
        """Write the trace to the file of its step. A branch of a tree is written after its parent, without the parent's
        part."""
        self._traces.append(trace.step, stored(trace))

    def write_group(self, group: Group) -> None:
        """Write the group to the file of its step."""
        self._groups.append(group.step, group)

    def write_step_record(self, record: StepRecord) -> None:
        """Write what the engines did to the file of its step."""
        self._schedule.append(record.step, record)

    def sync(self) -> None:
        """Return when everything written so far is on the disk itself."""
        for writer in (self._traces, self._groups, self._schedule, self._metrics, self._events):
            writer.sync()

    def finish(self, status: RunStatus, note: str = "") -> None:
        """Record how the run ended and close every file."""
        assert status is not RunStatus.RUNNING
        try:
            self.write_event(status.value, note or f"{self.info.verb} {status}")
            self._metrics.sync()
            self._events.sync()
            self._write_info(replace(self.info, status=status, ended=_iso(self._clock()), note=note))
        finally:
            for writer in (self._traces, self._groups, self._schedule, self._metrics, self._events):
                writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.finish(RunStatus.FINISHED)
        elif isinstance(error, Exception):
            self.finish(RunStatus.FAILED, f"{type(error).__name__}: {error}")
        else:  # Ctrl-C, a cancelled task, sys.exit
            self.finish(RunStatus.INTERRUPTED)

    def _write_info(self, info: RunInfo) -> None:
        self.info = info
        replace_file(self.layout.info, json.dumps(json.loads(encode(info)), indent=2).encode() + b"\n")

    def _report_torn(self, path: Path, num_bytes: int) -> None:
        name = str(path.relative_to(self.path))
        self.write_event(
            "torn_tail",
            f"cut {num_bytes} bytes of an unfinished line from {name}",
            {"file": name, "num_bytes": num_bytes},
        )


def _refuse_used(path: Path) -> None:
    if RunLayout(path).info.exists():
        raise UserError(f"{path} already holds a run; resume it, or choose another folder")
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file; a run needs a folder, new or empty")
    if path.is_dir() and not _is_barely_begun(path):
        raise UserError(f"{path} is not empty and holds no run; choose another folder, so that nothing is overwritten")


def _is_barely_begun(path: Path) -> bool:
    """Whether the folder is empty, or holds only what a run leaves that was killed during its creation."""
    layout, entries = RunLayout(path), set(path.iterdir())
    if not entries:
        return True
    folders = {folder for folder in layout.folders if folder.is_dir() and not any(folder.iterdir())}
    empty_files = {file for file in (layout.events, layout.metrics) if file.is_file() and not file.stat().st_size}
    unfinished = {entry for entry in entries if entry.name.startswith(".") and entry.suffix == ".tmp"}
    # A run creates its events before its recipe, so a recipe without events is a user's file.
    return layout.events in empty_files and entries <= {*folders, *empty_files, *unfinished, layout.recipe}


def _iso(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).isoformat(timespec="seconds")
