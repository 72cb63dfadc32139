"""An embedded engine in a separate process, on the parameters of a model in this one.

An interpreter runs one thread at a time, so an engine and thousands of rollouts in one process would wait for each
other. Memory is shared between the processes: a GPU's by handle, a CPU's by mapping. The engine sees an update of the
model at once, and nothing is copied.

Invariant: the parameters change only inside `paused_for_weight_sync`.
"""

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Self

import torch

from rstar2.engine.embedded import EmbeddedEngine, EmbeddedOptions
from rstar2.engine.embedded.weights import Weights, share_weights
from rstar2.engine.process.child import ChildChannel, spawn
from rstar2.engine.process.host import serve
from rstar2.engine.protocol import EngineLoad
from rstar2.engine.remote import EngineHost, RemoteEngine
from rstar2.engine.remote.client import SILENCE_S
from rstar2.engine.remote.wire import Frame


class SharedEngine(RemoteEngine):
    """Satisfies `Engine`. Made by `start`; ended by `close`, or by the end of this process."""

    def __init__(self, channel: ChildChannel, load: EngineLoad, weights: Weights, silence_s: float) -> None:
        self.pid = channel.pid
        super().__init__(channel, load, f"the engine's process {self.pid}", silence_s)
        self._weights = weights

    @classmethod
    async def start(
        cls,
        model: Any,
        options: EmbeddedOptions,
        guests: Sequence[socket.socket] = (),
        silence_s: float = SILENCE_S,
    ) -> Self:
        """Starts an engine on a loaded `transformers` model, whose parameters must not be moved. The other end of a
        guest's socket is for `join_engine`."""
        arguments = (replace(share_weights(model), model=None), options, torch.get_num_threads(), guests)
        channel = await spawn(_serve_shared, *arguments, context=torch.multiprocessing.get_context("spawn"))
        # Sharing the memory of a CPU has moved the parameters.
        weights = share_weights(model)
        hello = await channel.hello("the engine's process")
        return cls(channel, hello["load"], weights, silence_s)

    @asynccontextmanager
    async def paused_for_weight_sync(self, policy_version: int) -> AsyncIterator[None]:
        """Pauses the engine. Inside it the parameters may be updated in place; after it the engine generates with
        them."""
        await self._ask("pause", {})
        try:
            yield
            self._weights.check_shared()
        finally:
            if self._weights.device.type == "cuda":
                await asyncio.to_thread(torch.cuda.synchronize, self._weights.device)
            await self._ask("resume", {"policy_version": policy_version})


# The child's side.


class _Host(EngineHost):
    """An engine that can be paused."""

    def __init__(self, engine: EmbeddedEngine, device: torch.device) -> None:
        super().__init__(engine)
        self._embedded = engine
        self._device = device
        self._pause = ExitStack()

    async def _do(self, frame: Frame) -> None:
        match frame["ask"]:
            case "pause":
                await asyncio.to_thread(self._pause.enter_context, self._embedded.paused())
                if self._device.type == "cuda":
                    await asyncio.to_thread(torch.cuda.synchronize, self._device)
                self._embedded.give_cache_back()
            case "resume":
                self._embedded.weights_changed(frame["policy_version"])
                self._pause.close()
            case _:
                await super()._do(frame)


def _serve_shared(
    connection: socket.socket,
    weights: Weights,
    options: EmbeddedOptions,
    num_threads: int,
    guests: Sequence[socket.socket],
) -> None:
    # Ctrl-C reaches every process of the terminal; the owner decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(num_threads)
    make_engine, make_host = partial(EmbeddedEngine, weights, options), partial(_Host, device=weights.device)
    asyncio.run(serve(connection, make_engine, make_host, guests))
