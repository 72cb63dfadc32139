"""`rstar2 sandbox mcp`, asked by the official client as it is, over stdin and stdout and over HTTP; and how it ends."""

import asyncio
import base64
import json
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx2
import pytest
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from process_tree import descendants, is_running, until
from sandbox_service import GateExecutor

from rstar2.sandbox import Execution, ExecutionStatus, Request
from rstar2.sandbox.mcp import McpLimits, create_server, serve, serve_http

pytestmark = pytest.mark.integration

RSTAR2 = (sys.executable, "-c", "from rstar2.cli.main import main; main()")
COMMAND = (*RSTAR2, "sandbox", "mcp")
HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "a client of a year ago", "version": "1"},
    },
}


@asynccontextmanager
async def over_stdio(*flags: str, mode: str = "auto") -> AsyncIterator[Client]:
    server = StdioServerParameters(command=COMMAND[0], args=[*COMMAND[1:], *flags], env=dict(os.environ))
    async with Client(stdio_client(server), mode=mode) as client:
        yield client


@asynccontextmanager
async def process(*flags: str) -> AsyncIterator[asyncio.subprocess.Process]:
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(*COMMAND, *flags, stdin=pipe, stdout=pipe, stderr=pipe)
    try:
        yield child
    finally:
        if child.returncode is None:
            child.kill()
        await child.communicate()


@asynccontextmanager
async def over_http(*flags: str) -> AsyncIterator[tuple[str, str, asyncio.subprocess.Process]]:
    """Its URL, its token and the process."""
    async with process("--http", "--port", "0", *flags) as child:
        assert child.stderr is not None
        said = ""
        while "serving MCP" not in said:
            line = (await child.stderr.readline()).decode()
            assert line, said
            said += line
        token = re.search(r"token: (\S+)", said)
        url = re.search(r"http://\S+/mcp", said)
        assert url is not None
        yield url[0], token[1] if token else "", child


@asynccontextmanager
async def client_of(url: str, token: str, mode: str = "auto") -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with (
        httpx2.AsyncClient(headers=headers, trust_env=False, timeout=240) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        yield client


def text_of(result: Any) -> str:
    return "\n".join(block.text for block in result.content if block.type == "text")


async def require_programs_and_notebooks(client: Client) -> None:
    done = await client.call_tool("run_python", {"code": "print(input())\n6 * 7", "stdin": "hello"})
    assert (done.is_error, text_of(done)) == (False, "hello\n42")
    assert (done.structured_content["status"], done.structured_content["value"]) == ("ok", "42")

    raised = await client.call_tool("run_python", {"code": "print('before')\n{}['a key']"})
    assert raised.is_error
    assert text_of(raised).startswith("before\nTraceback")
    assert "KeyError: 'a key'" in text_of(raised)
    assert raised.structured_content["status"] == "error"

    first = (await client.call_tool("run_cell", {"code": "x = 1"})).structured_content
    session = {"session": first["session"]}
    assert first["num_cells"] == 1
    forked = (await client.call_tool("fork_session", session)).structured_content
    assert (forked["num_cells"], forked["session"] != first["session"]) == (1, True)
    await client.call_tool("run_cell", {"code": "x += 1", **session})
    shown = await client.call_tool("run_cell", {"code": "x", **session})
    assert text_of(shown) == f"2\n[session {first['session']}, 3 cells]"
    other = await client.call_tool("run_cell", {"code": "x", "session": forked["session"]})
    assert other.structured_content["value"] == "1"
    back = await client.call_tool("rollback_session", {"num_cells": 2, **session})
    assert back.structured_content == {"session": first["session"], "num_cells": 1}
    assert (await client.call_tool("run_cell", {"code": "x", **session})).structured_content["value"] == "1"
    await client.call_tool("close_session", session)
    gone = await client.call_tool("run_cell", {"code": "x", **session})
    assert (gone.is_error, "there is no session with this id" in text_of(gone)) == (True, True)
    too_far = await client.call_tool("rollback_session", {"session": forked["session"], "num_cells": 9})
    assert (too_far.is_error, "the session has 2" in text_of(too_far)) == (True, True)


async def require_files_and_figures(client: Client) -> None:
    put = (await client.call_tool("put_file", {"path": "data/in.csv", "text": "a,b\n1,2\n"})).structured_content
    session = {"session": put["session"]}
    await client.call_tool("put_file", {"path": "raw", "base64": "/wD/", **session})
    code = "import pandas\npandas.read_csv('data/in.csv').sum().to_csv('out.csv')"
    assert not (await client.call_tool("run_cell", {"code": code, **session})).is_error
    listed = await client.call_tool("list_files", session)
    assert {file["path"] for file in listed.structured_content["files"]} == {"data/in.csv", "raw", "out.csv"}
    out = await client.call_tool("read_file", {"path": "out.csv", **session})
    assert (text_of(out), out.structured_content["text"]) == (",0\na,1\nb,2\n",) * 2
    raw = await client.call_tool("read_file", {"path": "raw", **session})
    assert (raw.structured_content["base64"], raw.structured_content["text"]) == ("/wD/", None)
    for wrong in (
        {"path": "missing", **session},
        {"path": "../secret", **session},
        {"path": "/etc/passwd", **session},
    ):
        assert (await client.call_tool("read_file", wrong)).is_error
    both = await client.call_tool("put_file", {"path": "x", "text": "a", "base64": "YQ=="})
    assert (both.is_error, "either text or base64" in text_of(both)) == (True, True)

    plot = "import matplotlib.pyplot as plt\nprint('drawn')\nplt.plot([1, 2])\nplt.show()"
    for tool in ("run_python", "run_cell"):
        drawn = await client.call_tool(tool, {"code": plot, "timeout_s": 60})
        (image,) = (block for block in drawn.content if block.type == "image")
        assert (image.mime_type, base64.b64decode(image.data)[:4]) == ("image/png", b"\x89PNG")
        assert text_of(drawn).startswith("drawn")
    own = {"session": drawn.structured_content["session"]}
    await client.call_tool("run_cell", {"code": "plt.plot([1])\nplt.savefig('f.png')", **own})
    figure = await client.call_tool("read_file", {"path": "f.png", **own})
    assert figure.content[-1].mime_type == "image/png"


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_over_stdin_and_stdout(mode: str) -> None:
    async with over_stdio("--max-output", "1000", mode=mode) as client:
        listed = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(listed) >= {"run_python", "run_cell", "fork_session", "rollback_session", "close_session"}
        assert all(tool.description and tool.output_schema for tool in listed.values())
        await require_programs_and_notebooks(client)
        await require_files_and_figures(client)
        long = await client.call_tool("run_python", {"code": "print('x' * 5000)"})
        assert "[... 4001 characters left out ...]" in text_of(long)
        assert len(text_of(long)) < 1100


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_over_http(mode: str) -> None:
    async with over_http() as (url, token, _), client_of(url, token, mode) as client:
        await require_programs_and_notebooks(client)


async def test_with_the_sandbox_of_a_running_service() -> None:
    serve = (*RSTAR2, "sandbox", "serve", "--port", "0")
    service = await asyncio.create_subprocess_exec(*serve, stderr=asyncio.subprocess.PIPE)
    try:
        assert service.stderr is not None
        said = ""
        while "serving on" not in said:
            said += (await service.stderr.readline()).decode()
        address = re.search(r"http://[\d.:]+", said)
        assert address is not None
        async with over_stdio("--address", address[0]) as client:
            await require_programs_and_notebooks(client)
            await require_files_and_figures(client)
    finally:
        service.terminate()
        await service.wait()


async def test_limits() -> None:
    async with over_stdio("--max-sessions", "2", "--idle", "1", "--max-wall", "5") as client:
        long = await client.call_tool("run_python", {"code": "1", "timeout_s": 6})
        assert (long.is_error, "at most 5 seconds" in text_of(long)) == (True, True)
        stopped = await client.call_tool("run_python", {"code": "while True: pass", "timeout_s": 0.5})
        assert (stopped.is_error, stopped.structured_content["status"]) == (True, "timeout")
        opened = [await client.call_tool("run_cell", {"code": "x = 1"}) for _ in range(2)]
        assert [text_of(result) for result in opened if result.is_error] == []
        refused = await client.call_tool("run_cell", {"code": "x = 1"})
        if refused.is_error:  # unless the first was idle for long enough meanwhile
            assert "2 sessions are open; close those that are done" in text_of(refused)
        async with asyncio.timeout(240):
            while (await client.call_tool("run_cell", {"code": "x = 1"})).is_error:  # noqa: ASYNC110
                await asyncio.sleep(0.2)


async def test_who_may_call() -> None:
    async with over_http() as (url, token, _), httpx2.AsyncClient(trust_env=False) as http:
        accept = {"Accept": "application/json, text/event-stream"}
        assert (await http.post(url, json=HELLO, headers=accept)).status_code == 401
        with_token = {**accept, "Authorization": f"Bearer {token}"}
        assert (await http.post(url, json=HELLO, headers=with_token)).status_code == 200
        page = await http.post(url, json=HELLO, headers={**with_token, "Origin": "http://evil.example"})
        assert (page.status_code, page.json()["error"]) == (403, "forbidden")
    async with over_http("--no-token") as (url, _, _), httpx2.AsyncClient(trust_env=False) as http:
        assert (await http.post(url, json=HELLO, headers=accept)).status_code == 200
        rebound = await http.post(url, json=HELLO, headers={**accept, "Host": "evil.example"})
        assert rebound.status_code == 403


def running_cell(number: int) -> bytes:
    code = "print('started', flush=True)\nimport time; time.sleep(200)"
    call = {"name": "run_cell", "arguments": {"code": code, "timeout_s": 250}}
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": call}).encode() + b"\n"


async def test_without_a_client_it_ends_at_once() -> None:
    """As a service manager starts it."""
    nothing, pipe = asyncio.subprocess.DEVNULL, asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(*COMMAND, stdin=nothing, stdout=nothing, stderr=pipe)
    async with asyncio.timeout(240):
        _, said = await child.communicate()
    assert (child.returncode, b"Traceback" in said) == (0, False), said


async def ask(child: asyncio.subprocess.Process, line: bytes) -> None:
    assert child.stdin is not None
    child.stdin.write(line)
    await child.stdin.drain()


@pytest.mark.parametrize("end", ["stdin is closed", "SIGTERM", "SIGKILL"])
async def test_nothing_is_left_when_it_ends_while_a_cell_runs(end: str) -> None:
    async with process() as child:
        assert child.stdout is not None
        assert child.stdin is not None
        await ask(child, json.dumps(HELLO).encode() + b"\n")
        assert json.loads(await child.stdout.readline())["result"]["serverInfo"]["name"] == "rstar2-sandbox"
        await ask(child, b'{"jsonrpc": "2.0", "method": "notifications/initialized"}\n')
        before = descendants(child.pid)
        await ask(child, running_cell(2))
        await until(lambda: bool(descendants(child.pid) - before))
        processes = descendants(child.pid)
        if end == "stdin is closed":
            child.stdin.close()
        else:
            child.send_signal(getattr(signal, end))
        async with asyncio.timeout(240):
            code = await child.wait()
        assert code == (-signal.SIGKILL if end == "SIGKILL" else 0)
        await until(lambda: not any(map(is_running, processes)))
        assert child.stderr is not None
        assert b"Traceback" not in await child.stderr.read()


async def test_sigterm_ends_the_http_server() -> None:
    async with over_http() as (url, token, child):
        async with client_of(url, token) as client:
            assert not (await client.call_tool("run_cell", {"code": "x = 1"})).is_error
        processes = descendants(child.pid)
        child.terminate()
        async with asyncio.timeout(240):
            assert await child.wait() == 0
        await until(lambda: not any(map(is_running, processes)))
        assert child.stderr is not None
        assert b"Traceback" not in await child.stderr.read()


async def test_a_client_that_gives_up_cancels_its_program() -> None:
    executor = GateExecutor()
    async with Client(create_server(executor)) as client:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await client.call_tool("run_python", {"code": "wait"})
        await until(lambda: executor.num_cancelled == 1)


class LostExecutor(GateExecutor):
    async def run(self, request: Request) -> Execution:
        if request.code == "never":
            await asyncio.Event().wait()
        return Execution(ExecutionStatus.INFRASTRUCTURE, message="a worker was lost")


async def test_faults_of_the_sandbox_are_errors_of_the_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rstar2.sandbox.mcp.tools.GRACE_S", 0.1)
    async with Client(create_server(LostExecutor(), McpLimits(queue_s=0.1))) as client:
        with pytest.raises(MCPError, match=r"not the program; try again\. \(a worker was lost\)"):
            await client.call_tool("run_python", {"code": "1"})
        with pytest.raises(MCPError, match=r"not the program; try again\. \(no answer within 1\.2 s\)"):
            await client.call_tool("run_python", {"code": "never", "timeout_s": 0.1})


async def test_silent_connections_keep_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "MAX_REQUESTS", 100)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        serving = asyncio.create_task(
            serve_http(create_server(GateExecutor()), listener, token="secret", listening_host="127.0.0.1")
        )
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(108)]
        try:
            async with client_of(f"http://127.0.0.1:{port}/mcp", "secret") as client:
                assert (await client.list_tools()).tools
        finally:
            for _, writer in silent:
                writer.close()
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)


@asynccontextmanager
async def served(executor: GateExecutor, **settings: Any) -> AsyncIterator[tuple[str, int]]:
    """Without a token, in this process."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = asyncio.create_task(
            serve_http(create_server(executor), listener, token=None, listening_host="127.0.0.1", **settings)
        )
        try:
            yield listener.getsockname()
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)


HALF = b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\n"
WHOLE = b"GET /nothing HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@pytest.mark.parametrize("before", [b"", WHOLE], ids=["the first", "a later one"])
async def test_half_a_head_is_not_waited_for(before: bytes) -> None:
    async with served(GateExecutor(), header_timeout_s=2.0) as address:
        reader, writer = await asyncio.open_connection(*address)
        async with asyncio.timeout(60.0):
            if before:
                writer.write(before)
                assert b"404" in await reader.readuntil(b"\r\n\r\n")
            with suppress(ConnectionError):
                writer.write(HALF)
                while await reader.read(1 << 16):
                    pass
        writer.close()


@pytest.mark.parametrize(
    "type_", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"]
)
async def test_what_any_page_may_send_runs_nothing(type_: str) -> None:
    call = {"name": "run_python", "arguments": {"code": "pass"}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call})
    executor = GateExecutor()
    async with served(executor) as (host, port), httpx2.AsyncClient(trust_env=False, timeout=60) as http:
        headers = {"Accept": "application/json, text/event-stream"}
        page = await http.post(f"http://{host}:{port}/mcp", content=body, headers={**headers, "Content-Type": type_})
        assert page.status_code >= 400 and executor.num_started == 0
        json_type = {**headers, "Content-Type": "application/json"}
        program = await http.post(f"http://{host}:{port}/mcp", content=body, headers=json_type)
        assert program.status_code == 200 and executor.num_started == 1
