"""Finds the position of each trace in a step's file, block by block.

Invariant: `entries` are complete lines, in order, and a line stays where it was found, because the files are only
appended to. Finding lines reads the file once and parses only the two ids at a line's head; each trace is read
separately. The next `extend` checks an unfinished last line again.
"""

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from rstar2.errors import UserError
from rstar2.records import Trace
from rstar2.records.branches import JoinedTraces
from rstar2.records.codec import RecordError, decode

BLOCK_BYTES = 1 << 22
HEAD_BYTES = 4096
"""The length of a line's start that is searched for the ids, which are its first two fields, and short."""

QUESTION_BYTES = 1 << 16
"""The length of a line's start that is searched for the prompt, which comes after its token ids."""

_PROMPT_TEXT = re.compile(rb',"prompt_text":("(?:[^"\\]|\\.)*")')
_IDS = re.compile(rb'\{"id":("(?:[^"\\]|\\.)*"),"problem_id":("(?:[^"\\]|\\.)*")')


@dataclass(frozen=True, slots=True)
class Entry:
    start: int
    """The offset of the line, which identifies the trace in its file permanently."""
    num_bytes: int
    id: str
    problem_id: str


class SegmentIndex:
    """The traces of one step."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.num_bytes_read = 0
        self._reset()

    def _reset(self) -> None:
        self.entries: list[Entry] = []
        self.number_of: dict[str, int] = {}
        """The line of each trace id; the last one if several lines have the same id."""
        self.total_bytes = 0
        self._joined = JoinedTraces(self.path)
        self._inode: int | None = None
        self._scanned = 0
        self._line_start = 0
        self._head = b""

    @property
    def scanned_bytes(self) -> int:
        return min(self._scanned, self.total_bytes)

    @property
    def is_complete(self) -> bool:
        """Whether all lines are known that the file held at the last `extend`."""
        return self._inode is not None and self._scanned >= self.total_bytes

    def extend(self, max_bytes: int = BLOCK_BYTES) -> None:
        """Find more lines, reading at most about `max_bytes`."""
        with self._open() as file:
            status = os.fstat(file.fileno())
            if self._inode not in (None, status.st_ino) or status.st_size < self._line_start:
                self._reset()
            if self.is_complete:
                # The unfinished last line may have been cut off and rewritten since.
                self._scanned, self._head = self._line_start, b""
            self._inode, self.total_bytes = status.st_ino, status.st_size
            file.seek(self._scanned)
            while max_bytes > 0 and (block := file.read(min(BLOCK_BYTES, max_bytes))):
                self._take(block)
                max_bytes -= len(block)
            self.total_bytes = max(self.total_bytes, self._scanned)

    def line_at(self, start: int) -> bytes:
        """The complete line that starts at `start`; UserError if none does."""
        with self._open() as file:
            before = 1 if start > 0 else 0
            file.seek(start - before)
            line = file.readline() if before == 0 or file.read(1) == b"\n" else b""
        self.num_bytes_read += len(line) + before
        if not line.endswith(b"\n"):
            raise UserError(f"{self.path.name} has no line that starts at byte {start}")
        return line[:-1]

    def prompt_text_at(self, start: int) -> str | None:
        """The prompt of the trace that starts at `start`, without reading the trace; None if the prompt is too long."""
        with self._open() as file:
            file.seek(start)
            head = file.read(QUESTION_BYTES).partition(b"\n")[0]
        self.num_bytes_read += len(head)
        found = _PROMPT_TEXT.search(head)
        try:
            return None if found is None else str(json.loads(found[1]))
        except ValueError:
            return None

    def trace_at(self, start: int) -> Trace:
        try:
            return self._joined.join(decode(Trace, self.line_at(start)), start)
        except RecordError as error:
            raise RecordError(f"{self.path.name}, byte {start}: {error}") from error

    def _open(self) -> BinaryIO:
        try:
            return self.path.open("rb", buffering=1 << 16)
        except FileNotFoundError:
            raise UserError(f"there are no traces in {self.path.name}") from None

    def _take(self, block: bytes) -> None:
        self.num_bytes_read += len(block)
        position = 0
        while (newline := block.find(b"\n", position)) >= 0:
            head = (self._head + block[position : min(newline, position + HEAD_BYTES)])[:HEAD_BYTES]
            end = self._scanned + newline
            trace_id, problem_id = _ids_in(head)
            self.number_of[trace_id] = len(self.entries)
            self.entries.append(Entry(self._line_start, end - self._line_start, trace_id, problem_id))
            self._line_start, self._head, position = end + 1, b"", newline + 1
        self._head = (self._head + block[position : position + HEAD_BYTES])[:HEAD_BYTES]
        self._scanned += len(block)


def _ids_in(head: bytes) -> tuple[str, str]:
    """The ids at a line's head; empty if it does not start as traces do: reading that line reports what is wrong."""
    found = _IDS.match(head)
    if found is None:
        return "", ""
    try:
        return json.loads(found[1]), json.loads(found[2])
    except ValueError:
        return "", ""
