"""A child that serves an engine, and the pair of sockets that only it and its owner have."""

import asyncio
from contextlib import suppress
from typing import Protocol

from rstar2.engine.process.framing import FrameWriter, read_frame
from rstar2.engine.protocol import EngineLoad
from rstar2.engine.remote.wire import Frame, decode_error, decode_load
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


class Pipe:
    """Satisfies `Channel`."""

    def __init__(self, child: Child, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.child = child
        self._reader = reader
        self._writer = FrameWriter(writer)

    def send(self, frame: Frame) -> None:
        self._writer.write(frame)

    async def receive(self) -> Frame | None:
        return await read_frame(self._reader)

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

    async def ready(self) -> EngineLoad:
        """What the engine says of itself once it is loaded. A child that cannot load one is ended; why is raised."""
        try:
            return await self._hear_hello()
        except BaseException:
            await self.kill()
            raise

    async def _hear_hello(self) -> EngineLoad:
        try:
            hello = await asyncio.wait_for(self.receive(), START_TIMEOUT_S)
        except TimeoutError:
            raise InfrastructureError(f"the engine's process was not ready after {START_TIMEOUT_S:.0f} s") from None
        if hello is None:
            raise InfrastructureError(f"the engine's process ended with code {await self.child.wait()} as it started")
        if hello["error"] is not None:
            raise decode_error(hello["error"])
        return decode_load(hello["load"])
