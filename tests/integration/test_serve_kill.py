"""kill -9 of the processes that a server works with: the answer is right all the same, or each caller concerned gets
503 with Retry-After, or an error event in its stream. Nothing is left of them, and the next request is
answered."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import openai
import pytest
from agent_app import RunningAgent, call_of, python_agent, serving_agent
from engine_child import ChildEngine, start_child
from process_tree import descendants, is_running, until
from sandbox_cluster import TOKEN, SandboxProcess, ask
from train_rollouts import CHAT

from model_server import ModelServer
from rstar2.agent import AgentLimits
from rstar2.engine.scripted import ScriptedPrompt
from rstar2.environments.plain_episode import PlainEnvironment
from rstar2.records import Problem
from rstar2.sandbox import LocalExecutor
from rstar2.sandbox.client import RemoteExecutor

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

NUM_CALLERS = 6
PROGRAM = "import time; time.sleep(1.5); print(6 * 7)"
NOTEBOOK = '[environment]\ntools = ["jupyter_code"]'
CELLS = ("x = 6", "import time; time.sleep(1.5); print(x * 7)")
RIGHT = r"\boxed{42}"


def answers_what_was_printed(*programs: str, tool: str | None = None) -> Callable[[ScriptedPrompt], str]:
    def policy(prompt: ScriptedPrompt) -> str:
        printed = prompt.text.split("<tool_response>\n")[1:]
        if len(printed) < len(programs):
            call = call_of(programs[len(printed)], *(() if tool is None else (tool,)))
            return call if tool is None else call.replace(', "input": ""', "")
        return rf"So.</reason><answer>\boxed{{{printed[-1].split()[0]}}}</answer>"

    return policy


def kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def children(pid: int) -> list[int]:
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def templates() -> list[int]:
    return [pid for pid in children(os.getpid()) if b"template_process" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def slots() -> list[int]:
    return [slot for template in templates() for slot in children(template)]


async def outcome(found: RunningAgent, question: str, *, stream: bool) -> str:
    """The content, or `reported`. Any other end of a request fails the test."""
    try:
        if not stream:
            return str((await found.ask(question)).choices[0].message.content)
        said, reason = "", None
        async for chunk in await found.ask(question, stream=True):
            said += chunk.choices[0].delta.content or ""
            reason = chunk.choices[0].finish_reason or reason
        assert reason is not None, "the stream ended in the middle, and said nothing of it"
        return said
    except openai.InternalServerError as error:
        assert (error.status_code, error.response.headers["Retry-After"]) == (503, "1")
        return "reported"
    except openai.APIConnectionError:
        raise
    except openai.APIError:  # an event of a stream
        assert stream
        return "reported"


async def outcomes(found: RunningAgent, is_time: Callable[[], bool], harm: Callable[[], None]) -> list[str]:
    asking = [asyncio.ensure_future(outcome(found, "?", stream=bool(n % 2))) for n in range(NUM_CALLERS)]
    await until(is_time)
    harm()
    return await asyncio.gather(*asking)


@pytest.mark.parametrize("victims", [slots, templates])
@pytest.mark.parametrize("is_notebook", [False, True])
async def test_processes_of_the_sandbox_that_are_killed_are_replaced(
    executor: LocalExecutor, victims: Callable[[], list[int]], is_notebook: bool
) -> None:
    policy = answers_what_was_printed(PROGRAM)
    if is_notebook:
        policy = answers_what_was_printed(*CELLS, tool="jupyter_code")
    num_busy = "sessions_live" if is_notebook else "running"
    async with python_agent(CHAT, executor, policy, NOTEBOOK if is_notebook else "") as found:
        ended = await outcomes(found, lambda: executor.status()[num_busy] >= NUM_CALLERS, lambda: kill(victims()))
        assert set(ended) <= {RIGHT, "reported"}, ended
        assert await outcome(found, "?", stream=True) == RIGHT, "it works again"
        await until(lambda: found.service.admission.num_in_flight == 0)
        names = ("running", "queued", "sessions")
        await until(lambda: not any(executor.status()[name] for name in names))


async def test_a_server_of_a_sandbox_service_that_is_killed_is_replaced() -> None:
    """Its supervisor starts another."""
    service = SandboxProcess("serve")
    try:
        executor = RemoteExecutor(service.url, TOKEN)
        async with python_agent(CHAT, executor, answers_what_was_printed(PROGRAM)) as found:
            have_asked = lambda: len(found.engine.turns) >= NUM_CALLERS  # noqa: E731
            ended = await outcomes(found, have_asked, lambda: kill(service.pids()[1:]))
            assert set(ended) <= {RIGHT, "reported"}, ended
            await until_answered(found)
            await until(lambda: found.service.admission.num_in_flight == 0)
        await executor.close()
    finally:
        service.end()


async def test_a_supervisor_that_is_killed_alone_is_reported_until_the_service_is_back() -> None:
    """Nothing but the supervisor is killed: its servers follow it, and nobody waits for one of them."""
    service = SandboxProcess("serve")
    back = None
    try:
        executor = RemoteExecutor(service.url, TOKEN)
        limits = AgentLimits(max_fault_retries=0, tool_deadline_s=8.0)
        async with python_agent(CHAT, executor, hangs_if_asked_to, limits=limits) as found:
            asking = [asyncio.ensure_future(outcome(found, "hang", stream=bool(n % 2))) for n in range(NUM_CALLERS)]
            await until_said(lambda: ask(service.url, "/status")[1]["num_in_flight"] == NUM_CALLERS)
            everyone = descendants(service.process.pid)
            service.process.kill()
            assert await asyncio.gather(*asking) == ["reported"] * NUM_CALLERS
            assert found.service.admission.num_in_flight == 0
            await until(lambda: not any(map(is_running, everyone)))
            back = SandboxProcess("serve", "--port", str(urlsplit(service.url).port))
            assert back.url == service.url
            await until_answered(found)
        await executor.close()
    finally:
        service.end()
        if back is not None:
            back.end()


def hangs_if_asked_to(prompt: ScriptedPrompt) -> str:
    program = "import time; time.sleep(60)" if "hang" in prompt.text else "print(6 * 7)"
    return answers_what_was_printed(program)(prompt)


async def test_callers_of_a_model_server_that_is_killed_get_an_error_and_nothing_of_it_is_left(tmp_path: Path) -> None:
    script = tmp_path / "script.txt"
    script.write_text(call_of("import time; time.sleep(60)"))
    server = await asyncio.to_thread(ModelServer, "--agent", "--script", str(script), "--name", "agent")
    try:
        async with openai.AsyncOpenAI(base_url=f"{server.root}/v1", api_key="none", max_retries=0) as client:
            asking = [asyncio.ensure_future(said_by(client, stream=bool(n % 2))) for n in range(NUM_CALLERS)]
            all_run = f"rstar2_serve_sandbox_running {NUM_CALLERS}"
            await until_said(lambda: all_run in ask(server.root, "/metrics")[1])
            await until(lambda: len(descendants(server.process.pid)) > NUM_CALLERS)
            everyone = descendants(server.process.pid)
            server.process.kill()
            ended = await asyncio.gather(*asking, return_exceptions=True)
        assert all(isinstance(each, openai.APIConnectionError | httpx.TransportError) for each in ended), ended
        await until(lambda: not any(map(is_running, everyone)))
    finally:
        server.process.kill()
        server.process.wait()


async def said_by(client: openai.AsyncOpenAI, *, stream: bool) -> Any:
    messages: Any = [{"role": "user", "content": "?"}]
    answer = await client.chat.completions.create(model="agent", messages=messages, stream=stream)
    return [chunk async for chunk in answer] if stream else answer  # type: ignore[union-attr]


async def until_said(condition: Callable[[], bool]) -> None:
    """The condition asks another process, and may block."""
    async with asyncio.timeout(120):
        while not await asyncio.to_thread(condition):  # noqa: ASYNC110 - it is another process
            await asyncio.sleep(0.05)


async def until_answered(found: RunningAgent) -> None:
    async with asyncio.timeout(120):
        while await outcome(found, "?", stream=False) != RIGHT:  # noqa: ASYNC110 - it is another process
            await asyncio.sleep(0.1)


async def test_an_engine_whose_process_is_killed_is_reported_to_all() -> None:
    engine = await start_child()
    try:
        await expect_loss_of(engine)
    finally:
        await engine.close()


async def expect_loss_of(engine: ChildEngine) -> None:
    async def judge(_problem: Problem, _trace: Any) -> Any:
        raise AssertionError("nobody judges an answer that is served")

    limits = AgentLimits(max_fault_retries=0)
    async with serving_agent(CHAT, PlainEnvironment(judge), engine=engine, limits=limits) as found:
        asking = [asyncio.ensure_future(outcome(found, "?", stream=bool(n % 2))) for n in range(NUM_CALLERS)]
        raw = asyncio.ensure_future(found.client.completions.create(model="agent", prompt="?"))
        await until(lambda: engine.load().num_running == NUM_CALLERS + 1)
        kill([engine.pid])
        assert await asyncio.gather(*asking) == ["reported"] * NUM_CALLERS
        with pytest.raises(openai.InternalServerError) as refused:
            await raw
        assert (refused.value.status_code, refused.value.response.headers["Retry-After"]) == (503, "1")
        with pytest.raises(openai.InternalServerError, match="has disconnected"):
            await found.client.get("/../health", cast_to=object)
        await until(lambda: found.service.admission.num_in_flight == 0)
