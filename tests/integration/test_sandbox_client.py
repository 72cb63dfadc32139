"""The remote executor and `Sandbox`: one interface, typed results, retries of what is ours and of nothing else."""

import asyncio
import itertools
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Container
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from sandbox_service import GateExecutor, Running, listening_socket, new_executor, service, service_on_thread, until

from rstar2.errors import UserError
from rstar2.sandbox import ExecutionStatus, Executor, Limits, Request
from rstar2.sandbox import client as client_module
from rstar2.sandbox.client import RemoteExecutor
from rstar2.sandbox.http import ServiceSettings
from rstar2.sandbox.sandbox import Sandbox
from rstar2.sandbox.unsafe.executor import UnsafeExecutor

pytestmark = pytest.mark.integration


async def test_the_same_results_as_in_process(remote: Executor) -> None:
    request = Request("import sys\nprint(input())\nprint('e', file=sys.stderr)\n[1] * 3", stdin="hé\0llo")
    far = await remote.run(request)
    async with new_executor() as executor:
        near = await executor.run(request)
    assert (far.status, far.stdout, far.stderr, far.value) == (near.status, near.stdout, near.stderr, near.value)
    stopped = await remote.run(Request("while True: pass", limits=Limits(wall_s=0.3)))
    assert stopped.status is ExecutionStatus.TIMEOUT


async def test_run_many_yields_all_once_and_early(remote: Executor) -> None:
    quick = [Request(f"print({index})") for index in range(1, 20)]
    found = [(index, execution.stdout) async for index, execution in remote.run_many(quick)]
    assert sorted(found) == [(index, f"{index + 1}\n") for index in range(19)]
    slow, early = Request("import time; time.sleep(40)", limits=Limits(wall_s=50)), set()
    async for index, _ in remote.run_many([slow, *quick]):
        early.add(index)
        if len(early) == len(quick):
            break
    assert early == set(range(1, 20))


async def test_run_many_goes_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "MAX_CHUNK_RUNS", 7)
    monkeypatch.setattr(client_module, "NUM_CHUNKS_IN_FLIGHT", 3)
    async with service(GateExecutor()) as running, RemoteExecutor(running.url) as remote:
        indices = [index async for index, _ in remote.run_many(Request("pass") for _ in range(100))]
        assert sorted(indices) == list(range(100))
        assert [index async for index, _ in remote.run_many([])] == []


async def test_leaving_run_many_early_cancels_the_rest() -> None:
    executor = GateExecutor()
    async with service(executor) as running, RemoteExecutor(running.url) as remote:
        results = remote.run_many([Request("pass"), *[Request("wait")] * 5])
        async for _ in results:
            break
        await results.aclose()  # type: ignore[attr-defined]
        await until(lambda: executor.num_cancelled == 5)


async def test_cancelling_a_run_cancels_it_over_there() -> None:
    executor = GateExecutor()
    async with service(executor) as running, RemoteExecutor(running.url) as remote:
        run = asyncio.ensure_future(remote.run(Request("wait")))
        await until(lambda: executor.num_running == 1)
        run.cancel()
        await until(lambda: executor.num_cancelled == 1)


async def test_text_that_is_not_unicode_is_the_programs_error(remote: Executor) -> None:
    requests = [Request("print('\ud800')"), Request("print(1)")]
    statuses = {index: execution.status async for index, execution in remote.run_many(requests)}
    assert statuses == {0: ExecutionStatus.ERROR, 1: ExecutionStatus.OK}
    assert "UnicodeEncodeError" in (await remote.run(requests[0])).stderr


async def test_sessions(remote: Executor) -> None:
    session = await remote.session()
    await session.run("a = 1")
    assert (await session.run("a += 1; a")).ok
    assert session.num_cells == 2
    fork = await session.fork()
    await fork.run("a = 10")
    await session.rollback()
    assert ((await session.run("a")).value, (await fork.run("a")).value) == ("1", "10")
    with pytest.raises(ValueError, match="num_cells"):
        await session.rollback(50)
    await session.close()
    gone = await session.run("a")
    assert gone.status is ExecutionStatus.INFRASTRUCTURE and "session" in gone.message
    await session.close()


async def test_what_cannot_succeed_is_the_users_error_at_once() -> None:
    async with service(GateExecutor(), ServiceSettings(token="right")) as running:
        async with RemoteExecutor(running.url, token="right") as remote:
            assert (await remote.run(Request("pass"))).ok
            with pytest.raises(UserError, match=r"limits\.wall_s"):
                await remote.run(Request("pass", limits=Limits(wall_s=80_000)))
            with pytest.raises(UserError, match=r"limits\.wall_s"):
                _ = [result async for result in remote.run_many([Request("pass", limits=Limits(wall_s=80_000))])]
        async with RemoteExecutor(running.url, token="wrong") as remote:
            with pytest.raises(UserError, match="token"):
                await remote.run(Request("pass"))
            with pytest.raises(UserError, match="token"):
                await remote.session()
        async with RemoteExecutor(f"{running.url}/elsewhere", token="right") as remote:
            with pytest.raises(UserError, match="address"):
                await remote.run(Request("pass"))
    async with RemoteExecutor("http://no-such-host.invalid:1") as remote:
        with pytest.raises(UserError, match="address"):
            await remote.run(Request("pass"))
    for address in ("", "localhost:8000", "ftp://x"):
        with pytest.raises(UserError, match="address"):
            RemoteExecutor(address)


@pytest.mark.timing
async def test_nobody_there_is_a_typed_result_by_the_deadline() -> None:
    async with RemoteExecutor("http://127.0.0.1:9", grace_s=0.3) as remote:
        request = Request("pass", limits=Limits(wall_s=0.1), queue_s=0.1)
        started = time.monotonic()
        result = await remote.run(request)
        assert result.status is ExecutionStatus.INFRASTRUCTURE and "127.0.0.1:9" in result.message
        found = [result.status async for _, result in remote.run_many([request] * 3)]
        assert found == [ExecutionStatus.INFRASTRUCTURE] * 3
        assert 0.5 < time.monotonic() - started < 120


@asynccontextmanager
async def proxy(running: Running, lost: Container[int]) -> AsyncIterator[str]:
    """A way to the service on which the answers of these numbers, from 1, are cut in the middle."""
    num_answers = 0

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal num_answers
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", running.port)

        async def forward() -> None:
            while data := await reader.read(65536):
                far_writer.write(data)

        forwarding = asyncio.ensure_future(forward())
        try:
            while data := await far_reader.read(65536):
                num_answers += 1
                if num_answers in lost:
                    writer.write(data[: len(data) // 2])
                    break
                writer.write(data)
            await writer.drain()
        finally:
            forwarding.cancel()
            writer.close()
            far_writer.close()

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_lost_answers_are_asked_for_again_and_nothing_runs_twice() -> None:
    executor = GateExecutor()
    async with service(executor) as running, proxy(running, range(1, 99, 2)) as url, RemoteExecutor(url) as remote:
        results = await asyncio.gather(*(remote.run(Request("pass")) for _ in range(5)))
        assert all(result.ok for result in results)
    assert executor.num_started == 5


async def test_a_batch_cut_in_the_middle_is_completed() -> None:
    executor = GateExecutor()
    async with service(executor) as running, proxy(running, (2, 3)) as url, RemoteExecutor(url) as remote:
        executor.gate.set()
        found = [index async for index, _ in remote.run_many(Request(f"{index}") for index in range(200))]
    assert sorted(found) == list(range(200))
    assert executor.num_started == 200


async def test_a_cell_whose_answer_was_lost_is_not_run_again(running: Running) -> None:
    async with proxy(running, (3,)) as url, RemoteExecutor(url) as remote:
        session = await remote.session()
        await session.run("n = 0")
        assert (await session.run("n += 1\nn")).value == "1"
        assert (await session.run("n")).value == "1"
        assert session.num_cells == 3


@asynccontextmanager
async def scripted(handler: Callable[[web.Request], Awaitable[web.Response]]) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner, sock = web.AppRunner(app), listening_socket()
    await runner.setup()
    await web.SockSite(runner, sock).start()
    try:
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        await runner.cleanup()


async def test_busy_is_waited_for_as_told() -> None:
    times: list[float] = []

    async def busy(_: web.Request) -> web.Response:
        times.append(time.monotonic())
        if len(times) < 3:
            return web.Response(status=503, headers={"Retry-After": "0.2"}, text="{}")
        return web.json_response({"status": "ok", "stdout": "hi"})

    async with scripted(busy) as url, RemoteExecutor(url) as remote:
        assert (await remote.run(Request("pass"))).stdout == "hi"
    assert [later - earlier > 0.15 for earlier, later in itertools.pairwise(times)] == [True, True]


async def test_something_else_at_the_address_is_said() -> None:
    async def web_page(_: web.Request) -> web.Response:
        return web.Response(text="<html>welcome</html>", content_type="text/html")

    async with scripted(web_page) as url, RemoteExecutor(url) as remote:
        with pytest.raises(UserError, match="not an rstar2 sandbox"):
            await remote.run(Request("pass"))


def use(sandbox: Sandbox) -> None:
    with sandbox:
        assert sandbox.run("print(input())", stdin="1").stdout == "1\n"
        assert sandbox.run("while True: pass", limits=Limits(wall_s=0.2)).status is ExecutionStatus.TIMEOUT
        found = dict(sandbox.run_many(["1", Request("2"), "1/0"]))
        assert [found[index].value for index in range(3)] == ["1", "2", None]
        for _ in sandbox.run_many(["1", "import time; time.sleep(30)"]):
            break
        with sandbox.session() as session:
            session.run("a = 1")
            fork = session.fork()
            session.rollback()
            assert (session.num_cells, fork.num_cells, fork.run("a").value) == (0, 1, "1")
            assert session.id != fork.id
            fork.close()
    sandbox.close()


def test_the_sandbox_in_process_and_remote() -> None:
    use(Sandbox(executor=UnsafeExecutor))
    with service_on_thread(ServiceSettings(token="t")) as running:
        use(Sandbox(running.url, token="t"))
        with pytest.raises(UserError), Sandbox(running.url) as sandbox:
            sandbox.run("1")
    with pytest.raises(UserError):
        Sandbox("not a url")


@pytest.mark.skipif(sys.platform != "linux", reason="isolation is Linux's")
def test_the_sandbox_with_the_isolated_executor() -> None:
    use(Sandbox())
