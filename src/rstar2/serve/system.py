"""The routes of every server: models, health, metrics and the OpenAPI document."""

import asyncio
from typing import Any

from aiohttp import web

from rstar2.engine.protocol import FallibleEngine
from rstar2.serve.episode import ServedAgent
from rstar2.serve.errors import OpenAIError
from rstar2.serve.metrics import Level
from rstar2.serve.service import ModelService


class ModelSystemApi:
    def __init__(self, service: ModelService, agent: ServedAgent | None = None) -> None:
        self._service = service
        self._agent = agent
        self._document: dict[str, Any] = {}

    def publish(self, document: dict[str, Any]) -> None:
        self._document = document

    async def root(self, _: web.Request) -> web.Response:
        return web.json_response({"model": self._service.model.name, "base_url": "/v1", "openapi": "/openapi.json"})

    async def models(self, _: web.Request) -> web.Response:
        own = self._service.model.name
        cards = [self._card(own, None)]
        cards += [self._card(name, adapter.path) for name, adapter in self._service.gate.adapters.items()]
        return web.json_response({"object": "list", "data": cards})

    async def model(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        self._service.weights_named(name)
        adapter = self._service.gate.adapters.get(name)
        return web.json_response(self._card(name, None if adapter is None else adapter.path))

    def _card(self, name: str, adapter_path: str | None) -> dict[str, Any]:
        model = self._service.model
        return {
            "id": name,
            "object": "model",
            "created": self._service.started,
            "owned_by": "rstar2",
            "root": adapter_path or model.name,
            "parent": None if adapter_path is None else model.name,
            "max_model_len": model.max_model_len,
        }

    async def health(self, _: web.Request) -> web.Response:
        if self._service.admission.is_draining:
            wait_s = self._service.settings.retry_after_s
            raise OpenAIError(503, "the server is shutting down", code="draining", retry_after_s=wait_s)
        engine = self._service.model.engine
        if isinstance(engine, FallibleEngine) and engine.failure is not None:
            raise OpenAIError(503, f"the engine failed: {engine.failure}", code="engine_failed")
        return web.json_response({"status": "ok"})

    async def metrics(self, _: web.Request) -> web.Response:
        service = self._service
        page = service.metrics.render(service.model.engine.load(), service.gate.num_waiting, self._levels())
        return web.Response(text=page, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    def _levels(self) -> list[Level]:
        in_flight = self._service.admission.num_in_flight
        levels = [
            Level("rstar2_serve_in_flight", "Sequences, or an agent's episodes, that are not answered yet.", in_flight),
            Level("rstar2_serve_tasks", "Tasks of the server's event loop.", len(asyncio.all_tasks())),
        ]
        sandbox = {} if self._agent is None else self._agent.sandbox_status()
        if sandbox.get("started"):
            running, waiting = sandbox["running"], sandbox["queued"]
            levels += [
                Level("rstar2_serve_sandbox_running", "Programs that run in the agent's sandbox.", running),
                Level("rstar2_serve_sandbox_waiting", "Programs that wait for a slot there.", waiting),
                Level("rstar2_serve_sandbox_sessions", "Notebook sessions there.", sandbox["sessions"]),
            ]
        return levels

    async def openapi(self, _: web.Request) -> web.Response:
        return web.json_response(self._document)
