"""Connections that say nothing, callers that do not read: the service stays bounded, and its health can be asked."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass

import aiohttp
import pytest
from sandbox_service import GateExecutor, service, until

from rstar2.sandbox import Execution, ExecutionStatus, OnOutput, Request
from rstar2.sandbox.http import ServiceSettings
from rstar2.sandbox.http.connections import NUM_SPARE

pytestmark = pytest.mark.integration


@asynccontextmanager
async def connections(port: int, count: int, first_words: bytes = b"") -> AsyncIterator[list[asyncio.StreamReader]]:
    async with AsyncExitStack() as stack:
        readers = []
        for _ in range(count):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            stack.callback(writer.close)
            writer.write(first_words)
            readers.append(reader)
        yield readers


async def test_silent_connections_keep_nobody_out() -> None:
    settings = ServiceSettings(max_connections=8)
    async with (
        service(GateExecutor(), settings) as running,
        connections(running.port, 100),
        aiohttp.ClientSession(running.url) as http,
    ):
        async with http.get("/healthz") as response:
            assert response.status == 200
        async with http.post("/v1/run", json={"code": "pass"}) as response:
            assert response.status == 200


async def test_connections_that_are_idle_between_requests_keep_nobody_out() -> None:
    settings = ServiceSettings(max_connections=8)
    health = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    async with service(GateExecutor(), settings) as running, connections(running.port, 8, health) as readers:
        for reader in readers:
            assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
        async with aiohttp.ClientSession(running.url) as http, http.post("/v1/run", json={"code": "pass"}) as response:
            assert response.status == 200


@pytest.mark.parametrize("first_words", [b"", b"POST /v1/run HTTP/1.1\r\nHost: loc"])
async def test_a_head_that_does_not_come_is_not_waited_for(first_words: bytes) -> None:
    settings = ServiceSettings(header_timeout_s=0.1)
    async with service(GateExecutor(), settings) as running, connections(running.port, 1, first_words) as (reader,):
        async with asyncio.timeout(240):
            with suppress(ConnectionResetError):
                assert await reader.read() == b""


async def test_the_head_of_a_later_request_is_not_waited_for_either() -> None:
    settings = ServiceSettings(header_timeout_s=2.0, keepalive_s=3600.0)
    async with service(GateExecutor(), settings) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        async with asyncio.timeout(240):
            assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
            with suppress(ConnectionError):
                writer.write(b"POST /v1/run HTTP/1.1\r\n")
                while await reader.read(1 << 16):  # the rest of the first answer, then the end
                    pass
        writer.close()


async def test_a_request_may_take_longer_than_a_head() -> None:
    executor = GateExecutor()
    settings = ServiceSettings(header_timeout_s=1.0)
    async with service(executor, settings) as running, aiohttp.ClientSession(running.url) as http:
        async with http.post("/v1/run", json={"code": "pass"}) as response:
            assert response.status == 200
        asking = asyncio.ensure_future(http.post("/v1/run", json={"code": "hold"}))
        await until(lambda: executor.num_started == 2)
        started = time.monotonic()
        await until(lambda: time.monotonic() > started + 1.2)
        executor.gate.set()
        async with await asking as response:
            assert response.status == 200


async def test_a_request_whose_body_comes_in_pieces_is_not_silent() -> None:
    executor = GateExecutor()
    body = json.dumps({"code": "hold" + " " * 150_000}).encode()  # more than is read at once
    head = b"POST /v1/run HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    async with service(executor, ServiceSettings(max_connections=1)) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        await until(lambda: executor.num_running == 1)
        async with aiohttp.ClientSession(running.url) as late, late.get("/healthz") as response:
            assert response.status == 200
        executor.gate.set()
        assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
        writer.close()


async def test_a_service_full_of_callers_tells_its_health_and_refuses_the_rest() -> None:
    executor = GateExecutor()
    async with (
        service(executor, ServiceSettings(max_connections=4)) as running,
        aiohttp.ClientSession(running.url) as busy,
        aiohttp.ClientSession(running.url) as late,
    ):
        waiting = [asyncio.create_task(busy.post("/v1/run", json={"code": "wait"})) for _ in range(4)]
        await until(lambda: executor.num_running == 4)
        async with late.get("/healthz") as response:
            assert response.status == 200
        async with late.post("/v1/run", json={"code": "pass"}) as response:
            assert (response.status, "Retry-After" in response.headers) == (503, True)
        async with connections(running.port, NUM_SPARE + 8) as readers, asyncio.timeout(240):
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                await readers[-1].readexactly(1)
        executor.gate.set()
        assert {response.status for response in await asyncio.gather(*waiting)} == {200}


@dataclass
class Talker(GateExecutor):
    """Each program prints `size` bytes."""

    size: int = 100_000

    async def run(self, request: Request, on_output: OnOutput | None = None) -> Execution:  # noqa: ARG002
        self.num_started += 1
        return Execution(ExecutionStatus.OK, stdout="x" * self.size, exit_code=0)


async def test_a_batch_that_is_not_read_waits() -> None:
    executor = Talker()
    settings = ServiceSettings(max_unread_bytes=4_000_000)
    run = {"code": "print", "limits": {"output_bytes": executor.size}}
    body = json.dumps({"runs": [run] * 600}).encode()
    async with service(executor, settings) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port, limit=1 << 16)
        head = b"POST /v1/batch HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        writer.write(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        seen = -1
        while seen != executor.num_started:  # until it stands
            seen = executor.num_started
            await asyncio.sleep(0.5)
        # What the sockets hold, besides what the service does.
        assert 0 < executor.num_started < 300
        text = b""
        while not text.endswith(b"\r\n0\r\n\r\n"):
            piece = await reader.read(1 << 20)
            assert piece
            text = text[-64:] + piece
        assert executor.num_started == 600
        writer.close()
