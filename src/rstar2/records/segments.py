"""Records of a long run, one file a step."""

from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Generic, TypeVar

from rstar2.records.record_file import RecordWriter
from rstar2.records.run_layout import segment

Record = TypeVar("Record")

MAX_OPEN_SEGMENTS = 4
"""Rollouts of a few neighbouring steps are in flight at once; a step that is done is soon not written any more."""


class SegmentedWriter(Generic[Record]):
    """Appends each record to its step's file, with few files open at a time. Threads may share it."""

    def __init__(self, folder: Path, *, sync_every_s: float | None, report_torn: Callable[[Path, int], None]) -> None:
        self._folder = folder
        self._sync_every_s = sync_every_s
        self._report_torn = report_torn
        self._open: dict[int, RecordWriter[Record]] = {}
        """The last used is the last in order."""
        self._lock = Lock()

    def append(self, step: int, record: Record) -> None:
        with self._lock:
            self._writer(step).append(record)

    def sync(self) -> None:
        """Everything appended so far is on the disk itself."""
        with self._lock:
            for writer in self._open.values():
                writer.sync()

    def close(self) -> None:
        with self._lock:
            while self._open:
                self._close_oldest()

    def _writer(self, step: int) -> RecordWriter[Record]:
        writer = self._open.pop(step, None)
        if writer is None:
            while len(self._open) >= MAX_OPEN_SEGMENTS:
                self._close_oldest()
            writer = RecordWriter(segment(self._folder, step), sync_every_s=self._sync_every_s)
            if writer.num_torn_bytes:
                self._report_torn(writer.path, writer.num_torn_bytes)
        self._open[step] = writer
        return writer

    def _close_oldest(self) -> None:
        writer = self._open.pop(next(iter(self._open)))
        try:
            if self._sync_every_s is not None:
                writer.sync()
        finally:
            writer.close()
