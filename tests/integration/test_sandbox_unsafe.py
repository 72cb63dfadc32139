"""The executor without isolation still keeps the interface, the limits of honest programs, and the machine tidy."""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from process_tree import is_running, until

from rstar2.sandbox import ExecutionStatus, Limits, Request
from rstar2.sandbox.executor import Overloaded
from rstar2.sandbox.unsafe.executor import UnsafeExecutor

pytestmark = pytest.mark.integration
S = ExecutionStatus


@pytest.fixture
async def executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[UnsafeExecutor]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    async with UnsafeExecutor() as found:
        yield found
    assert left_in(tmp_path) == []


def left_in(folder: Path) -> list[Path]:
    return list(folder.iterdir())


@pytest.mark.parametrize(
    ("code", "status", "stdout", "value"),
    [
        ("print(input())\n1 + 1", S.OK, "given\n", "2"),
        ("print(1)\nNone", S.OK, "1\n", None),
        ("x = 1", S.OK, "", None),
        ("'é'", S.OK, "", "'é'"),
        ("print(1)\n1/0", S.ERROR, "1\n", None),
        ("def f(:", S.ERROR, "", None),
        ("print(1)\nimport sys; sys.exit(0)", S.OK, "1\n", None),
        ("import sys; sys.exit('why')", S.ERROR, "", None),
        ("import os; print(1); os._exit(4)", S.ERROR, "1\n", None),
        ("import os; print(1); os.kill(os.getpid(), 11)", S.SIGNAL, "1\n", None),
        ("print(1, end='')\nwhile True: pass", S.TIMEOUT, "1", None),
        ("bytearray(4 << 30)", S.MEMORY, "", None),
        ("import threading, time\nthreading.Timer(0.1, print, [1]).start()", S.OK, "1\n", None),
    ],
)  # fmt: skip
async def test_outcomes(executor: UnsafeExecutor, code: str, status: S, stdout: str, value: str | None) -> None:
    result = await executor.run(Request(code, stdin="given", limits=Limits(wall_s=3.0)))
    assert (result.status, result.stdout, result.value) == (status, stdout, value), result
    assert result.wall_s > 0


async def test_tracebacks_show_the_programs_own_lines(executor: UnsafeExecutor) -> None:
    result = await executor.run(Request("def f():\n    return {}['key']\nf()"))
    assert "line 2, in f\n    return {}['key']" in result.stderr and "unsafe" not in result.stderr


async def test_a_flood_is_stopped(executor: UnsafeExecutor) -> None:
    result = await executor.run(Request("while True: print('x' * 999)", limits=Limits(output_bytes=10_000)))
    assert result.status is S.OUTPUT_LIMIT and result.stdout_cut and len(result.stdout) == 10_000
    value = await executor.run(Request("'x' * 20_000", limits=Limits(output_bytes=10_000)))
    assert (value.status, value.value_cut, len(value.value or "")) == (S.OUTPUT_LIMIT, True, 10_000)


async def test_children_die_with_their_program(executor: UnsafeExecutor) -> None:
    code = "import subprocess\nprint(subprocess.Popen(['sleep', '60']).pid, flush=True)\nwhile True: pass"
    result = await executor.run(Request(code, limits=Limits(wall_s=5)))
    assert result.status is S.TIMEOUT
    await until(lambda: not is_running(int(result.stdout)))


async def test_an_interpreter_that_never_gets_ready_is_an_infrastructure_fault(
    executor: UnsafeExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rstar2.sandbox.subprocess_executor.START_S", 0.0)
    assert (await executor.run(Request("1"))).status is S.INFRASTRUCTURE
    monkeypatch.setattr("rstar2.sandbox.subprocess_executor.START_S", 60.0)
    monkeypatch.setattr("sys.executable", "/bin/false")
    session = await executor.session()
    assert [(await run).status for run in (executor.run(Request("1")), session.run("1"))] == [S.INFRASTRUCTURE] * 2


async def test_cancelling_kills(executor: UnsafeExecutor, tmp_path: Path) -> None:
    code = "open('begun', 'w')\nwhile True: pass"
    run = asyncio.ensure_future(executor.run(Request(code, limits=Limits(wall_s=60, cpu_s=60))))
    await until(lambda: any(tmp_path.rglob("begun")))
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert left_in(tmp_path) == []


async def test_the_queue_has_deadlines_and_an_end() -> None:
    async with UnsafeExecutor(num_slots=1, max_queued=1) as executor:
        first = asyncio.ensure_future(executor.run(Request("while True: pass", limits=Limits(wall_s=60, cpu_s=60))))
        await asyncio.sleep(0)
        second = asyncio.ensure_future(executor.run(Request("1", queue_s=1.0)))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await executor.run(Request("1"))
        assert (await second).status is S.QUEUE_TIMEOUT
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)


async def test_run_many_in_order_of_finish(executor: UnsafeExecutor, tmp_path_factory: pytest.TempPathFactory) -> None:
    told = tmp_path_factory.mktemp("told") / "file"
    waits = f"import os, time\nwhile not os.path.exists({str(told)!r}): time.sleep(0.01)"
    found = []
    async for index, _ in executor.run_many([Request(waits, limits=Limits(wall_s=60)), Request("1")]):
        found.append(index)
        told.touch()
    assert found == [1, 0]


async def test_sessions_survive_crashes_fork_and_roll_back(executor: UnsafeExecutor) -> None:
    session = await executor.session()
    await session.run("import os\na = [1]\nopen('f', 'w').write('here')")
    raised = await session.run("a.append(2)\n1/0")
    assert raised.status is S.ERROR and session.num_cells == 2
    for crash in ("os._exit(1)", "os.kill(os.getpid(), 9)", "while True: pass"):
        a_crash = await session.run(f"a.append(3)\n{crash}", limits=Limits(wall_s=0.5))
        assert not a_crash.ok and session.num_cells == 2
        assert (await session.run("print(open('f').read())\na")).value == "[1, 2]"
        await session.rollback()
    fork = await session.fork()
    await fork.run("a.append(9)")
    assert ((await session.run("a")).value, (await fork.run("a")).value) == ("[1, 2]", "[1, 2, 9]")
    await session.rollback(3)
    assert session.num_cells == 0 and "NameError" in (await session.run("a")).stderr
    with pytest.raises(ValueError, match="num_cells"):
        await session.rollback(5)


async def test_a_file_that_cannot_be_put_again_does_not_keep_the_session_from_being_rebuilt(
    executor: UnsafeExecutor, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The cell before it leaves a folder in its place when it runs again."""
    mark = tmp_path_factory.mktemp("outside") / "mark"
    session = await executor.session()
    await session.run(f"import os\nif os.path.exists({str(mark)!r}): os.mkdir('f')\nopen({str(mark)!r}, 'w').close()")
    await session.put_file("f", b"1")
    await session.run("a = 1")
    await session.run("os._exit(1)")
    assert [(await session.run("a")).value for _ in range(2)] == ["1", "1"] and session.num_cells == 5


async def test_a_cell_that_ends_its_interpreter_when_it_runs_again_is_forgotten(
    executor: UnsafeExecutor, tmp_path_factory: pytest.TempPathFactory
) -> None:
    mark = tmp_path_factory.mktemp("outside") / "mark"
    session = await executor.session()
    await session.run("import os\na = 1")
    await session.run(f"if os.path.exists({str(mark)!r}): os._exit(1)\nopen({str(mark)!r}, 'w').close()\na = 2")
    await session.put_file("f", b"1")
    await session.run("b = 3")
    await session.run("os._exit(1)")
    assert (await session.run("a, b, open('f').read()")).value == "(1, 3, '1')" and session.num_cells == 4


async def test_a_closed_session_starts_nothing(executor: UnsafeExecutor, tmp_path: Path) -> None:
    session = await executor.session()
    running = asyncio.ensure_future(session.run("import time\nopen('begun', 'w')\ntime.sleep(1)\n1"))
    await until(lambda: any(tmp_path.rglob("begun")))
    await session.close()
    assert (await running).value == "1", "the running cell has ended before"
    for use in (session.run("1"), session.put_file("f", b""), session.list_files(), session.fork()):
        with pytest.raises(ValueError, match="closed"):
            await use
    assert left_in(tmp_path) == []
    await session.close()


async def test_closing_the_executor_ends_a_running_cell_as_a_fault_of_the_sandbox(
    executor: UnsafeExecutor, tmp_path: Path
) -> None:
    session, replaying = await executor.session(), await executor.session()
    code = "open('begun', 'w')\nimport time; time.sleep({})"
    await replaying.run(code.format(2))
    await replaying.run("import os; os._exit(1)")
    running = [asyncio.ensure_future(session.run(code.format(60))), asyncio.ensure_future(replaying.run("1"))]
    await until(lambda: len(list(tmp_path.rglob("begun"))) == 2)
    await executor.close()
    assert left_in(tmp_path) == []
    results = [await each for each in running]
    assert [(each.status, each.message) for each in results] == [(S.INFRASTRUCTURE, "the sandbox was closed")] * 2


async def test_the_environment_is_not_inherited(executor: UnsafeExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET", "x")
    assert (await executor.run(Request("import os; os.environ.get('A_SECRET')"))).value is None
    assert os.environ["A_SECRET"] == "x"
