"""Child processes: how one starts, the frames to and from it, and its garbage collection.

A message on the socket is four bytes of length, then a pickled list of frames. Both ends are this program, and no other
process has the socket. JSON would take longer to write thousands of log-probabilities a second than the engine to
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
"""How long frames are gathered: an engine with thousands of turns reads its requests only every few hundredths of a
second."""
START_TIMEOUT_S = 300.0
"""Timeout for a child to import torch and read the weights of a large model from a cold disk."""
CLOSE_TIMEOUT_S = 10.0
MIN_NEW_CONTAINERS = 50_000
"""New containers between two garbage collections of the youngest generation; Python's default is 700."""
NUM_COLLECTIONS_BETWEEN_OLDER = 20

_LENGTH = struct.Struct(">I")


class FrameWriter:
    """Writes frames. One after a silence is sent at once; those that follow within `GATHER_S` are sent together at its
    end. Hundreds of rollouts may send in that time, and the reader pays more for each write than for its content."""

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
    """A channel to a child process, which ends when the channel is closed. Made by `spawn`."""

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
        """The child's first frame, sent when it is ready. If the child does not get ready, it is killed, and the reason
        is raised."""
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
        """Waits until the child ends."""
        await asyncio.to_thread(self._process.join)
        return self._process.exitcode


async def spawn(target: Callable[..., None], *arguments: Any, context: Any = None) -> ChildChannel:
    """Runs `target(connection, *arguments)` in a new interpreter, which ends when the target returns or this process
    ends."""
    ours, theirs = socket.socketpair()
    with theirs:
        context = context or multiprocessing.get_context("spawn")
        process = context.Process(target=target, args=(theirs, *arguments), daemon=True)
        await asyncio.to_thread(process.start)
    return ChildChannel(process, *await asyncio.open_connection(sock=ours))


def make_garbage_collection_rare() -> None:
    """Makes garbage collection rare, in a process of our own that has loaded all that stays: that is never scanned
    again.

    A collection scans every live container, and libraries such as PyTorch leave a million of them. Thousands of turns
    and rollouts a second trigger it many times a second, and it finds nothing: it took two fifths of an engine's time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(MIN_NEW_CONTAINERS, NUM_COLLECTIONS_BETWEEN_OLDER, NUM_COLLECTIONS_BETWEEN_OLDER)


def collect_garbage_if_rare() -> None:
    """Collects garbage if `make_garbage_collection_rare` was called. Code with large objects, such as tensors that a
    reference cycle might hold, calls it at a convenient moment."""
    if gc.get_freeze_count():
        gc.collect()
