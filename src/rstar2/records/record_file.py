"""Files of records: each holds one kind of record, one record a line; a long run has one file for each step.

Invariant: `iterate` and `read_from` read back, equal and in order, every record for which `RecordWriter.append`
returned; a complete line that is not such a record raises an error that says where it is, and is never skipped.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Generic, Self, TypeVar

from rstar2.records.codec import RecordError, decode, encode
from rstar2.records.jsonl import Line, LineWriter, line_number, read_lines
from rstar2.records.run_layout import segment

Record = TypeVar("Record")

MAX_OPEN_SEGMENTS = 4
"""How many files are open at once: rollouts of only a few neighbouring steps are in flight, and a done step is soon
closed."""


class RecordWriter(Generic[Record]):
    """Appends records of one kind to one file, which it alone writes."""

    def __init__(self, path: Path, *, sync_every_s: float | None = None) -> None:
        self._lines = LineWriter(path, sync_every_s=sync_every_s)

    @property
    def path(self) -> Path:
        return self._lines.path

    @property
    def num_torn_bytes(self) -> int:
        """Bytes of an unfinished record, left by a writer that was killed, which opening the file cut off."""
        return self._lines.num_torn_bytes

    def append(self, record: Record) -> None:
        """Adds a record. If this returns, the record outlives the process; if it raises, the file is unchanged."""
        self._lines.append(encode(record))

    def sync(self) -> None:
        self._lines.sync()

    def close(self) -> None:
        self._lines.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def iterate(kind: type[Record], path: Path) -> Iterator[Record]:
    """The complete records of a file, one at a time; the file may be growing meanwhile."""
    for line in read_lines(path):
        yield decode_at(kind, path, line)


def read_from(kind: type[Record], path: Path, offset: int) -> tuple[list[Record], int]:
    """The complete records from `offset` on, and the offset for the next call. The first offset is 0."""
    records = []
    for line in read_lines(path, offset):
        records.append(decode_at(kind, path, line))
        offset = line.end
    return records, offset


def decode_at(kind: type[Record], path: Path, line: Line) -> Record:
    try:
        return decode(kind, line.data)
    except RecordError as error:
        where = f"{path}, line {line_number(path, line.start)}, byte {line.start}"
        raise RecordError(f"{where}: {error}") from error


class SegmentedWriter(Generic[Record]):
    """Appends each record to its step's file, with few files open at a time. Threads may share it."""

    def __init__(self, folder: Path, *, sync_every_s: float | None, report_torn: Callable[[Path, int], None]) -> None:
        self._folder = folder
        self._sync_every_s = sync_every_s
        self._report_torn = report_torn
        self._open: dict[int, RecordWriter[Record]] = {}
        """The open writers by step, the last used last."""
        self._lock = Lock()

    def append(self, step: int, record: Record) -> None:
        with self._lock:
            self._writer(step).append(record)

    def sync(self) -> None:
        """Syncs everything appended so far to the disk."""
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
