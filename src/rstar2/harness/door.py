"""The model's address for programs: a local server, with one key per episode."""

import asyncio
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiohttp import web
from aiohttp.typedefs import Handler

from rstar2.agent import ChatFormat
from rstar2.harness.recording import CURRENT, Recording
from rstar2.harness.service import EpisodesEngine, RecordedService
from rstar2.serve import ServedModel, Server, ServeSettings, create_app
from rstar2.serve.errors import OpenAIError

HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Address:
    base_url: str
    api_key: str
    model: str


class Door:
    """The programs' server, from the first episode to the environment's end."""

    def __init__(self, model: str, request_timeout_s: float) -> None:
        self._model = model
        self._request_timeout_s = request_timeout_s
        self._recordings: dict[str, Recording] = {}
        self._server: Server | None = None
        self._starting = asyncio.Lock()
        self._port = 0

    async def open(self, chat: ChatFormat) -> None:
        """Start the server once."""
        async with self._starting:
            if self._server is not None:
                return
            settings = ServeSettings(listening_host=HOST, request_timeout_s=self._request_timeout_s)
            model = ServedModel(EpisodesEngine(), chat, self._model)
            app = create_app(model, settings, service=RecordedService(model, settings))
            app.middlewares.insert(0, self._admit)
            listener = socket.create_server((HOST, 0))
            self._port = listener.getsockname()[1]
            server = Server(app)
            await server.start([listener])
            self._server = server

    @asynccontextmanager
    async def lent(self, recording: Recording) -> AsyncIterator[Address]:
        """Lend an address and key to one episode for the duration of the block. Afterwards nothing more is generated
        for the episode, even if its program still waits: a function in a thread cannot be ended."""
        key = secrets.token_urlsafe(24)
        self._recordings[key] = recording
        try:
            yield Address(f"http://{HOST}:{self._port}/v1", key, self._model)
        finally:
            del self._recordings[key]
            await recording.end()

    async def close(self) -> None:
        if self._server is not None:
            await self._server.drain(0.0)

    @property
    def _admit(self) -> "web.middlewares.Middleware":  # type: ignore[name-defined]
        @web.middleware
        async def admit(request: web.Request, handler: Handler) -> web.StreamResponse:
            scheme, _, key = request.headers.get("Authorization", "").partition(" ")
            recording = self._recordings.get(key.strip()) if scheme.lower() == "bearer" else None
            if recording is None:
                return OpenAIError(401, "no episode that runs has this key", code="invalid_api_key").response
            CURRENT.set(recording)
            with recording.answering():
                return await handler(request)

        return admit
