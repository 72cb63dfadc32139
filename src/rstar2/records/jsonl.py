"""Append-only files of lines, safe against a kill -9 and a full disk.

Invariant: a line is in the file if and only if its newline is. A line goes out with its newline in one write to an
O_APPEND descriptor, so a killed writer leaves complete lines and at most one torn tail, which has no newline: readers
stop before it, and the next writer cuts it off. A write that fails half-way is undone before the error is raised. There
is one writer at a time: it holds a lock that the kernel drops when its process dies.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Self

from rstar2.errors import InfrastructureError, UserError

_SCAN_BYTES = 1 << 16
_LOCK_PATIENCE_S = 0.3
"""How long a writer waits for the lock: a reader that asks whether the file is being written holds it for
microseconds."""


class LineWriter:
    """The one writer of a file. Threads of this process may share it.

    With `sync_every_s`, lines are synced to the disk by the first append after that many seconds at the latest. This is
    for a loss of power: a kill of the process loses no line whose `append` returned, synced or not.
    """

    def __init__(
        self, path: Path, *, sync_every_s: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.path = path
        self._sync_every_s = sync_every_s
        self._clock = clock
        self._lock = Lock()
        self._is_torn = False
        with _machine_trouble(f"cannot open {path} for appending"):
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            with _machine_trouble(f"cannot lock {path} and repair its end"):
                _take_lock(self._descriptor, path)
                num_bytes = os.fstat(self._descriptor).st_size
                self._end = _end_of_last_line(self._descriptor, num_bytes)
                self.num_torn_bytes = num_bytes - self._end
                """Bytes of an unfinished line, left by a writer that was killed, which opening the file cut off."""
                if self.num_torn_bytes:
                    os.ftruncate(self._descriptor, self._end)
        except BaseException:
            os.close(self._descriptor)
            raise
        self._synced_at_s = clock()

    @property
    def end(self) -> int:
        """The offset behind the last complete line."""
        return self._end

    def append(self, line: bytes) -> None:
        """Adds one line. If this returns, the line outlives the process; if it raises, the file is unchanged."""
        assert b"\n" not in line, "a line holds no newline"
        assert self._descriptor >= 0, "the writer is closed"
        with self._lock, _machine_trouble(f"cannot append to {self.path}"):
            self._repair()
            self._is_torn = True
            try:
                _write_all(self._descriptor, line + b"\n")
                self._end += len(line) + 1
                self._is_torn = False
            finally:
                # This also covers an interrupt between two partial writes. If even this fails, the next append retries.
                self._repair()
            if self._sync_every_s is not None and self._clock() - self._synced_at_s >= self._sync_every_s:
                self._sync()

    def sync(self) -> None:
        """Return when every line is on the disk itself."""
        with self._lock, _machine_trouble(f"cannot sync {self.path}"):
            self._sync()

    def close(self) -> None:
        with self._lock:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1

    def _repair(self) -> None:
        if self._is_torn:
            os.ftruncate(self._descriptor, self._end)
            self._is_torn = False

    def _sync(self) -> None:
        os.fsync(self._descriptor)
        self._synced_at_s = self._clock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class Line:
    """A complete line without its newline, and its place in the file."""

    data: bytes
    start: int

    @property
    def end(self) -> int:
        """The offset behind the newline: where to resume from."""
        return self.start + len(self.data) + 1


def read_lines(path: Path, offset: int = 0) -> Iterator[Line]:
    """The complete lines from `offset` on, which is 0 or the `end` of a line. The file may be growing meanwhile; a torn
    tail is left for a later call."""
    with path.open("rb") as file:
        if offset > os.fstat(file.fileno()).st_size:
            raise UserError(f"{path} is shorter than the offset {offset} to resume from; it is not the file it was")
        file.seek(offset)
        for data in file:
            if not data.endswith(b"\n"):
                return
            line = Line(data[:-1], offset)
            offset = line.end
            yield line


def line_number(path: Path, offset: int) -> int:
    """The number, from 1, of the line that starts at `offset`."""
    num_newlines = 0
    with path.open("rb") as file:
        while offset > 0 and (block := file.read(min(_SCAN_BYTES, offset))):
            num_newlines += block.count(b"\n")
            offset -= len(block)
    return num_newlines + 1


def is_being_written(path: Path) -> bool:
    """Whether a living process holds this file's writer."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


@contextmanager
def _machine_trouble(what: str) -> Iterator[None]:
    """An OSError inside becomes an InfrastructureError that starts with what could not be done."""
    try:
        yield
    except OSError as error:
        raise InfrastructureError(f"{what}: {error.strerror or error}") from error


def _take_lock(descriptor: int, path: Path) -> None:
    deadline_s = time.monotonic() + _LOCK_PATIENCE_S
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline_s:
                raise UserError(
                    f"{path} is being written by another process; only one may write it at a time"
                ) from None
            time.sleep(0.01)


def _write_all(descriptor: int, data: bytes) -> None:
    """Writes all data, in one write unless the kernel takes only a part: on a full disk the next write then says
    why."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _end_of_last_line(descriptor: int, num_bytes: int) -> int:
    """The offset behind the last newline in the file, found from its end."""
    end = num_bytes
    while end > 0:
        start = max(0, end - _SCAN_BYTES)
        newline = os.pread(descriptor, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0
