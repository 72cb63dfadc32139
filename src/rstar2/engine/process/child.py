"""A child process of ours: how it starts, the frames to and from it, and its garbage collection.

What goes over the socket is four bytes of length, then a pickled list of frames. Both ends are this program, and no
other process has the socket. JSON would take longer to write thousands of log-probabilities a second than the engine to
sample them.
"""

import asyncio
import gc
import multiprocessing
import pickle
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.process import BaseProcess
from typing import Any

from rstar2.engine.remote.wire import Frame, decode_error
from rstar2.errors import InfrastructureError

GATHER_S = 0.01
"""An engine with thousands of turns reads its requests every few hundredths of a second."""
START_TIMEOUT_S = 300.0
"""Importing torch and reading the weights of a large model from a cold disk."""
CLOSE_TIMEOUT_S = 10.0
MIN_NEW_CONTAINERS = 50_000
"""Between two collections of the youngest generation; Python's own number is 700."""
NUM_COLLECTIONS_BETWEEN_OLDER = 20

_LENGTH = struct.Struct(">I")


class FrameWriter:
    """A frame after a silence is sent at once; those that follow it within `GATHER_S` are sent together at its end.
    Hundreds of rollouts may send in that time, and the reader pays more for each write than for its content."""

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
        """Returns when everything is sent."""
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
    """The frames of the next write; None when the other end is closed, in the middle of a write or between two."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        frames: list[Frame] = pickle.loads(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return frames


class SocketChannel:
    """Satisfies `Channel`, on one end of a pair of sockets."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = FrameWriter(writer)
        self._arrived: deque[Frame] = deque()

    @classmethod
    async def on(cls, connection: socket.socket) -> "SocketChannel":
        return SocketChannel(*await asyncio.open_connection(sock=connection))

    def send(self, frame: Frame) -> None:
        self._writer.write(frame)

    async def receive(self) -> Frame | None:
        if not self._arrived:
            self._arrived.extend(await read_frames(self._reader) or ())
        return self._arrived.popleft() if self._arrived else None

    async def drain(self) -> None:
        await self._writer.drain()

    async def close(self) -> None:
        self._writer.close()


class ChildChannel(SocketChannel):
    """The other end is a child process, which ends when the channel is closed. Made by `spawn`."""

    def __init__(self, process: BaseProcess, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__(reader, writer)
        assert process.pid is not None, "it was started"
        self.pid = process.pid
        self._process = process

    async def close(self) -> None:
        self._writer.close()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._exit_code(), CLOSE_TIMEOUT_S)
        await self.kill()

    async def kill(self) -> None:
        self._writer.close()
        self._process.kill()
        await self._exit_code()

    async def hello(self, who: str) -> Frame:
        """The child's first frame, sent when it is ready. One that does not get ready is killed, and why is raised."""
        try:
            hello = await asyncio.wait_for(self.receive(), START_TIMEOUT_S)
            if hello is None:
                raise InfrastructureError(f"{who} ended with code {await self._exit_code()} as it started")
            if hello["error"] is not None:
                raise decode_error(hello["error"])
        except TimeoutError:
            await self.kill()
            raise InfrastructureError(f"{who} was not ready after {START_TIMEOUT_S:.0f} s") from None
        except BaseException:
            await self.kill()
            raise
        return hello

    async def _exit_code(self) -> int | None:
        """Waits for the end of the child."""
        await asyncio.to_thread(self._process.join)
        return self._process.exitcode


async def spawn(target: Callable[..., None], *arguments: Any, context: Any = None) -> ChildChannel:
    """Run `target(connection, *arguments)` in a new interpreter, which ends with it or with this process."""
    ours, theirs = socket.socketpair()
    with theirs:
        context = context or multiprocessing.get_context("spawn")
        process = context.Process(target=target, args=(theirs, *arguments), daemon=True)
        await asyncio.to_thread(process.start)
    return ChildChannel(process, *await asyncio.open_connection(sock=ours))


def make_garbage_collection_rare() -> None:
    """Call it in a process that is ours alone, when it has loaded all that stays: that is never scanned again.

    A collection scans every live container, and libraries such as PyTorch leave a million of them. Thousands of turns
    and rollouts a second trigger it many times a second, and it finds nothing: it took two fifths of an engine's time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(MIN_NEW_CONTAINERS, NUM_COLLECTIONS_BETWEEN_OLDER, NUM_COLLECTIONS_BETWEEN_OLDER)


def collect_garbage_if_rare() -> None:
    """For code with large objects, such as tensors, that a reference cycle might hold: at a moment of its choice."""
    if gc.get_freeze_count():
        gc.collect()
