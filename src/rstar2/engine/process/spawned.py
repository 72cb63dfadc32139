"""A function of this program, run in a new interpreter with a socket to us."""

import asyncio
import multiprocessing.process
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rstar2.engine.process.pipe import Pipe


async def spawn(target: Callable[..., None], *arguments: Any, context: Any = None) -> Pipe:
    """`target(connection, *arguments)`, whose end is the end of the child. The child ends with this process."""
    ours, theirs = socket.socketpair()
    with theirs:
        context = context or multiprocessing.get_context("spawn")
        process = context.Process(target=target, args=(theirs, *arguments), daemon=True)
        await asyncio.to_thread(process.start)
    return Pipe(_Spawned(process), *await asyncio.open_connection(sock=ours))


@dataclass(frozen=True, slots=True)
class _Spawned:
    """Satisfies `Child`."""

    process: multiprocessing.process.BaseProcess

    @property
    def pid(self) -> int:
        assert self.process.pid is not None, "it was started"
        return self.process.pid

    async def wait(self) -> int:
        await asyncio.to_thread(self.process.join)
        assert self.process.exitcode is not None
        return self.process.exitcode

    def kill(self) -> None:
        self.process.kill()
