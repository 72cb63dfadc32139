"""What a node, or anything else that answers at a sandbox's address, can do to those who call it: nothing but fail."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from sandbox_cluster import TOKEN, gateway
from sandbox_service import GateExecutor, listening_socket, service, until

from rstar2.errors import InfrastructureError, UserError
from rstar2.sandbox import ExecutionStatus, client
from rstar2.sandbox.client import RemoteExecutor
from rstar2.sandbox.executor import Request
from rstar2.sandbox.http import ServiceSettings
from rstar2.sandbox.isolation import guarantees
from rstar2.sandbox.pool import pool_session
from rstar2.sandbox.pool.gateway import Gateway
from rstar2.sandbox.pool.remote_node import RemoteNode

pytestmark = pytest.mark.integration
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
TABLE = [asdict(replace(row, provided=True)) for row in guarantees.of_plain_subprocesses()]
STATUS: dict[str, Any] = {"status": "ready", "num_cores": 2, "guarantees": TABLE}


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@asynccontextmanager
async def hostile(answer: Answer) -> AsyncIterator[tuple[str, list[str]]]:
    """Its address, and the paths that it was asked for."""
    asked: list[str] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        asked.append(request.path)
        return await answer(request)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner, listener = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1), listening_socket()
    await runner.setup()
    await web.SockSite(runner, listener).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", asked
    finally:
        await runner.cleanup()


async def endless(request: web.Request, piece: bytes) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(piece)


def answering(results: Answer, status: dict[str, Any] | None = None) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response(status or STATUS) if request.path == "/status" else await results(request)

    return answer


async def test_nobody_is_sent_elsewhere() -> None:
    async with hostile(answering(lambda request: endless(request, b" "))) as (inside, asked_inside):

        async def elsewhere(_: web.Request) -> web.StreamResponse:
            return web.Response(status=307, headers={"Location": f"{inside}/latest/meta-data"})

        async with (
            hostile(elsewhere) as (url, asked),
            RemoteExecutor(url, TOKEN, retries=False) as caller,
        ):
            node = RemoteNode(url, TOKEN)
            for ask in (node.probe(), caller.run(Request("pass")), caller.session(), caller.reach()):
                with pytest.raises(UserError, match="not an rstar2 sandbox"):
                    await ask
            with pytest.raises(UserError, match="not an rstar2 sandbox"):
                await anext(caller.run_many([Request("pass")] * 2))
            with pytest.raises(UserError, match="not an rstar2 sandbox"):
                await caller.run(Request("pass"), on_output=lambda *_: None)
            await node.close()
            assert len(asked) == 6 and asked_inside == []


@pytest.mark.parametrize("piece", [b"x" * 65536, b"[" * 65536], ids=["one long line", "deep JSON"])
async def test_an_endless_answer_has_a_bound(piece: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MAX_ANSWER_BYTES", 1 << 20)
    monkeypatch.setattr(client, "most_bytes_of", lambda _: 1 << 20)
    async with (
        hostile(lambda request: endless(request, piece)) as (url, _),
        RemoteExecutor(url, TOKEN, retries=False) as caller,
    ):
        node = RemoteNode(url, TOKEN)
        many = caller.run_many([Request("pass")] * 2)
        streamed = caller.run(Request("pass"), on_output=lambda *_: None)
        for ask in (node.probe(), caller.run(Request("pass")), streamed, anext(many)):
            async with asyncio.timeout(60.0):
                with pytest.raises(UserError, match="it sent more than"):
                    await ask
        await node.close()


async def test_endless_output_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "most_bytes_of", lambda _: 1 << 20)
    line = json.dumps({"stream": "stdout", "text": "x" * 1000}).encode() + b"\n"
    async with (
        hostile(lambda request: endless(request, line * 64)) as (url, _),
        RemoteExecutor(url, TOKEN, retries=False) as caller,
    ):
        num_chars = 0

        def count(_: str, text: str) -> None:
            nonlocal num_chars
            num_chars += len(text)

        async with asyncio.timeout(60.0):
            with pytest.raises(UserError, match="it sent more than"):
                await caller.run(Request("pass"), on_output=count)
        assert 0 < num_chars <= 2 << 20


OK = {"status": "ok"}


@pytest.mark.parametrize("index", [7, -1, 10**30, None])
async def test_a_result_of_nobodys_run_is_none(index: Any) -> None:
    async def forge(_: web.Request) -> web.StreamResponse:
        return web.Response(body=json.dumps({"index": index, "result": OK}).encode() + b"\n")

    async with hostile(forge) as (url, _), RemoteExecutor(url, TOKEN, retries=False) as caller:
        with pytest.raises(UserError, match="not an rstar2 sandbox"):
            await anext(caller.run_many([Request("pass")] * 2))


async def test_output_of_no_stream_is_none() -> None:
    async def forge(_: web.Request) -> web.StreamResponse:
        return web.Response(body=b'{"stream": "../stdout", "text": "x"}\n')

    async with hostile(forge) as (url, _), RemoteExecutor(url, TOKEN, retries=False) as caller:
        with pytest.raises(UserError, match="not an rstar2 sandbox"):
            await caller.run(Request("pass"), on_output=lambda *_: None)


async def test_what_a_service_says_is_short_and_has_no_control_characters() -> None:
    async def refuse(_: web.Request) -> web.StreamResponse:
        message = "\x1b]0;owned\x07\x9b2J\n" + "long " * 100_000
        return web.json_response({"error": "invalid", "message": message, "detail": []}, status=422)

    async with hostile(refuse) as (url, _), RemoteExecutor(url, TOKEN) as caller:
        with pytest.raises(UserError) as raised:
            await caller.run(Request("pass"))
    assert str(raised.value).isprintable() and len(str(raised.value)) < 2000


@pytest.mark.parametrize("asked", ["nan", "inf", "-inf", "1e300", "-5", "soon"])
async def test_a_time_to_retry_is_finite(asked: str) -> None:
    found = client._retry_after_s({"Retry-After": asked})
    assert found is None or 0.0 <= found <= client.LONGEST_RETRY_AFTER_S


LIES = {
    "more cores than there are": {**STATUS, "num_cores": 10**400},
    "less than none": {**STATUS, "num_cores": -(10**400)},
    "no number": {**STATUS, "num_cores": "many"},
}


@pytest.mark.parametrize("lie", LIES)
async def test_a_node_that_lies_about_its_size_stops_nobody(lie: str) -> None:
    async def never(_: web.Request) -> web.StreamResponse:
        return web.Response(status=500)

    executor = GateExecutor()
    good = service(executor, ServiceSettings(token=TOKEN), guarantees=lambda: TABLE)
    async with (
        hostile(answering(never, LIES[lie])) as (url, asked),
        good as node,
        gateway() as (address, pool),
        RemoteExecutor(address, TOKEN) as caller,
    ):
        for joining in (url, node.url):
            async with caller._connected().post(f"{address}/nodes", json={"url": joining}) as response:
                assert response.status == 200
        await until(lambda: len(asked) > 2 and "ready" in {known.state for known in pool.nodes()}, 60.0)
        async with asyncio.timeout(120.0):
            results = [result async for _, result in caller.run_many([Request("pass")] * 20)]
        assert all(result.ok for result in results) and executor.num_started == 20


SESSION = {"id": "a", "num_cells": 0}
FORGED: dict[str, tuple[str, int, Any]] = {
    "a list that is none": ("files", 200, {"files": 7}),
    "no object": ("files", 200, "<html>"),
    "a conflict with nothing": ("files", 409, {"error": "conflict", "message": "no", "detail": []}),
    "a new session with cells": ("sessions", 201, {"id": "a", "num_cells": 3}),
    "fewer cells than none": ("cells", 200, {"num_cells": -4, "result": OK}),
    "more cells than were run": ("cells", 200, {"num_cells": 9, "result": OK}),
}


@pytest.mark.parametrize("forged", FORGED)
async def test_what_a_node_makes_up_is_its_own_fault(forged: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not a mistake of the caller, who would believe it."""
    monkeypatch.setattr(pool_session, "NODE_WAIT_S", 0.0)
    where, status, body = FORGED[forged]
    usual = {"sessions": SESSION, "cells": {"num_cells": 1, "result": OK}, "files": {"files": []}}

    async def forge(request: web.Request) -> web.StreamResponse:
        asked = request.path.rsplit("/", 1)[1]
        return web.json_response(body, status=status) if asked == where else web.json_response(usual.get(asked, {}))

    async with hostile(answering(forge)) as (url, _), gateway() as (_, pool):
        Gateway(pool, TOKEN).join(url)
        await until(lambda: "ready" in {known.state for known in pool.nodes()}, 60.0)
        session = await pool.session()
        if where == "files":
            with pytest.raises(InfrastructureError):
                await session.list_files()
        else:
            assert (await session.run("x = 1")).status is ExecutionStatus.INFRASTRUCTURE
            assert session.num_cells == 0


async def test_a_name_that_leads_to_another_machine_later_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node joins under a name of its own, and then lets the name lead to a machine behind the gateway."""
    loop, leads_to = asyncio.get_running_loop(), iter(["127.0.0.1"])
    find = loop.getaddrinfo

    async def getaddrinfo(host: Any, port: Any, **given: Any) -> Any:
        return await find(next(leads_to, "127.0.0.2") if host == "node.example" else host, port, **given)

    monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)

    async def nothing(_: web.Request) -> web.StreamResponse:
        return web.Response(status=500)

    node = hostile(answering(nothing))
    async with node as (url, asked), gateway() as (address, pool), RemoteExecutor(address, TOKEN) as caller:
        port = int(url.rpartition(":")[2])
        with socket.create_server(("127.0.0.2", port)) as inside:
            inside.setblocking(False)
            named = {"url": f"http://node.example:{port}"}
            async with caller._connected().post(f"{address}/nodes", json=named) as response:
                assert response.status == 200
            await until(lambda: [known.state for known in pool.nodes()] == ["ready"], 60.0)
            assert asked
            with pytest.raises(BlockingIOError):
                inside.accept()
            # The name is no longer that of the machine that asks.
            async with caller._connected().post(f"{address}/nodes", json=named) as response:
                assert response.status == 422


CONFLICT = (409, {"error": "conflict", "message": "no", "detail": []})
JUNK = (200, "<html>")


@pytest.mark.parametrize("forged", [CONFLICT, JUNK], ids=["a conflict with nothing", "no object"])
async def test_what_a_node_makes_up_of_a_change_is_its_own_fault(forged: tuple[int, Any]) -> None:
    """The session goes on from its cells, and its caller notices nothing."""
    status, body = forged
    changes = {"fork", "rollback", "a"}
    num_cells = 0

    async def forge(request: web.Request) -> web.StreamResponse:
        nonlocal num_cells
        asked = request.path.rsplit("/", 1)[1]
        if asked in changes:
            return web.json_response(body, status=status)
        num_cells = num_cells + 1 if asked == "cells" else 0
        return web.json_response({"num_cells": num_cells, "result": OK} if asked == "cells" else SESSION)

    async with hostile(answering(forge)) as (url, _), gateway() as (_, pool):
        Gateway(pool, TOKEN).join(url)
        await until(lambda: "ready" in {known.state for known in pool.nodes()}, 60.0)
        session = await pool.session()
        for code in ("x = 1", "x = 2"):
            assert (await session.run(code)).ok
        forked = await session.fork()
        assert (forked.num_cells, forked.node) == (2, None)
        await session.rollback()
        assert (session.num_cells, session.node) == (1, None)
        assert (await session.run("x = 3")).ok and session.num_cells == 2
        await session.close()


async def test_a_node_that_makes_up_an_answer_to_a_file_does_not_get_the_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its cells would be run without the file, and blamed for it."""
    monkeypatch.setattr(pool_session, "NODE_WAIT_S", 0.0)
    answers = {"sessions": SESSION, "cells": {"num_cells": 1, "result": OK}, "files": {**SESSION, "num_cells": 1}}

    async def forge(request: web.Request) -> web.StreamResponse:
        return web.json_response(answers.get(request.path.rsplit("/", 1)[1], {}))

    async with hostile(answering(forge)) as (url, _), gateway() as (_, pool):
        Gateway(pool, TOKEN).join(url)
        await until(lambda: "ready" in {known.state for known in pool.nodes()}, 60.0)
        session = await pool.session()
        await session.put_file("data.csv", b"1,2")
        answers["files"] = "<html>"
        session._leave_place()
        result = await session.run("open('data.csv')")
        assert (result.status, session.num_cells) == (ExecutionStatus.INFRASTRUCTURE, 1)
