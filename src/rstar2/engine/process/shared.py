"""An embedded engine in a separate process, on the weights of this one.

An interpreter runs one thread at a time, so an engine and thousands of rollouts or HTTP requests in one process would
wait for each other. Memory is shared between the processes: a GPU's by handle, a CPU's by mapping. The engine sees an
update of the weights at once, and nothing is copied.

Invariant: the weights change only inside `paused_for_weight_sync`.
"""

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Self

import torch

from rstar2.engine.embedded import EmbeddedEngine, EmbeddedOptions
from rstar2.engine.embedded.named_weights import named_weights
from rstar2.engine.embedded.weights import Weights, share_weights
from rstar2.engine.process.child import ChildChannel, spawn
from rstar2.engine.process.host import serve
from rstar2.engine.protocol import EngineLoad, TokenScores
from rstar2.engine.remote import EngineHost, RemoteEngine
from rstar2.engine.remote.client import SILENCE_S
from rstar2.engine.remote.wire import Frame
from rstar2.errors import InfrastructureError


class SharedEngine(RemoteEngine):
    """Satisfies `Engine`, `ScoringEngine` and `UpdatableEngine`. Made by `start`; ended by `close`, or by the end of
    this process."""

    def __init__(self, channel: ChildChannel, load: EngineLoad, weights: Weights, silence_s: float) -> None:
        self.pid = channel.pid
        super().__init__(channel, load, f"the engine's process {self.pid}", silence_s)
        self._weights = weights
        self.policy_version = 0

    @classmethod
    async def start(
        cls,
        weights: Weights,
        options: EmbeddedOptions,
        guests: Sequence[socket.socket] = (),
        silence_s: float = SILENCE_S,
    ) -> Self:
        """Starts an engine on these weights, which must not be moved. The other end of a guest's socket is for
        `join_engine`."""
        arguments = (replace(weights, model=None), options, torch.get_num_threads(), guests)
        channel = await spawn(_serve_shared, *arguments, context=torch.multiprocessing.get_context("spawn"))
        if weights.model is not None:  # sharing the memory of a CPU has moved its parameters
            weights = share_weights(weights.model)
        hello = await channel.hello("the engine's process")
        return cls(channel, hello["load"], weights, silence_s)

    def named_weights(self) -> dict[str, torch.Tensor]:
        return named_weights(self._weights)

    async def score(self, token_ids: Sequence[int], start: int, num_top: int, temperature: float = 1.0) -> TokenScores:
        number = next(self._numbers)
        request = {"token_ids": list(token_ids), "start": start, "num_top": num_top, "temperature": temperature}
        try:
            return TokenScores(*await self._ask("score", request, number))
        except asyncio.CancelledError:
            self._tell("leave", {}, number)
            raise

    async def drop_prefixes(self) -> None:
        await self._ask("drop_prefixes", {})

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Inside it no token is made, and nothing reads the weights."""
        try:  # whoever is cancelled while he asks lets go, too
            await self._ask("hold", {})
            yield
        finally:
            with suppress(InfrastructureError):  # the engine is lost, and whoever asks it hears so
                await self._ask("let_go", {})

    @asynccontextmanager
    async def paused_for_weight_sync(self, policy_version: int) -> AsyncIterator[None]:
        """Pauses the engine. Inside it the weights may be updated in place; after it the engine generates with them."""
        try:
            await self._ask("pause", {})
            yield
            self._weights.check_shared()
        finally:
            if self._weights.device.type == "cuda":
                await asyncio.to_thread(torch.cuda.synchronize, self._weights.device)
            await self._ask("resume", {"policy_version": policy_version})
            self.policy_version = policy_version


# The child's side.


class _Host(EngineHost):
    """An engine that can be paused, asked for scores, and made to forget its prefixes."""

    def __init__(self, engine: EmbeddedEngine, device: torch.device, *, starts_early: bool) -> None:
        super().__init__(engine, starts_early=starts_early)
        self._embedded = engine
        self._device = device
        self._pause = ExitStack()
        self._hold = ExitStack()
        self._order = asyncio.Lock()
        """Held while a pause begins: its end, which may be asked for meanwhile, comes after that."""

    async def _do(self, frame: Frame) -> Any:
        match frame["ask"]:
            case "pause":
                async with self._order:
                    await asyncio.to_thread(self._pause.enter_context, self._embedded.paused())
                    if self._device.type == "cuda":
                        await asyncio.to_thread(torch.cuda.synchronize, self._device)
                    self._embedded.give_cache_back()
            case "resume":
                async with self._order:
                    self._embedded.weights_changed(frame["policy_version"])
                    self._pause.close()
            case "hold":
                async with self._order:
                    await asyncio.to_thread(self._hold.enter_context, self._embedded.paused())
            case "let_go":
                async with self._order:
                    self._hold.close()
            case "drop_prefixes":
                await self._embedded.drop_prefixes()
            case "score":
                given = (frame[name] for name in ("token_ids", "start", "num_top", "temperature"))
                scores = await self._embedded.score(*given)
                return scores.log_probs, scores.ranks, scores.top
            case _:
                await super()._do(frame)
        return None


def _serve_shared(
    connection: socket.socket,
    weights: Weights,
    options: EmbeddedOptions,
    num_threads: int,
    guests: Sequence[socket.socket],
) -> None:
    # Ctrl-C reaches every process of the terminal, and a service manager's SIGTERM every process of the service: the
    # owner decides what they mean, and this process ends with it.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(num_threads)
    make_engine = partial(EmbeddedEngine, weights, options)
    make_host = partial(_Host, device=weights.device, starts_early=options.starts_early)
    asyncio.run(serve(connection, make_engine, make_host, guests))
