"""Tools of MCP servers: ours, an older one, one from the package index, over stdio and HTTP; and every way to fail."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import mcp_plain_server
import pytest
from aiohttp import web
from process_tree import descendants, is_running, until
from sandbox_service import cold

from rstar2.agent import Agent, AgentLimits, ChatFormat, PythonTool, Tool
from rstar2.agent.tool import close_all
from rstar2.config import McpServer, load_recipe
from rstar2.engine import Sampling
from rstar2.engine.plain_text import PlainTextTokenizer
from rstar2.engine.scripted import ScriptedEngine, ScriptedPrompt, replies
from rstar2.environments.mcp import McpTools, open_mcp
from rstar2.environments.open import open_environments
from rstar2.environments.user_code import Caller
from rstar2.errors import EnvironmentCodeError, InfrastructureError, UserError
from rstar2.records import Outcome, Problem, ToolResult, ToolStatus, Trace, Verdict
from rstar2.rollout import make_policy
from rstar2.rollout.driver import Driver
from rstar2.rollout.request import RolloutRequest
from rstar2.rollout.roller import Roller
from rstar2.rollout.scheduler import EngineSpeed

pytestmark = pytest.mark.integration

HERE = Path(__file__).parent
OURS = (sys.executable, str(HERE / "mcp_test_server.py"))
PLAIN = (sys.executable, "-I", "-S", str(HERE / "mcp_plain_server.py"))
CHAT = ChatFormat.of(PlainTextTokenizer())
ANSWER = "It is done.</reason><answer>42</answer>"
SKIP, STOP = Caller(60.0, stops=False), Caller(60.0, stops=True)


def opened(caller: Caller = SKIP, **servers: McpServer) -> Any:
    return open_mcp(servers, caller)


def plain(**settings: Any) -> McpServer:
    return McpServer(command=PLAIN, **settings)


async def call(tools: McpTools | Sequence[Tool], name: str, **arguments: Any) -> ToolResult:
    episode = await tools.make() if isinstance(tools, McpTools) else tools
    (tool,) = (tool for tool in episode if tool.schema.name == name)
    assert tool.schema.mismatch(arguments) is None
    return await tool.call(arguments)


def calling(name: str, **arguments: Any) -> str:
    return f"I call.</reason><tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


async def roll(tools: McpTools, *texts: str, **limits: Any) -> Trace:
    """One episode of a policy that writes these turns."""
    engine = ScriptedEngine(replies(texts), CHAT.tokenizer, CHAT.end_of_turn_id)
    episode = await tools.make()
    try:
        return await Agent(engine, CHAT, AgentLimits(**limits)).rollout(Problem("p", "Do it.", "42"), episode)
    finally:
        await close_all(episode)


@asynccontextmanager
async def over_http(port: int = 0) -> AsyncIterator[tuple[McpServer, subprocess.Popen[bytes]]]:
    """Our server in a process of its own, at a port of this machine."""
    with socket.create_server(("127.0.0.1", port)) as listening:
        port = listening.getsockname()[1]
        process = subprocess.Popen([*OURS, str(listening.fileno())], pass_fds=[listening.fileno()])  # noqa: ASYNC220
    try:
        yield McpServer(url=f"http://127.0.0.1:{port}/mcp"), process
    finally:
        process.kill()
        process.wait()


async def require_all_kinds_of_results(tools: McpTools, num_chars: int) -> None:
    describe = next(schema for schema in tools.schemas if schema.name == "describe")
    assert describe.description == "Describes a shape."
    assert describe.parameters["properties"]["shape"]["anyOf"] == [{"$ref": "#/$defs/Shape"}, {"type": "null"}]
    assert describe.mismatch({"shape": {"name": "t"}}) == "arguments.shape lacks 'corners'"

    assert (await call(tools, "add", a=1, b=2)).text == "3"
    described = await call(tools, "describe", shape={"name": "point", "corners": [{"x": 1}]}, unit="km")
    assert described.text == "point with 1 corners, 1 km"
    failed = await call(tools, "fail", reason="no such table")
    assert (failed.status, failed.text) == (ToolStatus.RAISED, "Error executing tool fail: no such table")
    assert (await call(tools, "crash")).status is ToolStatus.RAISED
    shown = await call(tools, "picture")
    assert (shown.status, shown.text) == (ToolStatus.OK, "[image/png of 10 bytes, which cannot be shown]")
    assert (await call(tools, "only_structured")).text == '{"é": [1, null]}'
    assert (await call(tools, "nothing")).status is ToolStatus.NO_OUTPUT
    long = await call(tools, "write", num_chars=1_000_000)
    assert (long.status, len(long.text)) == (ToolStatus.OK, 1_000_011)
    too_long = await call(tools, "write", num_chars=num_chars)
    assert too_long.status is ToolStatus.OUTPUT_TOO_LONG
    assert too_long.text.startswith("first xxxxx")
    assert f"[Too much output: {too_long.num_cut_chars} bytes more were not read.]" in too_long.text
    assert len(too_long.text) + too_long.num_cut_chars > num_chars
    assert len(too_long.text) < 1_000_000
    assert (await call(tools, "add", a=1, b=3)).text == "4"


async def test_a_server_over_stdio() -> None:
    async with opened(ours=McpServer(command=OURS)) as tools:
        await require_all_kinds_of_results(tools, 100_000_000)


async def test_a_server_over_http() -> None:
    async with over_http() as (server, _), opened(ours=server) as tools:
        await require_all_kinds_of_results(tools, 20_000_000)


async def test_a_server_that_is_not_ours_is_used_by_a_policy() -> None:
    time = McpServer(command=(sys.executable, "-m", "mcp_server_time", "--local-timezone", "UTC"))
    async with opened(time=time) as tools:
        assert [schema.name for schema in tools.schemas] == ["get_current_time", "convert_time"]
        zones = {"source_timezone": "Asia/Tokyo", "target_timezone": "Asia/Kathmandu"}
        trace = await roll(
            tools,
            calling("convert_time", time="16:30", **zones),
            calling("convert_time", time="half past four", **zones),
            calling("convert_time", **zones),
            ANSWER,
        )
    converted, refused, incomplete = trace.results
    assert converted.status is ToolStatus.OK
    assert "T13:15:00+05:45" in converted.text
    assert (refused.status, incomplete.status) == (ToolStatus.RAISED, ToolStatus.BAD_ARGUMENTS)
    assert "Invalid time format" in refused.text
    assert trace.num_tool_errors == 2
    assert trace.outcome is Outcome.ANSWERED


async def test_an_older_server_that_prints_and_writes_its_ids_last() -> None:
    async with opened(plain=plain()) as tools:
        assert (await call(tools, "note", text="a")).text == "a"
        too_long = await call(tools, "write", num_chars=20_000_000)
        assert (too_long.status, too_long.text[:8]) == (ToolStatus.OUTPUT_TOO_LONG, "first xx")
        assert (await call(tools, "note", text="b")).text == "a, b"  # the same server
        assert (await call(tools, "note", text="\ud83d")).text == "a, b, ?"
        assert (await call(tools, "odd")).text == "half a pair: ?"
    async with opened(plain=plain(tools=("pid", "note"))) as tools:
        assert [schema.name for schema in tools.schemas] == ["pid", "note"]


async def test_each_episode_has_a_server_of_its_own() -> None:
    async with opened(plain=plain(per_episode=True)) as tools:
        first, second = await tools.make(), await tools.make()
        assert (await call(first, "note", text="a")).text == "a"
        assert (await call(second, "note", text="b")).text == "b"
        assert (await call(first, "note", text="c")).text == "a, c"
        pid = int((await call(first, "pid")).text)
        assert is_running(pid)
        await close_all(first)
        assert not is_running(pid)
        other = int((await call(second, "pid")).text)  # an episode that nobody closes
    assert not is_running(other)


async def test_a_killed_server_is_restarted_and_its_call_retried() -> None:
    async with opened(plain=plain()) as tools:
        pid = int((await call(tools, "pid")).text)
        os.kill(pid, signal.SIGKILL)
        trace = await roll(tools, calling("pid"), ANSWER)
        assert trace.outcome is Outcome.ANSWERED
        assert int(trace.results[0].text) != pid
        with pytest.raises(
            InfrastructureError, match=r"environment\.mcp\.plain.* code -9.*the disk is on fire"
        ) as lost:
            await call(tools, "die")
        assert not isinstance(lost.value, EnvironmentCodeError)  # so that the agent retries it
        killed = await roll(tools, calling("die"), ANSWER)
        assert (killed.outcome, killed.results[0].num_attempts) == (Outcome.INFRASTRUCTURE_FAULT, 3)
        assert (await call(tools, "note", text="after")).text == "after"


async def test_a_killed_server_of_an_episode_ends_the_episode() -> None:
    async with opened(plain=plain(per_episode=True)) as tools:
        trace = await roll(tools, calling("note", text="a"), calling("die"), ANSWER)
        assert trace.outcome is Outcome.INFRASTRUCTURE_FAULT
        assert trace.results[-1].status is ToolStatus.INFRASTRUCTURE_FAULT
        assert "and with it the state of the episode" in trace.note
        assert trace.results[-1].num_attempts == 1
    async with opened(STOP, plain=plain(per_episode=True)) as tools:
        with pytest.raises(UserError, match=r"environment\.mcp\.plain: the server was lost"):
            await roll(tools, calling("die"), ANSWER)


async def test_a_tool_that_hangs_is_a_fault_and_the_others_go_on() -> None:
    async with opened(plain=plain(timeout_s=5)) as tools:
        trace = await roll(tools, calling("hang") + calling("pid"), ANSWER)
        hung, other = trace.results
        assert trace.outcome is Outcome.INFRASTRUCTURE_FAULT
        assert "environment.mcp.plain: tool hang: no answer within 5 s" in trace.note
        assert hung.num_attempts == 1  # it may have done something
        assert (await call(tools, "pid")).text == other.text


async def test_a_server_that_answers_nothing_is_replaced() -> None:
    async with opened(plain=plain(timeout_s=5)) as tools:
        pid = int((await call(tools, "pid")).text)
        frozen = await roll(tools, calling("freeze"), ANSWER)
        assert frozen.outcome is Outcome.INFRASTRUCTURE_FAULT
        assert int((await call(tools, "pid")).text) != pid
        assert not is_running(pid)


async def test_a_server_over_http_that_is_killed_is_found_again() -> None:
    async with over_http() as (server, process):
        assert server.url is not None
        port = int(re.findall(r":(\d+)/", server.url)[0])
        async with opened(ours=server) as tools:
            process.kill()
            process.wait()
            waiting = asyncio.create_task(roll(tools, calling("add", a=1, b=2), ANSWER))
            async with over_http(port):
                trace = await waiting
    assert trace.outcome is Outcome.ANSWERED
    assert trace.results[0].text == "3"


@asynccontextmanager
async def serving(handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_route("*", "/mcp", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/mcp"
    finally:
        await runner.cleanup()


class OldHttpServer:
    """A server of sessions, which wants a token and may forget a session, or fail once."""

    def __init__(self) -> None:
        self.sessions: list[str] = []
        self.fails = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") != "Bearer s3cret":
            return web.Response(status=401)
        if request.method != "POST":
            return web.Response(status=405)
        message = await request.json()
        method = message["method"]
        if method == "initialize":
            self.sessions.append(f"session-{len(self.sessions)}")
        elif method == "server/discover":
            return web.Response(status=400)
        elif request.headers.get("mcp-session-id") not in self.sessions[-1:]:
            return web.Response(status=404)
        if "id" not in message:
            return web.Response(status=202)
        if method == "tools/call" and self.fails > 0:
            self.fails -= 1
            return web.Response(status=503)
        body = {"jsonrpc": "2.0", "id": message["id"], "result": mcp_plain_server.answer(message)}
        return web.json_response(body, headers={"mcp-session-id": self.sessions[-1]})


async def test_sessions_and_tokens_over_http(monkeypatch: pytest.MonkeyPatch) -> None:
    old = OldHttpServer()
    async with serving(old.handle) as url:
        server = McpServer(url=url, token_env="RSTAR2_TEST_TOKEN")
        with pytest.raises(UserError, match="token_env: the environment variable RSTAR2_TEST_TOKEN is not set"):
            async with opened(old=server):
                pass
        monkeypatch.setenv("RSTAR2_TEST_TOKEN", "wrong")
        with pytest.raises(InfrastructureError, match="HTTP 401"):
            async with opened(old=server):
                pass
        monkeypatch.setenv("RSTAR2_TEST_TOKEN", "s3cret")
        async with opened(old=server) as tools:
            num_sessions = len(old.sessions)
            old.fails = 1
            trace = await roll(tools, calling("pid"), ANSWER)
            assert (trace.results[0].text, trace.results[0].num_attempts) == (str(os.getpid()), 2)
            assert len(old.sessions) == num_sessions
            old.sessions.append("the server forgot the others")
            again = await roll(tools, calling("pid"), ANSWER)
            assert (again.results[0].text, again.results[0].num_attempts) == (str(os.getpid()), 2)
            assert len(old.sessions) == num_sessions + 2


BAD_SERVERS: Mapping[str, tuple[dict[str, Any], str]] = {
    "no program": (
        {"a": McpServer(command=("no-such-program",))},
        r"environment\.mcp\.a\.command: there is no program 'no-such-program'",
    ),
    "ends at once": (
        {"a": McpServer(command=(sys.executable, "-c", "raise SystemExit('no data base')"))},
        r"environment\.mcp\.a: it did not start: it ended with code 1; its stderr says: no data base",
    ),
    "says nothing": (
        {"a": McpServer(command=(sys.executable, "-c", "import time; time.sleep(600)"), timeout_s=1)},
        r"environment\.mcp\.a: it did not start within 1 s",
    ),
    "an unknown tool": (
        {"a": plain(tools=("note", "add"))},
        r"environment\.mcp\.a\.tools: the server has no tool 'add'; it has note, pid, die, hang, freeze, write, odd",
    ),
    "two of a name": (
        {"a": plain(tools=("note", "pid")), "b": plain(tools=("pid",))},
        r"environment\.mcp: a and b both have a tool pid; name the tools .* environment\.mcp\.b\.tools",
    ),
}


@pytest.mark.parametrize("mistake", BAD_SERVERS)
async def test_mistakes_in_the_recipe_are_named(mistake: str) -> None:
    servers, sentence = BAD_SERVERS[mistake]
    with pytest.raises(UserError, match=sentence):
        async with open_mcp(servers, SKIP):
            pass


async def test_an_address_where_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    with pytest.raises(InfrastructureError, match=r"environment\.mcp\.a: it did not start: ConnectError"):
        async with opened(a=McpServer(url=f"http://127.0.0.1:{port}/mcp")):
            pass


async def test_a_cancelled_run_leaves_no_server() -> None:
    before = descendants(os.getpid())
    pids: asyncio.Queue[int] = asyncio.Queue()

    async def run() -> None:
        deaf = McpServer(command=(*PLAIN, "deaf"), tools=("pid", "hang"), per_episode=True)
        async with opened(shared=plain(tools=("note",)), own=deaf) as tools:
            episode = await tools.make()
            pids.put_nowait(int((await call(episode, "pid")).text))
            await call(episode, "hang")

    task = asyncio.create_task(run())
    assert is_running(await pids.get())
    assert len(descendants(os.getpid()) - before) == 2
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert descendants(os.getpid()) <= before


KILLED = """
import asyncio
from test_environments_mcp import PLAIN, McpServer, call, opened

async def main():
    async with opened(deaf=McpServer(command=(*PLAIN, "deaf"))) as tools:
        print((await call(tools, "pid")).text, flush=True)
        await call(tools, "hang")

asyncio.run(main())
"""


async def test_a_run_that_is_killed_leaves_no_server() -> None:
    process = subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, cwd=HERE)  # noqa: ASYNC220
    assert process.stdout is not None
    pid = int(await asyncio.to_thread(process.stdout.readline))
    assert is_running(pid)
    process.kill()
    process.communicate()
    await until(lambda: not is_running(pid))


async def test_the_tools_of_servers_join_those_of_the_environment() -> None:
    """A recipe's rollouts, by the roller that trains: the Python tool, a server for each episode, the judge."""
    mcp = {"command": json.dumps(PLAIN), "per_episode": "true", "tools": '["note"]'}
    recipe = load_recipe("quickstart", [f"environment.mcp.plain.{key}={value}" for key, value in mcp.items()])
    program = calling(PythonTool.schema.name, code="print(6 * 7)", input="")

    def policy(prompt: ScriptedPrompt) -> str:
        said = "It is 42.</reason><answer>\\boxed{42}</answer>"
        return (program + calling("note", text=prompt.session), calling("note", text="b"), said)[prompt.turn]

    driver: Driver[Trace] = Driver(make_policy("kv-aware"))
    engine = ScriptedEngine(policy, CHAT.tokenizer, CHAT.end_of_turn_id)
    driver.add_engine("scripted", engine, EngineSpeed(1e-6, 1e-4, 1e-9), num_cache_tokens=1 << 24)
    before = descendants(os.getpid())
    async with cold() as executor, open_environments(recipe, executor) as environments:
        roller = Roller(driver, CHAT, environments, "scripted")
        problem = Problem("p", "What is 6 * 7?", "42")
        requests = [RolloutRequest(problem, str(number), "g", 0, 0, "s", seed=0) for number in range(20)]
        traces = await roller.run(requests, AgentLimits(), Sampling())
    assert sorted([result.text for result in trace.results] for trace in traces) == sorted(
        ["42", str(number), f"{number}, b"] for number in range(20)
    )
    assert {trace.verdict for trace in traces} == {Verdict.RIGHT}
    assert descendants(os.getpid()) <= before


async def test_a_thousand_episodes_at_a_time() -> None:
    async with opened(ours=McpServer(command=OURS, timeout_s=120)) as tools:

        async def episode(number: int) -> Trace:
            return await roll(tools, calling("echo", number=number, seconds=2), ANSWER, tool_deadline_s=200.0)

        traces = await asyncio.gather(*map(episode, range(1000)))
    assert [trace.outcome for trace in traces] == [Outcome.ANSWERED] * 1000
    assert [trace.results[0].text for trace in traces] == [str(number) for number in range(1000)]
