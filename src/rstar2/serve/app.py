"""The application of a model server: its routes, and the check of callers. The caller owns the engine."""

import hmac
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from rstar2.sandbox.http.access import is_of_another_site, may_ask
from rstar2.sandbox.http.server import DRAINABLE
from rstar2.serve.agent import AgentApi
from rstar2.serve.bodies import (
    CHAT,
    COLLECTIVE_RPC,
    COMPLETION,
    GENERATE,
    LOAD_ADAPTER,
    UNLOAD_ADAPTER,
    UPDATE_WEIGHTS,
)
from rstar2.serve.chat import ChatApi
from rstar2.serve.completions import CompletionApi
from rstar2.serve.control import PAUSE_MODES, ControlApi
from rstar2.serve.episode import ServedAgent
from rstar2.serve.errors import OpenAIError
from rstar2.serve.generate import GenerateApi
from rstar2.serve.openapi import Route, openapi_document
from rstar2.serve.routing import answered
from rstar2.serve.served_model import ServedModel
from rstar2.serve.service import ModelService
from rstar2.serve.settings import ServeSettings
from rstar2.serve.system import ModelSystemApi

SERVICE = web.AppKey("service", ModelService)
DOCUMENT = web.AppKey("document", dict[str, Any])
"""The OpenAPI document that the application serves."""

HEADERS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}


def create_app(
    model: ServedModel,
    settings: ServeSettings | None = None,
    agent: ServedAgent | None = None,
    service: ModelService | None = None,
) -> web.Application:
    """Make the application. An `agent` answers chat requests, the model all others. `service` replaces the default
    service of this model and these settings."""
    settings = settings or ServeSettings()
    service = service or ModelService(model, settings)
    system = ModelSystemApi(service, agent)
    routes = [
        *_answering(service, agent),
        *_describing(system),
        *(_controlling(service) if settings.allows_updates else ()),
    ]
    document = openapi_document(routes, has_keys=bool(settings.keys))
    system.publish(document)
    open_paths = frozenset(route.path for route in routes if route.is_open)
    app = web.Application(middlewares=[_guard(service, open_paths)], client_max_size=settings.max_body_bytes)
    app[SERVICE] = app[DRAINABLE] = service
    app[DOCUMENT] = document
    for route in routes:
        app.router.add_route(route.method, route.path, route.handler)
    return app


def _answering(service: ModelService, agent: ServedAgent | None) -> list[Route]:
    chat = ChatApi(service).handle if agent is None else AgentApi(service, agent).handle
    codes, kinds = (404, 429, 503, 504), ("application/json", "text/event-stream")
    return [
        Route("POST", "/v1/chat/completions", chat, "Continue a conversation.", CHAT, codes, kinds),
        Route(
            "POST", "/v1/completions", CompletionApi(service).handle, "Continue texts or ids.", COMPLETION, codes, kinds
        ),
        Route("POST", "/inference/v1/generate", GenerateApi(service).handle, "Continue ids.", GENERATE, codes),
    ]


def _describing(system: ModelSystemApi) -> list[Route]:
    return [
        Route("GET", "/", system.root, "Where to go."),
        Route("GET", "/v1/models", system.models, "The model and its adapters."),
        Route("GET", "/v1/models/{name:.+}", system.model, "One of them.", refusals=(404,)),
        Route("GET", "/health", system.health, "Whether it takes requests.", refusals=(503,), is_open=True),
        Route("GET", "/metrics", system.metrics, "Prometheus metrics.", content_types=("text/plain",)),
        Route("GET", "/openapi.json", system.openapi, "This document.", is_open=True),
    ]


def _controlling(service: ModelService) -> list[Route]:
    control = ControlApi(service)
    text = ("text/plain",)
    return [
        Route(
            *("POST", "/pause", control.pause, "Stop making tokens."),
            refusals=(400, 501, 504),
            query=(("mode", PAUSE_MODES),),
        ),
        Route("POST", "/resume", control.resume, "Go on."),
        Route("GET", "/is_paused", control.is_paused, "Whether it is paused."),
        Route("POST", "/v1/load_lora_adapter", control.load_adapter, "Load an adapter.", LOAD_ADAPTER, (501,), text),
        Route(
            "POST", "/v1/unload_lora_adapter", control.unload_adapter, "Unload it.", UNLOAD_ADAPTER, (404, 501), text
        ),
        Route("POST", "/init_weight_transfer_engine", control.init_transfer, "Not supported.", refusals=(501,)),
        Route("POST", "/start_weight_update", control.start_update, "Begin an update.", refusals=(409,)),
        Route("POST", "/update_weights", control.update_weights, "Read weights from a folder.", UPDATE_WEIGHTS, (501,)),
        Route("POST", "/finish_weight_update", control.finish_update, "End an update.", refusals=(409,)),
        Route("POST", "/collective_rpc", control.collective_rpc, "Only reload_weights.", COLLECTIVE_RPC, (501,)),
        Route("POST", "/reset_prefix_cache", control.reset_prefix_cache, "Empty the prefix cache.", refusals=(501,)),
        Route("GET", "/server_info", control.server_info, "The configuration, as TRL reads it."),
        Route("GET", "/get_world_size", control.world_size, "The number of workers: 1."),
    ]


def _guard(service: ModelService, open_paths: frozenset[str]) -> Middleware:
    """The middleware around every handler: it checks the caller, and turns failures into responses."""

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        async def checked(request: web.Request) -> web.StreamResponse:
            _check_caller(request, service.settings, needs_key=request.path not in open_paths)
            if request.path not in open_paths and service.is_beyond_bound(request.transport):
                wait_s, message = service.settings.retry_after_s, "over capacity: too many connections are open"
                raise OpenAIError(503, message, code="overloaded", retry_after_s=wait_s)
            return await handler(request)

        response = await answered(checked, request)
        service.metrics.responses[response.status] += 1
        if not response.prepared:
            response.headers.update(HEADERS)
        return response

    return guard


def _check_caller(request: web.Request, settings: ServeSettings, *, needs_key: bool) -> None:
    """Refuse pages of other sites and callers without a key. If there are no keys, refuse Host headers with a name that
    others may have too; with keys any name will do, such as a proxy's."""
    host = request.headers.get("Host", "")
    if is_of_another_site(request.headers.get("Origin"), host):
        raise OpenAIError(403, "this was asked for by a page of another site")
    if settings.keys and needs_key:
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        sent = given.strip().encode(errors="surrogateescape")
        # Compare all keys, so that the time tells nothing about them.
        matches = [hmac.compare_digest(sent, key.encode()) for key in settings.keys]
        if scheme.lower() != "bearer" or not any(matches):
            raise OpenAIError(401, "send a key of this server as `Authorization: Bearer KEY`", code="invalid_api_key")
    elif not may_ask(host, settings.listening_host):
        raise OpenAIError(403, f"this server is not called {host!r}: ask it by its address")
    # Browsers let a page send this type to another site only after a preflight request.
    if request.body_exists and request.content_type != "application/json":
        raise OpenAIError(415, "send the body as `Content-Type: application/json`")
