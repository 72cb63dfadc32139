"""Frames on a socket, several in one piece: four bytes of length, then a pickled list of them. Both ends are this
program, and nobody else has the socket; thousands of log-probabilities a second would take JSON longer to write than
the engine to sample."""

import asyncio
import pickle
import struct
from collections.abc import Sequence

from rstar2.engine.remote.wire import Frame

_LENGTH = struct.Struct(">I")


class FrameWriter:
    """Frames of one turn of the event loop go out in one piece: hundreds of rollouts may ask in it."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._frames: list[Frame] = []

    def write(self, frame: Frame) -> None:
        if not self._frames:
            asyncio.get_running_loop().call_soon(self._flush)
        self._frames.append(frame)

    async def drain(self) -> None:
        """All of it is on its way."""
        self._flush()
        await self._writer.drain()

    def close(self) -> None:
        self._writer.close()

    def _flush(self) -> None:
        frames, self._frames = self._frames, []
        if frames and not self._writer.is_closing():
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
