"""Frames on a socket: four bytes of length, then one JSON object."""

import asyncio
import json
import struct

from rstar2.engine.remote.wire import Frame

_LENGTH = struct.Struct(">I")


def write_frame(writer: asyncio.StreamWriter, frame: Frame) -> None:
    body = json.dumps(frame, separators=(",", ":")).encode()
    writer.write(_LENGTH.pack(len(body)) + body)


async def read_frame(reader: asyncio.StreamReader) -> Frame | None:
    """None when the other side is gone, in the middle of a frame or between two."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        frame: Frame = json.loads(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return frame
