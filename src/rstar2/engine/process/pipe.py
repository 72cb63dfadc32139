"""Frames to and from another process, over a pair of sockets that nobody else has."""

import asyncio
import socket
from collections import deque
from contextlib import suppress
from typing import Protocol

from rstar2.engine.process.framing import FrameWriter, read_frames
from rstar2.engine.remote.wire import Frame, decode_error
from rstar2.errors import InfrastructureError

START_TIMEOUT_S = 300.0
"""Importing torch and reading the weights of a large model from a cold disk."""
CLOSE_TIMEOUT_S = 10.0


class Child(Protocol):
    """As `asyncio.subprocess.Process` has it."""

    @property
    def pid(self) -> int: ...

    async def wait(self) -> int:
        """Its exit code, when it has ended."""
        ...

    def kill(self) -> None: ...


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


class Pipe(SocketChannel):
    """The other end is a child's, which is ended with it."""

    def __init__(self, child: Child, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__(reader, writer)
        self.child = child

    async def close(self) -> None:
        self._writer.close()
        with suppress(TimeoutError):
            await asyncio.wait_for(self.child.wait(), CLOSE_TIMEOUT_S)
        await self.kill()

    async def kill(self) -> None:
        self._writer.close()
        with suppress(ProcessLookupError):
            self.child.kill()
        await self.child.wait()

    async def hello(self, who: str) -> Frame:
        """What the child says when it is ready. One that cannot get ready is ended; why is raised."""
        try:
            return await self._hear_hello(who)
        except BaseException:
            await self.kill()
            raise

    async def _hear_hello(self, who: str) -> Frame:
        try:
            hello = await asyncio.wait_for(self.receive(), START_TIMEOUT_S)
        except TimeoutError:
            raise InfrastructureError(f"{who} was not ready after {START_TIMEOUT_S:.0f} s") from None
        if hello is None:
            raise InfrastructureError(f"{who} ended with code {await self.child.wait()} as it started")
        if hello["error"] is not None:
            raise decode_error(hello["error"])
        return hello
