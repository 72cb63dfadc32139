"""An embedded engine in a process of its own, on the very parameters of a model in this one.

An interpreter runs one thread at a time: an engine that shares it with thousands of rollouts waits for them, and they
for it. Its memory need not be another: a GPU's is shared by handle, a CPU's by mapping, so an update of the model is
seen by the engine at once, and costs nothing.

Invariant: the parameters change only inside `learning`, while the engine stands still.
"""

import asyncio
import multiprocessing.process
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Self

import torch

from rstar2.engine.embedded import EmbeddedEngine, EmbeddedOptions
from rstar2.engine.embedded.weights import Weights, share_weights
from rstar2.engine.process.host import serve
from rstar2.engine.process.pipe import Pipe
from rstar2.engine.protocol import EngineLoad
from rstar2.engine.remote import EngineHost, RemoteEngine
from rstar2.engine.remote.client import SILENCE_S
from rstar2.engine.remote.wire import Frame


class SharedEngine(RemoteEngine):
    """Satisfies `Engine`. Made by `start`; ended by `close`, or by the end of this process."""

    def __init__(self, channel: Pipe, load: EngineLoad, weights: Weights, silence_s: float) -> None:
        self.pid = channel.child.pid
        super().__init__(channel, load, f"the engine's process {self.pid}", silence_s)
        self._weights = weights

    @classmethod
    async def start(cls, model: Any, options: EmbeddedOptions, silence_s: float = SILENCE_S) -> Self:
        """On a loaded `transformers` model, whose parameters must stay where they are."""
        weights = share_weights(model)
        ours, theirs = socket.socketpair()
        with theirs:
            arguments = (theirs, replace(weights, model=None), options, torch.get_num_threads())
            context: Any = torch.multiprocessing.get_context("spawn")
            process = context.Process(target=_serve_shared, args=arguments, daemon=True)
            await asyncio.to_thread(process.start)
        # Sharing a CPU's memory has moved it.
        weights = share_weights(model)
        channel = Pipe(_Spawned(process), *await asyncio.open_connection(sock=ours))
        return cls(channel, await channel.ready(), weights, silence_s)

    @asynccontextmanager
    async def learning(self, policy_version: int) -> AsyncIterator[None]:
        """Inside it the parameters may be updated in place; after it the engine generates with them."""
        await self._ask_and_wait("pause", {})
        yield
        self._weights.check_shared()
        if self._weights.device.type == "cuda":
            await asyncio.to_thread(torch.cuda.synchronize, self._weights.device)
        await self._ask_and_wait("resume", {"policy_version": policy_version})


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


# The child's side.


class _Host(EngineHost):
    """An engine that can be told to stand still."""

    def __init__(self, engine: EmbeddedEngine, device: torch.device) -> None:
        super().__init__(engine)
        self._embedded = engine
        self._device = device
        self._standstill = ExitStack()

    async def _do(self, frame: Frame) -> None:
        match frame["ask"]:
            case "pause":
                await asyncio.to_thread(self._standstill.enter_context, self._embedded.paused())
                if self._device.type == "cuda":
                    await asyncio.to_thread(torch.cuda.synchronize, self._device)
            case "resume":
                self._embedded.weights_changed(frame["policy_version"])
                self._standstill.close()
            case _:
                await super()._do(frame)


def _serve_shared(connection: socket.socket, weights: Weights, options: EmbeddedOptions, num_threads: int) -> None:
    # Ctrl-C goes to the whole terminal; the owner decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(num_threads)
    asyncio.run(
        serve(connection, lambda: EmbeddedEngine(weights, options), lambda engine: _Host(engine, weights.device))
    )
