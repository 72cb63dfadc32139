"""The records that a program reports, besides its output, on the descriptor of its value.

A plain program reports only a value, without records. A program whose caller requested rich results or files writes
records. The program controls their content: they are read within bounds, and decide only that program's own result.
Standard library only: the writing side runs in the sandboxed child.
"""

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum

TAG_RECORDS = b"r"
"""The first byte on the descriptor if records follow."""
RECORD = struct.Struct("=BHI")
"""Kind, length of the name, length of the data; both follow."""
MAX_DISPLAYS, MAX_REPRESENTATIONS = 64, 16
MAX_DISPLAY_BYTES = 6 << 20
"""The size limit of all representations together; a representation that exceeds it is left out."""
MAX_FETCHED_BYTES = 8 << 20
"""The limit of all fetched files of one program together."""


class Kind(IntEnum):
    VALUE = 1
    OUT_OF_MEMORY = 2
    ERROR = 3
    """The name of the uncaught exception, and its message."""
    TRACEBACK = 4
    DISPLAY = 5
    """Begins a displayed item; its representations follow, each named by its MIME type."""
    RESULT = 6
    """Begins the value of the last expression, like `DISPLAY`."""
    REPRESENTATION = 7
    FILE = 8


def write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def record(kind: int, name: bytes = b"", data: bytes = b"") -> bytes:
    name = name[:0xFFFF]
    return RECORD.pack(kind, len(name), len(data)) + name + data


@dataclass
class Report:
    """The parsed records of one program. `displays` are pairs: whether the item is the value, and its
    representations."""

    value: bytes | None = None
    ran_out_of_memory: bool = False
    error: tuple[bytes, bytes] | None = None
    traceback: bytes = b""
    displays: list[tuple[bool, dict[str, str]]] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)


def read(data: bytes, wanted_files: frozenset[str] = frozenset()) -> Report:
    """Parse the records up to the first incomplete one, ignoring files that were not requested."""
    report = Report()
    for kind, name, content in _records(data):
        if kind == Kind.VALUE:
            report.value = content
        elif kind == Kind.OUT_OF_MEMORY:
            report.ran_out_of_memory = True
        elif kind == Kind.ERROR:
            report.error = (name, content)
        elif kind == Kind.TRACEBACK:
            report.traceback = content
        elif kind in (Kind.DISPLAY, Kind.RESULT) and len(report.displays) < MAX_DISPLAYS:
            report.displays.append((kind == Kind.RESULT, {}))
        elif kind == Kind.REPRESENTATION and report.displays:
            representations = report.displays[-1][1]
            if len(representations) < MAX_REPRESENTATIONS:
                representations[name.decode("utf-8", "replace")] = content.decode("utf-8", "replace")
        elif kind == Kind.FILE and (path := name.decode("utf-8", "replace")) in wanted_files:
            report.files[path] = content
    return report


def _records(data: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    at = 0
    while at + RECORD.size <= len(data):
        kind, name_len, data_len = RECORD.unpack_from(data, at)
        start = at + RECORD.size
        at = start + name_len + data_len
        if at > len(data):
            return
        yield kind, data[start : start + name_len], data[start + name_len : at]
