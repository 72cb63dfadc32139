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
from dataclasses import replace
from typing import Any, Self

import torch

from rstar2.engine.embedded import EmbeddedEngine, EmbeddedOptions
from rstar2.engine.embedded.weights import Weights, share_weights
from rstar2.engine.process.client import CLOSE_TIMEOUT_S, START_TIMEOUT_S
from rstar2.engine.process.framing import FrameWriter, read_frame, write_frame
from rstar2.engine.process.host import serve_until_gone
from rstar2.engine.protocol import EngineLoad
from rstar2.engine.remote import EngineHost, RemoteEngine
from rstar2.engine.remote.client import SILENCE_S
from rstar2.engine.remote.wire import Frame, decode_error, decode_load, encode_error, encode_load
from rstar2.errors import InfrastructureError, UserError


class SharedEngine(RemoteEngine):
    """Satisfies `Engine`. Made by `start`; ended by `close`, or by the end of this process."""

    def __init__(self, channel: "_Pipe", load: EngineLoad, weights: Weights, silence_s: float) -> None:
        assert channel.process.pid is not None, "it was started"
        self.pid = channel.process.pid
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
        channel = _Pipe(process, *await asyncio.open_connection(sock=ours))
        try:
            load = await _await_ready(channel)
        except BaseException:
            await channel.close()
            raise
        return cls(channel, load, weights, silence_s)

    @asynccontextmanager
    async def learning(self, policy_version: int) -> AsyncIterator[None]:
        """Inside it the parameters may be updated in place; after it the engine generates with them."""
        await self._ask_and_wait("pause", {})
        yield
        self._weights.check_shared()
        if self._weights.device.type == "cuda":
            await asyncio.to_thread(torch.cuda.synchronize, self._weights.device)
        await self._ask_and_wait("resume", {"policy_version": policy_version})


class _Pipe:
    """Satisfies `Channel`."""

    def __init__(
        self, process: multiprocessing.process.BaseProcess, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
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
        await asyncio.to_thread(self.process.join, CLOSE_TIMEOUT_S)
        if self.process.is_alive():
            self.process.kill()
            await asyncio.to_thread(self.process.join)


async def _await_ready(channel: _Pipe) -> EngineLoad:
    try:
        hello = await asyncio.wait_for(channel.receive(), START_TIMEOUT_S)
    except TimeoutError:
        raise InfrastructureError(f"the engine's process was not ready after {START_TIMEOUT_S:.0f} s") from None
    if hello is None:
        raise InfrastructureError("the engine's process ended as it started; what it said is above")
    if hello["error"] is not None:
        raise decode_error(hello["error"])
    return decode_load(hello["load"])


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
    asyncio.run(_serve(connection, weights, options))


async def _serve(connection: socket.socket, weights: Weights, options: EmbeddedOptions) -> None:
    reader, writer = await asyncio.open_connection(sock=connection)
    try:
        engine = EmbeddedEngine(weights, options)
    except UserError as error:
        write_frame(writer, {"error": encode_error(error)})
        await writer.drain()
        return
    write_frame(writer, {"error": None, "load": encode_load(engine.load())})
    await serve_until_gone(_Host(engine, weights.device), reader, writer)
    await engine.close()
