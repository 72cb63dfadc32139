"""Standard input and output as streams of the event loop. The SDK's own streams read in a thread, which a signal cannot
end."""

import asyncio
import contextlib
import os
import stat
from collections.abc import AsyncIterator, Iterator
from typing import Any, TextIO, cast

import anyio

MAX_LINE_BYTES = 32 * 2**20


@contextlib.contextmanager
def standard_streams() -> Iterator[tuple[int, int]]:
    """Yield stdin and stdout for the protocol; meanwhile descriptor 0 is empty and 1 is stderr, so no other code uses
    them."""
    wire = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    try:
        yield wire
    finally:
        os.dup2(wire[0], 0)
        os.dup2(wire[1], 1)


class PipeLines:
    """The lines of a pipe."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader

    async def __aiter__(self) -> AsyncIterator[str]:
        while line := await self._reader.readline():
            yield line.decode(errors="replace")


class PipeWriter:
    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    async def write(self, text: str) -> None:
        self._writer.write(text.encode())

    async def flush(self) -> None:
        await self._writer.drain()


async def lines_of(wire_in: int) -> Any:
    """The lines that the SDK reads. What never blocks is read in a thread."""
    if _never_blocks(wire_in):
        return anyio.wrap_file(_open_text(wire_in, "r"))
    stream = asyncio.StreamReader(MAX_LINE_BYTES)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), _open_text(wire_in, "r"))
    return PipeLines(stream)


async def writer_to(wire_out: int) -> Any:
    """The stream that the SDK writes to."""
    if _never_blocks(wire_out):
        return anyio.wrap_file(_open_text(wire_out, "w"))
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, _open_text(wire_out, "w"))
    return PipeWriter(asyncio.StreamWriter(transport, protocol, None, loop))


def _never_blocks(descriptor: int) -> bool:
    """Whether this is a file, or a device such as /dev/null: an event loop cannot wait for these."""
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISREG(mode) or (stat.S_ISCHR(mode) and not os.isatty(descriptor))


def _open_text(descriptor: int, mode: str) -> TextIO:
    return cast(TextIO, os.fdopen(descriptor, mode, encoding="utf-8", errors="replace", closefd=False))
