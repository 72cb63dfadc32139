"""Serves the viewer on a port: the page's files, and read-only answers about the given runs."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from rstar2.errors import UserError
from rstar2.sandbox.http.connections import Connections, affordable_connections
from rstar2.web.assets import PAGE, assets
from rstar2.web.guard import add_headers, guard
from rstar2.web.playground import MAX_QUESTION_BYTES, Playground
from rstar2.web.run_reader import RunReader
from rstar2.web.step_reader import Query

Answer = Callable[[RunReader, web.Request], dict[str, Any]]

_NUMBER = re.compile(r"\d{1,18}")
MAX_SEARCH_CHARS = 1000
HEADER_TIMEOUT_S = 10.0
KEEPALIVE_S = 75.0


def create_app(
    readers: Sequence[RunReader], *, host: str = "127.0.0.1", playground: Playground | None = None
) -> web.Application:
    """`host` is the address to listen on, which decides the accepted Host headers."""
    by_key = {reader.key: reader for reader in readers}
    app = web.Application(middlewares=[guard(host)], client_max_size=MAX_QUESTION_BYTES)
    app.on_response_prepare.append(add_headers)

    async def runs(_: web.Request) -> web.Response:
        overviews = await asyncio.to_thread(lambda: [reader.overview() for reader in readers])
        return web.json_response({"runs": overviews, "models": list(playground.models) if playground else []})

    def about(answer: Answer) -> Callable[[web.Request], Any]:
        async def handle(request: web.Request) -> web.Response:
            reader = by_key.get(request.match_info["run"])
            if reader is None:
                raise UserError("the viewer was not started with this run")
            return web.json_response(await asyncio.to_thread(answer, reader, request))

        return handle

    app.router.add_get("/api/runs", runs)
    for path, answer in _ANSWERS.items():
        app.router.add_get(f"/api/runs/{{run}}/{path}", about(answer))
    if playground is not None:
        app.router.add_post("/v1/chat/completions", playground.handle)
    app.router.add_get("/{name:[a-z_]*(?:\\.[a-z]+)?}", _asset)
    return app


@asynccontextmanager
async def serving(app: web.Application, host: str, port: int) -> AsyncIterator[str]:
    """Serve the application on a port during the block; yields its address. A request is cancelled when its reader
    disconnects."""
    runner = web.AppRunner(
        app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0, keepalive_timeout=KEEPALIVE_S
    )
    await runner.setup()
    assert runner.server is not None
    connections = Connections(runner.server, affordable_connections(), HEADER_TIMEOUT_S)
    try:
        try:
            listening = await asyncio.get_running_loop().create_server(connections, host, port)
        except OSError as error:
            raise UserError(f"cannot listen on {host}, port {port}: {error.strerror}; choose another --port") from error
        bound_port = listening.sockets[0].getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        try:
            yield f"http://{shown}:{bound_port}/"
        finally:
            listening.close()
    finally:
        await runner.cleanup()


async def _asset(request: web.Request) -> web.Response:
    asset = assets().get(request.match_info["name"] or PAGE)
    if asset is None:
        raise web.HTTPNotFound
    return web.Response(body=asset.body, content_type=asset.content_type, charset="utf-8")


def _number(request: web.Request, name: str, default: int | None = None) -> int:
    text = request.match_info.get(name) or request.query.get(name)
    if text is None and default is not None:
        return default
    if text is None or not _NUMBER.fullmatch(text):
        raise UserError(f"{name} must be a number, 0 or more")
    return int(text)


def _step(request: web.Request) -> int:
    return _number(request, "step")


def _query(request: web.Request) -> Query:
    flags = frozenset(filter(None, request.query.get("flags", "").split(",")))
    return Query(flags, request.query.get("text", "")[:MAX_SEARCH_CHARS])


def _side_by_side(reader: RunReader, request: web.Request) -> dict[str, Any]:
    if "problem" in request.query:
        return reader.side_by_side(_step(request), None, request.query["problem"])
    return reader.side_by_side(_step(request), _number(request, "group"), None)


_ANSWERS: dict[str, Answer] = {
    "overview": lambda reader, _: reader.overview(),
    "recipe": lambda reader, _: reader.recipe(),
    "metrics": lambda reader, request: reader.metrics(_number(request, "from", 0)),
    "events": lambda reader, request: reader.events(_number(request, "from", 0)),
    "steps": lambda reader, _: reader.steps(),
    "steps/{step}/problems": lambda reader, request: reader.problems(_step(request), _number(request, "after", 0)),
    "steps/{step}/rollouts": lambda reader, request: reader.rollouts(
        _step(request), _query(request), _number(request, "after", 0)
    ),
    "steps/{step}/side-by-side": _side_by_side,
    "steps/{step}/traces/{at}": lambda reader, request: reader.trace(_step(request), _number(request, "at")),
    "steps/{step}/tool-calls": lambda reader, request: reader.tool_calls(_step(request)),
    "steps/{step}/schedule": lambda reader, request: reader.schedule(_step(request)),
}
