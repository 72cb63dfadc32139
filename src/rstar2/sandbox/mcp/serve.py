"""Runs the server until stdin is closed or a signal comes."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any, cast

import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from rstar2.sandbox.http.caller import check_caller
from rstar2.sandbox.http.connections import NUM_SPARE, Connections
from rstar2.sandbox.http.errors import ApiError
from rstar2.sandbox.mcp.stdio import lines_of, standard_streams, writer_to

MAX_BODY_BYTES = 24 * 2**20
"""The limit of a body; fits the largest file, in base64."""
MAX_REQUESTS = 1024
"""The maximum number of concurrent requests; more are answered with 503."""
HEADER_TIMEOUT_S = 10.0
DRAIN_S = 30
SIGNALS = (signal.SIGTERM, signal.SIGINT)


async def serve_stdio(server: MCPServer[None]) -> None:
    """Serve until the client closes stdin, or SIGTERM or SIGINT comes."""
    with standard_streams() as (wire_in, wire_out):
        serving = asyncio.create_task(_speak(server, await lines_of(wire_in), await writer_to(wire_out)))
        with _on_signal(serving.cancel):
            await asyncio.wait([serving])
    if not serving.cancelled():
        serving.result()


async def _speak(server: MCPServer[None], lines: Any, writer: Any) -> None:
    low = server._lowlevel_server
    try:
        async with stdio_server(lines, writer) as (received, sent):
            await low.run(received, sent, low.create_initialization_options())
    except* OSError:
        pass  # The client has ended, and does not read the answer.


async def serve_http(
    server: MCPServer[None],
    listener: socket.socket,
    *,
    token: str | None,
    listening_host: str,
    on_ready: Callable[[], object] = lambda: None,
    header_timeout_s: float = HEADER_TIMEOUT_S,
) -> None:
    """Serve at `/mcp` of a listening socket until SIGTERM or SIGINT; running calls then get `DRAIN_S` seconds."""
    app = server.streamable_http_app(
        stateless_http=True,
        max_request_body_size=MAX_BODY_BYTES,
        # `_with_caller_check` checks the headers, as in the other services of the sandbox.
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )
    config = uvicorn.Config(
        _with_caller_check(app, token, listening_host),
        # uvicorn counts silent connections as requests; they must not keep other callers out.
        http=cast(type[asyncio.Protocol], _Watched(header_timeout_s)),
        ws="none",
        log_level="warning",
        limit_concurrency=MAX_REQUESTS,
        timeout_graceful_shutdown=DRAIN_S,
        lifespan="on",
    )
    serving = _Uvicorn(config, on_ready)
    with _on_signal(serving.stop):
        await serving.serve([listener])


class _Watched:
    """Makes uvicorn's protocol of each connection, watched by `Connections` as in the other services of the sandbox."""

    def __init__(self, header_timeout_s: float) -> None:
        self._header_timeout_s = header_timeout_s
        self._connections: Connections | None = None

    def __call__(self, **given: Any) -> asyncio.Protocol:
        if self._connections is None:
            max_open = MAX_REQUESTS - NUM_SPARE
            self._connections = Connections(
                lambda: AutoHTTPProtocol(**given), max_open, self._header_timeout_s, _has_request
            )
        return self._connections()


def _has_request(handler: Any) -> bool:
    return handler.cycle is not None and not handler.cycle.response_complete


class _Uvicorn(uvicorn.Server):
    """uvicorn without its signal handlers, which would end the process before the sandbox is closed."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], object]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    def stop(self) -> None:
        self.force_exit = self.should_exit  # the second signal ends the draining
        self.should_exit = True


def _with_caller_check(app: ASGIApp, token: str | None, listening_host: str) -> ASGIApp:
    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                check_caller(Headers(scope=scope), token=token, listening_host=listening_host)
            except ApiError as error:
                body = {"error": error.body.error, "message": error.body.message}
                await JSONResponse(body, error.status)(scope, receive, send)
                return
        await app(scope, receive, send)

    return guarded


@contextlib.contextmanager
def _on_signal(act: Callable[[], object]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, act)
    try:
        yield
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
