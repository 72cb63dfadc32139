"""What the generated conversations show of a program is what the sandbox shows of it."""

import asyncio

import pytest

from rstar2.agent import PythonTool
from rstar2.data.procedural.tool_format import PROGRAMS, _run
from rstar2.records import ToolStatus
from rstar2.sandbox import LocalExecutor

pytestmark = pytest.mark.integration


async def test_results_and_errors_read_as_in_a_rollout() -> None:
    programs = [program.format(a="1234", b="8", c="97") for program in PROGRAMS]
    async with LocalExecutor() as executor:
        tool = PythonTool(executor)
        results = await asyncio.gather(*(tool.call({"code": program, "input": ""}) for program in programs))
    shown = [(result.text, result.status is ToolStatus.RAISED) for result in results]
    assert shown == [_run(program) for program in programs]
    assert {raised for _, raised in shown} == {True, False}
