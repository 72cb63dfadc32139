"""The application, and how it is served on a listening socket: serve, drain, stop.

The caller owns the executor: it opens the executor before the application and closes it afterwards.
"""

import asyncio
import logging
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from rstar2.errors import InfrastructureError
from rstar2.sandbox.executor import Executor, Overloaded
from rstar2.sandbox.http.caller import check_caller
from rstar2.sandbox.http.compat_code_judge import CodeJudgeApi
from rstar2.sandbox.http.compat_e2b import E2bApi
from rstar2.sandbox.http.compat_openenv import WS_PATH, OpenEnvApi
from rstar2.sandbox.http.compat_sandbox_fusion import SandboxFusionApi
from rstar2.sandbox.http.errors import ApiError, from_http_exception, overloaded, response_to
from rstar2.sandbox.http.native import NativeApi
from rstar2.sandbox.http.operations import openapi_document
from rstar2.sandbox.http.server import DRAINABLE, Server
from rstar2.sandbox.http.service import AnswerGrader, Guarantees, Load, Service, ServiceSettings
from rstar2.sandbox.http.session_files import SessionFilesApi
from rstar2.sandbox.http.session_table import SessionTable
from rstar2.sandbox.http.streams import StreamApi
from rstar2.sandbox.http.system import Nodes, SystemApi

logger = logging.getLogger(__name__)
SERVICE = web.AppKey("service", Service)
DOCUMENT = web.AppKey("document", dict[str, Any])
"""The OpenAPI document that the application serves."""


def create_app(
    executor: Executor,
    settings: ServiceSettings | None = None,
    *,
    grader: AnswerGrader | None = None,
    guarantees: Guarantees = tuple,
    load: Callable[[], Load] | None = None,
    nodes: Nodes | None = None,
    backend: str = "linux",
) -> web.Application:
    """Make the application. `nodes` are the machines behind a gateway; they may join and leave through it. `backend`
    names what isolates programs."""
    settings = settings or ServiceSettings()
    service = Service(executor, settings, grader=grader, guarantees=guarantees, load=load)
    sessions = SessionTable(settings)
    system = SystemApi(service, sessions, nodes, backend)
    openenv = OpenEnvApi(service, sessions)
    operations = [
        *system.operations(),
        *NativeApi(service, sessions).operations(),
        *StreamApi(service, sessions).operations(),
        *SessionFilesApi(service, sessions).operations(),
        *CodeJudgeApi(service).operations(),
        *SandboxFusionApi(service).operations(),
        *openenv.operations(),
        *E2bApi(service, sessions).operations(),
    ]
    document = openapi_document(operations, has_token=settings.token is not None)
    system.publish(document)
    open_paths = {operation.path for operation in operations if operation.extra.get("security") == []}
    app = web.Application(
        middlewares=[_guard(service, frozenset(open_paths))], client_max_size=settings.max_request_bytes
    )
    app[SERVICE] = app[DRAINABLE] = service
    app[DOCUMENT] = document
    for operation in operations:
        app.router.add_route(operation.method, operation.path, operation.handler)
    app.router.add_get(WS_PATH, openenv.play)
    app.cleanup_ctx.append(lambda _: _sessions_lifetime(sessions, settings))
    return app


def _guard(service: Service, open_paths: frozenset[str]) -> Middleware:
    """The middleware around every handler: it checks the caller, and turns failures into responses."""

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        started = time.perf_counter()
        response: web.StreamResponse
        try:
            _check_caller(request, service.settings, needs_token=request.path not in open_paths)
            if request.path not in open_paths and service.is_beyond_bound(request.transport):
                raise overloaded("over capacity: too many connections are open", service.settings.retry_after_s)
            response = await handler(request)
        except ApiError as error:
            response = response_to(error)
        except Overloaded as error:
            response = response_to(overloaded(str(error), error.retry_after_s))
        except InfrastructureError as error:
            response = response_to(
                ApiError(503, "infrastructure", str(error), retry_after_s=service.settings.retry_after_s)
            )
        except web.HTTPException as error:
            response = from_http_exception(error)
        except ConnectionError:
            raise
        except Exception:
            logger.exception("a handler failed on %s %s", request.method, request.path)
            response = response_to(ApiError(500, "internal", "the service failed; its log says how"))
        service.metrics.count_response(response.status, time.perf_counter() - started)
        return response

    return guard


def _check_caller(request: web.Request, settings: ServiceSettings, *, needs_token: bool) -> None:
    token = settings.token if needs_token else None
    check_caller(request.headers, token=token, listening_host=settings.listening_host)
    # Browsers let a page send this type to another site only after a preflight request.
    if request.body_exists and request.content_type != "application/json":
        raise ApiError(415, "unsupported_media_type", "send the body as `Content-Type: application/json`")


async def _sessions_lifetime(sessions: SessionTable, settings: ServiceSettings) -> AsyncIterator[None]:
    async def close_idle() -> None:
        while True:
            await asyncio.sleep(min(settings.session_idle_s / 4, 60.0))
            await sessions.close_idle()

    sweeper = asyncio.ensure_future(close_idle())
    yield
    sweeper.cancel()
    await asyncio.gather(sweeper, return_exceptions=True)
    await sessions.close_all()


async def serve_forever(
    app: web.Application,
    sockets: Sequence[socket.socket],
    *,
    drain_s: float = 30.0,
    stop: asyncio.Event | None = None,
    on_ready: Callable[[], object] = lambda: None,
) -> bool:
    """Serve until `stop` is set or, if `stop` is None, until SIGTERM or SIGINT; then drain. A second signal ends the
    draining. Returns whether everything in flight was answered."""
    server = Server(app)
    await server.start(sockets)
    loop = asyncio.get_running_loop()
    stopping = stop or asyncio.Event()

    def on_signal(act: Callable[[], object]) -> None:
        for number in (signal.SIGTERM, signal.SIGINT) if stop is None else ():
            loop.add_signal_handler(number, act)

    on_signal(stopping.set)
    try:
        on_ready()
        await stopping.wait()
        draining = asyncio.ensure_future(server.drain(drain_s))
        on_signal(draining.cancel)
        await asyncio.wait([draining])
        return await server.drain(0.0) if draining.cancelled() else draining.result()
    except asyncio.CancelledError:
        await server.drain(0.0)
        raise
    finally:
        for number in (signal.SIGTERM, signal.SIGINT) if stop is None else ():
            loop.remove_signal_handler(number)
