"""Frames on a socket, several in one piece: four bytes of length, then a pickled list of them. Both ends are this
program, and nobody else has the socket; thousands of log-probabilities a second would take JSON longer to write than
the engine to sample."""

import asyncio
import pickle
import struct
from collections.abc import Sequence

from rstar2.engine.remote.wire import Frame

_LENGTH = struct.Struct(">I")
GATHER_S = 0.01
"""An engine with thousands of turns looks at what is asked every few hundredths of a second."""


class FrameWriter:
    """A frame after a silence goes out at once; those that follow it within `GATHER_S` go together at its end. Hundreds
    of rollouts may ask in that time, and what reads them pays more for each piece than for what is in it."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._frames: list[Frame] = []
        self._flushed_s = 0.0

    def write(self, frame: Frame) -> None:
        if not self._frames:
            loop = asyncio.get_running_loop()
            loop.call_at(max(loop.time(), self._flushed_s + GATHER_S), self._flush)
        self._frames.append(frame)

    async def drain(self) -> None:
        """All of it is on its way."""
        self._flush()
        await self._writer.drain()

    def close(self) -> None:
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        frames, self._frames = self._frames, []
        if frames and not self._writer.is_closing():
            self._flushed_s = asyncio.get_running_loop().time()
            write_frames(self._writer, frames)


def write_frames(writer: asyncio.StreamWriter, frames: Sequence[Frame]) -> None:
    body = pickle.dumps(list(frames), pickle.HIGHEST_PROTOCOL)
    writer.writelines((_LENGTH.pack(len(body)), body))


async def read_frames(reader: asyncio.StreamReader) -> list[Frame] | None:
    """The next piece; None when the other side is gone, in the middle of one or between two."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        frames: list[Frame] = pickle.loads(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return frames
