"""The owner's side: starts the child, and talks to it over a pair of sockets that only the two of them have."""

import asyncio
import json
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Self

from rstar2.engine.process.pipe import Pipe
from rstar2.engine.protocol import EngineLoad
from rstar2.engine.remote import RemoteEngine
from rstar2.engine.remote.peer import SILENCE_S
from rstar2.engine.remote.wire import decode_load

if TYPE_CHECKING:
    from rstar2.engine.embedded import EmbeddedOptions


class EngineProcess(RemoteEngine):
    """Satisfies `Engine`. Made by `start`; ended by `close`, or by the end of this process."""

    def __init__(self, channel: Pipe, load: EngineLoad, silence_s: float) -> None:
        self.pid = channel.child.pid
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
        channel = Pipe(process, *await asyncio.open_connection(sock=ours))
        hello = await channel.hello("the engine's process")
        return cls(channel, decode_load(hello["load"]), silence_s)
