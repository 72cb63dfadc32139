"""The agent on the real sandbox: what the model reads after a call, notebooks, workers that die in the middle."""

import asyncio
import importlib.util
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from process_tree import descendants, until
from sandbox_service import cold

from rstar2.agent import Agent, ChatFormat, JupyterTool, PythonTool, Tool
from rstar2.agent.python_tools import NO_OUTPUT_TEXT
from rstar2.engine.plain_text import PlainTextTokenizer
from rstar2.engine.scripted import ScriptedEngine, replies
from rstar2.grading import extract_answer
from rstar2.records import Outcome, Problem, ToolStatus, Trace
from rstar2.sandbox import Limits, LocalExecutor
from rstar2.sandbox.notebooks.local_session import LocalSession

pytestmark = pytest.mark.integration

CHAT = ChatFormat.of(PlainTextTokenizer())
ANSWER = r"So it is.</reason><answer>\boxed{42}</answer>"


@pytest.fixture
async def executor() -> AsyncIterator[LocalExecutor]:
    async with cold() as executor:
        yield executor


def calls(*arguments: dict[str, Any], name: str = PythonTool.schema.name) -> str:
    blocks = (json.dumps({"name": name, "arguments": each}) for each in arguments)
    return "".join(f"<tool_call>\n{content}\n</tool_call>\n" for content in blocks)


async def roll(tool: Tool, *turns: str) -> Trace:
    engine = ScriptedEngine(replies([*turns, ANSWER]), CHAT.tokenizer, CHAT.end_of_turn_id)
    return await Agent(engine, CHAT).rollout(Problem("p", "What?", "42"), [tool])


PROGRAMS: dict[str, tuple[str, ToolStatus, str]] = {
    "stdout": ("print(6 * 7)\n5", ToolStatus.OK, "42"),
    "stdin": ("print(input()[::-1])", ToolStatus.OK, "cba"),
    "value": ("x = [1, 2]\nx", ToolStatus.OK, "[1, 2]"),
    "nothing": ("x = 1", ToolStatus.NO_OUTPUT, NO_OUTPUT_TEXT),
    "raised": (
        "print('before')\n1 / 0",
        ToolStatus.RAISED,
        'before\nTraceback (most recent call last):\n  File "<cell>", line 2, in <module>\n',
    ),
    "syntax": ("def f(:", ToolStatus.RAISED, "SyntaxError: invalid syntax"),
    "exit": ("import sys; sys.exit(3)", ToolStatus.RAISED, "[The program exited with code 3.]"),
    "crash": ("import os; os.abort()", ToolStatus.RAISED, "[Crashed: ended by SIGABRT.]"),
    "timeout": (
        "print('before', flush=True)\nwhile True: pass",
        ToolStatus.TIMED_OUT,
        "before\n[Timed out: stopped after its ",
    ),
    "memory": ("b = bytearray(1 << 33)", ToolStatus.OUT_OF_MEMORY, "[Out of memory: "),
    "output": ("while True: print('x' * 1000)", ToolStatus.OUTPUT_TOO_LONG, "[Too much output: "),
}


async def test_what_the_model_reads_after_a_call(executor: LocalExecutor) -> None:
    tool = PythonTool(executor, Limits(wall_s=2, cpu_s=1))
    trace = await roll(tool, calls(*({"code": code, "input": "abc\n"} for code, _, _ in PROGRAMS.values())))
    assert trace.outcome is Outcome.ANSWERED
    for (name, (_, status, text)), result in zip(PROGRAMS.items(), trace.results, strict=True):
        assert result.status is status, name
        assert text in result.text, name
        assert not result.text.endswith("\n"), name
    assert extract_answer(*trace.turn_texts) == "42"


async def test_a_notebook_keeps_its_variables_and_its_order(executor: LocalExecutor) -> None:
    tool = JupyterTool(executor)
    first = calls(
        {"code": "import time; time.sleep(0.2); x = 1"}, {"code": "x += 1"}, {"code": "x"}, name="jupyter_code"
    )
    second = calls({"code": "1 / 0"}, {"code": "print(x + 40)"}, name="jupyter_code")
    trace = await roll(tool, first, second)
    await tool.close()
    assert [result.text for result in trace.turns[0].results] == [NO_OUTPUT_TEXT, NO_OUTPUT_TEXT, "2"]
    assert trace.turns[1].results[0].status is ToolStatus.RAISED
    assert trace.turns[1].results[1].text == "42"
    assert executor.status()["sessions"] == 0


async def kill_slots(executor: LocalExecutor, num_rounds: int) -> None:
    """Whatever runs is killed, again and again."""
    assert executor._dispatcher is not None
    for _ in range(num_rounds):
        await until(lambda: executor.status()["running"] > 0)
        for slot in executor._dispatcher._slots:
            if slot.pid:
                with suppress(ProcessLookupError):  # killed the last time, and not missed yet
                    os.kill(slot.pid, signal.SIGKILL)
        await asyncio.sleep(0.05)


async def test_a_sandbox_that_dies_once_in_a_call_is_not_noticed(executor: LocalExecutor) -> None:
    await PythonTool(executor).call({"code": "1", "input": ""})
    killing = asyncio.create_task(kill_slots(executor, 1))
    trace = await roll(PythonTool(executor), calls({"code": "import time; time.sleep(0.5); print(42)", "input": ""}))
    await killing
    assert executor.status()["slots_lost"] > 0
    assert trace.outcome is Outcome.ANSWERED
    assert trace.results[0].text == "42"


async def test_a_sandbox_that_keeps_dying_ends_the_rollout_without_blame(executor: LocalExecutor) -> None:
    await PythonTool(executor).call({"code": "1", "input": ""})
    killing = asyncio.create_task(kill_slots(executor, 1000))
    trace = await roll(PythonTool(executor), calls({"code": "import time; time.sleep(2); print(42)", "input": ""}))
    killing.cancel()
    await asyncio.gather(killing, return_exceptions=True)
    assert trace.outcome is Outcome.INFRASTRUCTURE_FAULT
    assert "3 times" in trace.note
    assert trace.results[0].status is ToolStatus.INFRASTRUCTURE_FAULT
    assert trace.num_tool_errors == 0
    # Neither the call's failure nor anything about it was put before the model.
    assert [turn.appended_ids for turn in trace.turns] == [()]


async def test_a_notebook_whose_worker_dies_in_a_cell_goes_on_from_the_state_before(executor: LocalExecutor) -> None:
    tool = JupyterTool(executor)
    await tool.call({"code": "x = 41"})
    session = tool._session
    assert isinstance(session, LocalSession)
    assert session.tree is not None
    killed_pid = session.tree.pid

    parked = descendants(killed_pid)

    async def kill() -> None:
        await until(lambda: bool(descendants(killed_pid) - parked))
        os.kill(killed_pid, signal.SIGKILL)

    killing = asyncio.create_task(kill())
    trace = await roll(tool, calls({"code": "import time; time.sleep(2); x += 1; print(x)"}, name="jupyter_code"))
    await killing
    await tool.close()
    assert trace.outcome is Outcome.ANSWERED
    assert trace.results[0].text == "42"
    assert trace.results[0].num_attempts == 1, "the session itself ran the cell again"


async def test_the_example_of_a_tool_of_ones_own() -> None:
    path = Path(__file__).parents[2] / "examples" / "table_search_tool.py"
    spec = importlib.util.spec_from_file_location("table_search_tool", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    tool = module.make_tool()
    turn = calls({"words": "-38.83"}, {"words": "IRON fe"}, {"words": "gold"}, {"word": ""}, name="search_table")
    trace = await roll(tool, turn)
    results = trace.turns[0].results
    assert results[0].text == "element: mercury; symbol: Hg; number: 80; melting point in degrees Celsius: -38.83"
    assert "number: 26" in results[1].text
    assert [result.status for result in results[2:]] == [ToolStatus.NO_OUTPUT, ToolStatus.BAD_ARGUMENTS]
    assert "search_table" in trace.prompt_text
