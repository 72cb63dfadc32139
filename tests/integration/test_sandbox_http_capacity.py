"""Who may call, how much, what happens when callers leave, ask twice, or the service goes."""

import asyncio
import json
import signal
from collections import Counter
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
from sandbox_service import GateExecutor, listening_socket, service, until

from rstar2.sandbox import Execution, ExecutionStatus, OnOutput, Request
from rstar2.sandbox.executor import Overloaded
from rstar2.sandbox.http import ServiceSettings, create_app, serve_forever
from rstar2.sandbox.http.idempotency import OnceTable
from rstar2.sandbox.subprocess_executor import SubprocessSession
from rstar2.sandbox.unsafe.executor import UnsafeExecutor

pytestmark = pytest.mark.integration
HEADERS = b"Host: localhost\r\nContent-Type: application/json\r\n"
WAITS = {"code": "wait"}


async def leave_after_start(port: int, path: str, body: Any, has_started: Callable[[], bool]) -> None:
    """Ask for something and go away while it runs."""
    data = json.dumps(body).encode()
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST %s HTTP/1.1\r\n%sContent-Length: %d\r\n\r\n" % (path.encode(), HEADERS, len(data)) + data)
    await until(has_started)
    writer.close()


def counted(seen: "Counter[str]", name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    def call(*given: Any, **named: Any) -> Any:
        seen[name] += 1
        return method(*given, **named)

    return call


async def until_draining(http: aiohttp.ClientSession) -> None:
    async with asyncio.timeout(240):
        while (await http.get("/healthz")).status != 503:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_the_token_is_asked_everywhere_but_at_healthz() -> None:
    settings = ServiceSettings(token="s3cret")
    async with service(GateExecutor(), settings) as running, aiohttp.ClientSession(running.url) as http:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "s3cret"}):
            async with http.post("/v1/run", json={"code": "pass"}, headers=headers) as response:
                assert response.status == 401 and response.headers["WWW-Authenticate"] == "Bearer"
        for path in ("/status", "/metrics", "/openapi.json", "/ping", "/nowhere"):
            async with http.get(path) as response:
                assert response.status == 401
        async with http.get("/healthz") as response:
            assert response.status == 200
        right = {"Authorization": "Bearer s3cret"}
        async with http.post("/v1/run", json={"code": "pass"}, headers=right) as response:
            assert response.status == 200


async def test_too_large_a_body_is_refused() -> None:
    settings = ServiceSettings(max_request_bytes=10_000)
    async with service(GateExecutor(), settings) as running, aiohttp.ClientSession(running.url) as http:
        async with http.post("/v1/run", json={"code": "#" * 20_000}) as response:
            assert response.status == 413 and (await response.json())["message"]
        async with http.post("/v1/run", json={"code": "pass"}) as response:
            assert response.status == 200


async def test_a_body_that_does_not_arrive_is_given_up() -> None:
    async with service(GateExecutor(), ServiceSettings(transfer_timeout_s=0.2)) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(b"POST /v1/run HTTP/1.1\r\n%sContent-Length: 100\r\n\r\n{" % HEADERS)
        assert b" 408 " in await asyncio.wait_for(reader.readline(), 240)
        writer.close()


async def test_over_capacity_is_answered_at_once() -> None:
    executor = GateExecutor()
    settings = ServiceSettings(max_in_flight=2, retry_after_s=3)
    async with service(executor, settings) as running, aiohttp.ClientSession(running.url) as http:
        waiting = [asyncio.ensure_future(http.post("/v1/run", json=WAITS)) for _ in range(2)]
        await until(lambda: executor.num_running == 2)
        for path, body in (("/v1/run", WAITS), ("/v1/batch", {"runs": [WAITS]})):
            async with http.post(path, json=body) as response:
                assert response.status == 503 and response.headers["Retry-After"] == "3"
        async with http.post("/run_code", json={"code": "", "language": "python"}) as response:
            assert response.status == 504
        assert not any(response.done() for response in waiting)
        executor.gate.set()
        assert [(await response).status for response in waiting] == [200, 200]


async def test_a_batch_that_can_never_fit_is_not_told_to_come_back() -> None:
    settings = ServiceSettings(max_in_flight=2)
    async with service(GateExecutor(), settings) as running, aiohttp.ClientSession(running.url) as http:
        response = await http.post("/v1/batch", json={"runs": [WAITS] * 3})
        assert response.status == 422 and "at most 2" in (await response.json())["message"]


async def test_a_batch_that_shares_a_key_with_a_refused_run_still_ends() -> None:
    class SlowRefusal(GateExecutor):
        async def run(self, request: Request, on_output: OnOutput | None = None) -> Execution:  # noqa: ARG002
            await super().run(request)
            raise Overloaded(retry_after_s=1)

    executor = SlowRefusal()
    body = {**WAITS, "idempotency_key": "k"}
    async with service(executor) as running, aiohttp.ClientSession(running.url) as http:
        one = asyncio.ensure_future(http.post("/v1/run", json=body))
        await until(lambda: running.service.num_in_flight == 1)
        batch = asyncio.ensure_future(http.post("/v1/batch", json={"runs": [body]}))
        await until(lambda: running.service.num_in_flight == 2)
        executor.gate.set()
        assert (await one).status == 503
        assert json.loads(await (await batch).read())["error"]["error"] == "overloaded"


async def test_the_executors_full_queue_is_503_for_one_and_patience_for_a_batch() -> None:
    executor = GateExecutor(max_running=1)
    async with service(executor) as running, aiohttp.ClientSession(running.url) as http:
        first = asyncio.ensure_future(http.post("/v1/run", json=WAITS))
        await until(lambda: executor.num_running == 1)
        async with http.post("/v1/run", json=WAITS) as response:
            assert response.status == 503 and int(response.headers["Retry-After"]) >= 1
        async with http.post("/v1/batch", json={"runs": [{**WAITS, "queue_s": 0.2}]}) as response:
            assert json.loads(await response.read())["result"]["status"] == "queue_timeout"
        executor.gate.set()
        assert (await first).status == 200
        async with http.post("/v1/batch", json={"runs": [WAITS] * 4}) as response:
            lines = [json.loads(line) async for line in response.content]
        assert [line["result"]["status"] for line in lines] == ["ok"] * 4


@pytest.mark.parametrize(
    ("path", "body", "num_executions"),
    [
        ("/v1/run", WAITS, 1),
        ("/v1/run", {**WAITS, "idempotency_key": "k"}, 1),
        ("/v1/batch", {"runs": [WAITS] * 3}, 3),
        ("/run/long-batch", {"submissions": [{"type": "python", "solution": "wait"}] * 2}, 2),
    ],
)
async def test_a_caller_that_leaves_cancels_its_executions(path: str, body: Any, num_executions: int) -> None:
    executor = GateExecutor()
    async with service(executor) as running:
        await leave_after_start(running.port, path, body, lambda: executor.num_running == num_executions)
        await until(lambda: executor.num_cancelled == num_executions)
        await until(lambda: running.service.num_in_flight == 0)


async def test_one_key_is_one_execution_however_many_ask() -> None:
    executor = GateExecutor()
    async with service(executor) as running, aiohttp.ClientSession(running.url) as http:
        body = {**WAITS, "idempotency_key": "k"}
        asking = [asyncio.ensure_future(http.post("/v1/run", json=body)) for _ in range(8)]
        batch = asyncio.ensure_future(http.post("/v1/batch", json={"runs": [body, body]}))
        await until(lambda: running.service.num_in_flight == 10)
        asking[0].cancel()
        await until(lambda: running.service.num_in_flight == 9)
        async with http.post("/v1/run", json={"code": "other", "idempotency_key": "k"}) as response:
            assert response.status == 409
        executor.gate.set()
        texts = {await (await one).text() for one in asking[1:]}
        results = [json.loads(line)["result"] async for line in (await batch).content]
        assert len(texts) == 1 and results == [json.loads(texts.pop())] * 2
        async with http.post("/v1/run", json=body) as response:
            assert (await response.json())["stdout"] == "wait"
        assert (executor.num_started, executor.num_cancelled) == (1, 0)


async def test_a_conflicting_key_in_a_batch_spoils_only_its_own_line() -> None:
    async with service(GateExecutor()) as running, aiohttp.ClientSession(running.url) as http:
        runs = [{"code": "pass", "idempotency_key": "k"}, {"code": "pass", "stdin": "x", "idempotency_key": "k"}]
        async with http.post("/v1/batch", json={"runs": runs}) as response:
            lines = sorted([json.loads(line) async for line in response.content], key=lambda line: line["index"])
        assert lines[0]["result"]["status"] == "ok" and lines[1]["error"]["error"] == "conflict"


async def test_a_cell_with_a_key_runs_once_though_its_caller_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: Counter[str] = Counter()
    for name in ("join", "leave"):
        monkeypatch.setattr(OnceTable, name, counted(seen, name, getattr(OnceTable, name)))
    executor = GateExecutor()
    async with service(executor) as running, aiohttp.ClientSession(running.url) as http:
        async with http.post("/v1/sessions") as response:
            path = f"/v1/sessions/{(await response.json())['id']}/cells"
        keyed = {**WAITS, "idempotency_key": "k"}
        await leave_after_start(running.port, path, keyed, lambda: executor.num_running == 1)
        await until(lambda: seen["leave"] == 1)
        again = asyncio.ensure_future(http.post(path, json=keyed))
        await until(lambda: seen["join"] == 2)
        executor.gate.set()
        assert (await (await again).json())["num_cells"] == 1
        async with http.post(path, json=keyed) as response:
            assert (await response.json())["num_cells"] == 1
        assert (executor.num_started, executor.num_cancelled) == (1, 0)


async def test_a_cell_without_a_key_is_cancelled_with_its_caller() -> None:
    executor = GateExecutor()
    async with service(executor) as running, aiohttp.ClientSession(running.url) as http:
        async with http.post("/v1/sessions") as response:
            path = f"/v1/sessions/{(await response.json())['id']}/cells"
        await leave_after_start(running.port, path, WAITS, lambda: executor.num_running == 1)
        await until(lambda: executor.num_cancelled == 1)


class FailsFirst(GateExecutor):
    async def run(self, request: Request, on_output: OnOutput | None = None) -> Execution:  # noqa: ARG002
        execution = await super().run(request)
        return execution if self.num_started > 1 else Execution(ExecutionStatus.INFRASTRUCTURE)


async def test_what_failed_by_our_fault_is_tried_again_under_the_same_key() -> None:
    body = {"code": "pass", "idempotency_key": "k"}
    async with service(FailsFirst()) as running, aiohttp.ClientSession(running.url) as http:
        statuses = [(await (await http.post("/v1/run", json=body)).json())["status"] for _ in range(3)]
        assert statuses == ["infrastructure", "ok", "ok"]
        assert running.service.metrics.executions == {"infrastructure": 1, "ok": 1}


async def test_sessions_are_bounded_and_idle_ones_are_closed() -> None:
    settings = ServiceSettings(max_sessions=2, session_idle_s=0.4)
    async with service(UnsafeExecutor(), settings) as running, aiohttp.ClientSession(running.url) as http:
        statuses = [(await http.post("/v1/sessions")).status for _ in range(3)]
        assert statuses == [201, 201, 503]
        async with asyncio.timeout(240):
            while (await http.post("/v1/sessions")).status != 201:  # noqa: ASYNC110
                await asyncio.sleep(0.05)


class SlowToOpen(UnsafeExecutor):
    """Its sessions open when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.num_opening = 0

    async def session(self) -> SubprocessSession:
        self.num_opening += 1
        await self.gate.wait()
        return await super().session()


async def test_sessions_that_open_at_the_same_time_are_bounded_too() -> None:
    executor = SlowToOpen()
    async with (
        service(executor, ServiceSettings(max_sessions=2)) as running,
        aiohttp.ClientSession(running.url) as http,
    ):
        opening = [asyncio.ensure_future(http.post("/v1/sessions")) for _ in range(4)]
        done, _ = await asyncio.wait(opening, timeout=1)
        executor.gate.set()
        assert sorted([(await each).status for each in opening]) == [201, 201, 503, 503]
        assert len(done) == 2 and executor.num_opening == 2


async def test_first_executions_of_a_sandbox_share_its_default_context() -> None:
    executor = SlowToOpen()
    async with service(executor) as running, aiohttp.ClientSession(running.url) as http:
        asking = [asyncio.ensure_future(http.post("/execute", json={"code": "1"})) for _ in range(2)]
        await until(lambda: running.service.num_in_flight == 2)
        executor.gate.set()
        assert [(await each).status for each in asking] == [200, 200]
        assert len(await (await http.get("/contexts")).json()) == 1


async def test_draining_finishes_what_is_in_flight_and_refuses_the_rest() -> None:
    executor = GateExecutor()
    async with service(executor) as running, aiohttp.ClientSession(running.url) as http:
        first = asyncio.ensure_future(http.post("/v1/run", json=WAITS))
        await until(lambda: executor.num_running == 1)
        draining = asyncio.ensure_future(running.server.drain(60))
        await until_draining(http)
        async with http.post("/v1/run", json=WAITS) as response:
            assert response.status == 503 and "Retry-After" in response.headers
        async with http.get("/healthz") as response:
            assert (response.status, await response.json()) == (503, {"status": "draining"})
        assert not draining.done()
        executor.gate.set()
        assert (await first).status == 200
        assert await asyncio.wait_for(draining, 240)


async def test_draining_has_a_deadline() -> None:
    executor = GateExecutor()
    async with service(executor) as running, aiohttp.ClientSession(running.url) as http:
        stuck = asyncio.ensure_future(http.post("/v1/run", json=WAITS))
        await until(lambda: executor.num_running == 1)
        assert not await asyncio.wait_for(running.server.drain(0.1), 240)
        with pytest.raises(aiohttp.ClientError):
            await stuck
        assert executor.num_cancelled == 1


async def test_sigterm_drains_and_returns() -> None:
    executor = GateExecutor()
    sock, ready = listening_socket(), asyncio.Event()
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    serving = asyncio.ensure_future(serve_forever(create_app(executor), [sock], on_ready=ready.set))
    await ready.wait()
    async with aiohttp.ClientSession(url) as http:
        first = asyncio.ensure_future(http.post("/v1/run", json=WAITS))
        await until(lambda: executor.num_running == 1)
        signal.raise_signal(signal.SIGTERM)
        await until_draining(http)
        executor.gate.set()
        assert (await first).status == 200
    assert await asyncio.wait_for(serving, 240)


async def test_a_second_signal_ends_the_draining() -> None:
    executor = GateExecutor()
    sock, ready = listening_socket(), asyncio.Event()
    serving = asyncio.ensure_future(serve_forever(create_app(executor), [sock], on_ready=ready.set))
    await ready.wait()
    async with aiohttp.ClientSession(f"http://127.0.0.1:{sock.getsockname()[1]}") as http:
        stuck = asyncio.ensure_future(http.post("/v1/run", json=WAITS))
        await until(lambda: executor.num_running == 1)
        signal.raise_signal(signal.SIGTERM)
        await until_draining(http)
        assert not serving.done()
        signal.raise_signal(signal.SIGTERM)
        assert not await asyncio.wait_for(serving, 240)
        with pytest.raises(aiohttp.ClientError):
            await stuck
    assert executor.num_cancelled == 1
