"""A served tiny model in the test's own process, so that its engine and its counters can be looked at."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import aiohttp
import torch

from rstar2.agent import load_chat
from rstar2.engine.embedded import EmbeddedEngine, EmbeddedOptions
from rstar2.engine.embedded.read_weights import read_weights
from rstar2.engine.process.shared import SharedEngine
from rstar2.serve import ServedModel, Server, ServeSettings, create_app
from rstar2.serve.app import SERVICE
from rstar2.serve.service import ModelService

DEADLINE_S = 240.0
_chat = cache(load_chat)


@dataclass(frozen=True)
class Running:
    root: str
    service: ModelService
    engine: EmbeddedEngine | SharedEngine
    server: Server
    http: aiohttp.ClientSession


async def until(holds: Callable[[], bool]) -> None:
    """Waits for a state that other tasks and threads bring about."""
    async with asyncio.timeout(DEADLINE_S):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@asynccontextmanager
async def running(
    folder: Path,
    settings: ServeSettings | None = None,
    options: EmbeddedOptions | None = None,
    *,
    apart: bool = False,
) -> AsyncIterator[Running]:
    """`apart`: with the engine in a process of its own, as on a GPU."""
    weights = read_weights(folder, torch.device("cpu"), torch.float32)
    assert weights is not None
    options = options or EmbeddedOptions(kv_cache_tokens=1 << 16)
    engine = await SharedEngine.start(weights, options) if apart else EmbeddedEngine(weights, options)
    listener = socket.create_server(("127.0.0.1", 0))
    app = create_app(ServedModel(engine, _chat(folder), "tiny", 2048), settings)
    server = Server(app)
    await server.start([listener])
    try:
        async with aiohttp.ClientSession() as http:
            port = listener.getsockname()[1]
            yield Running(f"http://127.0.0.1:{port}", app[SERVICE], engine, server, http)
    finally:
        await server.drain(0.0)
        await engine.close()
