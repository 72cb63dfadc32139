"""The owner's side: starts the child, and talks to it over a pair of sockets that only the two of them have."""

import asyncio
import json
import os
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Self

from rstar2.engine.process.framing import FrameWriter, read_frame
from rstar2.engine.protocol import EngineLoad
from rstar2.engine.remote import RemoteEngine
from rstar2.engine.remote.client import SILENCE_S
from rstar2.engine.remote.wire import Frame, decode_error, decode_load
from rstar2.errors import InfrastructureError

if TYPE_CHECKING:
    from rstar2.engine.embedded import EmbeddedOptions

START_TIMEOUT_S = 300.0
"""Importing torch and reading the weights of a large model from a cold disk."""
CLOSE_TIMEOUT_S = 10.0


class EngineProcess(RemoteEngine):
    """Satisfies `Engine`. Made by `start`; ended by `close`, or by the end of this process."""

    def __init__(self, channel: "_Pipe", load: EngineLoad, silence_s: float) -> None:
        self.pid = channel.process.pid
        super().__init__(channel, load, f"the engine's process {self.pid}", silence_s)

    @classmethod
    async def start(
        cls,
        folder: Path,
        options: "EmbeddedOptions | None" = None,
        *,
        device: str = "auto",
        num_threads: int = 1,
        silence_s: float = SILENCE_S,
    ) -> Self:
        """An embedded engine on a Hugging Face model folder, in a new process that computes on so many threads."""
        options_json = json.dumps(asdict(options) if options else {})
        command = [sys.executable, "-m", "rstar2.engine.process.host", "--folder", str(folder), "--device", device]
        arguments = [*command, "--options", options_json, "--threads", str(num_threads)]
        return await cls.launch(arguments, num_threads, silence_s)

    @classmethod
    async def launch(cls, command: Sequence[str], num_threads: int, silence_s: float = SILENCE_S) -> Self:
        """Any program that serves an engine as `host` does, on the socket that `--socket` names."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *(*command, "--socket", str(theirs.fileno())),
                pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": str(num_threads)},
            )
        channel = _Pipe(process, *await asyncio.open_connection(sock=ours))
        try:
            load = await _await_ready(channel)
        except BaseException:
            await channel.kill()
            raise
        return cls(channel, load, silence_s)


class _Pipe:
    """Satisfies `Channel`."""

    def __init__(
        self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.process = process
        self._reader = reader
        self._writer = FrameWriter(writer)

    def send(self, frame: Frame) -> None:
        self._writer.write(frame)

    async def receive(self) -> Frame | None:
        return await read_frame(self._reader)

    async def close(self) -> None:
        self._writer.close()
        with suppress(TimeoutError):
            await asyncio.wait_for(self.process.wait(), CLOSE_TIMEOUT_S)
        await self.kill()

    async def kill(self) -> None:
        self._writer.close()
        with suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()


async def _await_ready(channel: _Pipe) -> EngineLoad:
    try:
        hello = await asyncio.wait_for(channel.receive(), START_TIMEOUT_S)
    except TimeoutError:
        raise InfrastructureError(f"the engine's process was not ready after {START_TIMEOUT_S:.0f} s") from None
    if hello is None:
        raise InfrastructureError(f"the engine's process ended with code {await channel.process.wait()} as it started")
    if hello["error"] is not None:
        raise decode_error(hello["error"])
    return decode_load(hello["load"])
