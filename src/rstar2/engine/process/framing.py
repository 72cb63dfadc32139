"""Frames on a socket: four bytes of length, then one pickled value. Both ends are this program, and nobody else has
the socket; thousands of log-probabilities a second would take JSON longer to write than the engine to sample."""

import asyncio
import pickle
import struct

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
        if not self._writer.is_closing():
            self._writer.writelines([piece for frame in frames for piece in _pieces(frame)])


def write_frame(writer: asyncio.StreamWriter, frame: Frame) -> None:
    writer.writelines(_pieces(frame))


def _pieces(frame: Frame) -> tuple[bytes, bytes]:
    body = pickle.dumps(frame, pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(body)), body


async def read_frame(reader: asyncio.StreamReader) -> Frame | None:
    """None when the other side is gone, in the middle of a frame or between two."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        frame: Frame = pickle.loads(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return frame
