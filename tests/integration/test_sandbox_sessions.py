"""Notebooks: what a cell leaves to the next, what it cannot take away, and that no eviction or crash is noticed."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from process_tree import descendants, is_running, until
from sandbox_service import cold

from rstar2.errors import InfrastructureError
from rstar2.sandbox import Execution, ExecutionStatus, Limits, LocalConfig, LocalExecutor, Session
from rstar2.sandbox.execution import MIB
from rstar2.sandbox.notebooks.live_tree import DamagedError, LiveTree
from rstar2.sandbox.notebooks.local_session import LocalSession
from rstar2.sandbox.slots.slot import MemoryAccount
from rstar2.sandbox.slots.slot_factory import SlotConfig

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]
S = ExecutionStatus


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=[True, False], ids=["fast", "python"])
async def executor(request: pytest.FixtureRequest) -> AsyncIterator[LocalExecutor]:
    async with LocalExecutor(LocalConfig(slots=SlotConfig(fast=request.param))) as executor:
        yield executor


@pytest_asyncio.fixture(loop_scope="module")
async def session(executor: LocalExecutor) -> AsyncIterator[Session]:
    session = await executor.session()
    yield session
    await session.close()


async def run(session: Session, code: str, stdin: str = "", **limits: Any) -> Execution:
    async with asyncio.timeout(240):
        return await session.run(code, stdin, Limits(**limits))


async def value(session: Session, code: str) -> str | None:
    result = await run(session, code)
    assert result.status is S.OK, (result.status, result.stderr, result.message)
    return result.value


# ---- state ----


async def test_state_is_kept(session: Session) -> None:
    assert (await run(session, "import math\nx = 40\ndef f(y):\n    return x + y")).ok
    assert await value(session, "f(2)") == "42"
    assert await value(session, "x = 1\nmath.floor(f(1.5))") == "2"
    assert await value(session, "class A:\n    n = 5\na = A()") is None
    assert await value(session, "a.n += 1\na.n, x") == "(6, 1)"
    assert session.num_cells == 5


async def test_a_cell_shows_its_own_output_alone(session: Session) -> None:
    first = await run(session, "print('one')\nimport sys\nprint('e', file=sys.stderr)\n1")
    second = await run(session, "print('two')")
    assert (first.stdout, first.stderr, first.value) == ("one\n", "e\n", "1")
    assert (second.stdout, second.stderr, second.value) == ("two\n", "", None)


@pytest.mark.parametrize(
    ("cells", "shown"),
    [
        (["5", "_ + 1"], "6"),
        (["import numpy as np", "np.arange(2)"], "array([0, 1])"),
        (["x = 1", ""], None),
        (["from sympy import *", "x = symbols('x')", "solve(x**2 - 4, x)"], "[-2, 2]"),
        (["import pandas as pd", "f = pd.DataFrame({'a': [1, 2]})", "f['a'].sum()"], "np.int64(3)"),
        (["g = iter(range(5))", "next(g)", "next(g)"], "1"),
        (["import asyncio", "async def f():\n    return 3", "asyncio.run(f())"], "3"),
        (["import decimal", "decimal.getcontext().prec = 5", "decimal.Decimal(1) / 3"], "Decimal('0.33333')"),
        (["import os", "os.environ['K'] = 'v'\nos.chdir('/')", "os.environ['K'] + os.getcwd()"], "'v/'"),
        (["from __future__ import annotations", "def f(x: Nowhere): ...", "f.__annotations__"], "{'x': 'Nowhere'}"),
    ],
)
async def test_cells_build_on_each_other(session: Session, cells: list[str], shown: str | None) -> None:
    *before, last = cells
    for cell in before:
        result = await run(session, cell)
        assert result.ok, result.stderr
    assert await value(session, last) == shown


async def test_classes_of_earlier_cells_can_be_pickled_and_pooled(session: Session) -> None:
    await run(session, "import pickle\nclass A:\n    pass\ndef square(n):\n    return n * n")
    assert await value(session, "type(pickle.loads(pickle.dumps(A()))).__name__") == "'A'"
    assert await value(
        session, "from multiprocessing import Pool\nwith Pool(2) as p:\n    r = p.map(square, [1, 2])\nr"
    ) == ("[1, 4]")
    assert (
        await value(session, "from concurrent.futures import ThreadPoolExecutor as T\nlist(T(2).map(square, [3]))")
        == "[9]"
    )


async def test_the_large_state_of_a_cell_is_kept(session: Session) -> None:
    await run(session, "data = list(range(300_000))\nblob = bytes(range(256)) * 40_000")
    assert await value(session, "sum(data), len(blob), blob[-1]") == "(44999850000, 10240000, 255)"


# ---- cells that go wrong ----


async def test_an_error_keeps_what_was_done_before_it(session: Session) -> None:
    await run(session, "x = 1")
    failed = await run(session, "print('out')\nx = 2\nraise ValueError('no')\nx = 3")
    assert (failed.status, failed.exit_code, failed.stdout) == (S.ERROR, 1, "out\n")
    assert failed.stderr.endswith("ValueError: no\n")
    assert await value(session, "x") == "2"
    assert session.num_cells == 3


async def test_a_traceback_names_cells_and_their_lines(session: Session) -> None:
    await run(session, "\ndef divide(n):\n    return 1 / n")
    failed = await run(session, "x = 0\ndivide(x)")
    lines = [line for line in failed.stderr.splitlines() if line.startswith("  ")]
    assert lines[0].startswith('  File "<cell 2>", line 2')
    assert lines[1].strip() == "divide(x)"
    assert any(line.startswith('  File "<cell 1>", line 3, in divide') for line in lines)
    assert "    return 1 / n" in lines


async def test_a_syntax_error_changes_nothing(session: Session) -> None:
    await run(session, "x = 1")
    failed = await run(session, "x = 2\nif")
    assert (failed.status, failed.stderr.splitlines()[-1]) == (S.ERROR, "SyntaxError: invalid syntax")
    assert await value(session, "x") == "1"


@pytest.mark.parametrize(
    ("cell", "status"),
    [
        ("import os; os._exit(3)", S.ERROR),
        ("import os; os.kill(os.getpid(), 9)", S.SIGNAL),
        ("import os; os.abort()", S.SIGNAL),
        ("import ctypes; ctypes.string_at(0)", S.SIGNAL),
        ("while True: pass", S.TIMEOUT),
        ("import time; time.sleep(60)", S.TIMEOUT),
        ("print('y' * 200_000)", S.OUTPUT_LIMIT),
        ("b = []\nwhile True: b.append(bytearray(1 << 20))", S.MEMORY),
        ("import os\nfor fd in range(1000):\n    try: os.close(fd)\n    except OSError: pass\nos._exit(0)", None),
        ("import signal\nfor n in range(1, 32):\n    try: signal.signal(n, signal.SIG_IGN)\n    except OSError: pass\n"
         "while True: pass", S.TIMEOUT),
    ],
    ids=["_exit", "kill", "abort", "segfault", "loop", "sleep", "flood", "memory", "closed", "deaf"],
)  # fmt: skip
async def test_a_cell_that_dies_leaves_the_state_before_it(session: Session, cell: str, status: S | None) -> None:
    await run(session, "x = [1]")
    died = await run(
        session,
        f"x.append(2)\nprint('kept', flush=True)\n{cell}",
        wall_s=1.5 if status is S.TIMEOUT else 30,
        output_bytes=100_000,
        memory_bytes=300 * MIB,
    )
    assert died.status is status if status else not died.ok or died.exit_code == 0
    assert died.stdout.startswith("kept\n")
    assert await value(session, "x") == "[1]"
    assert await value(session, "x.append(3)\nx") == "[1, 3]"


async def test_sys_exit_ends_the_cell_alone(session: Session) -> None:
    await run(session, "x = 1")
    left = await run(session, "import sys\nx = 2\nprint('a')\nsys.exit(3)\nx = 4")
    assert (left.status, left.exit_code, left.stdout) == (S.ERROR, 3, "a\n")
    assert await value(session, "x") == "2"


async def test_a_cell_cannot_break_the_next_by_patching(session: Session) -> None:
    await run(
        session, "import builtins, os, sys\nbuiltins.compile = None\nos.fork = None\nos.write = None\nsys.stdout = None"
    )
    result = await run(session, "x = 1\nx")
    assert result.status in (S.OK, S.ERROR)
    await session.rollback(session.num_cells)
    assert await value(session, "1 + 1") == "2"


# ---- fork and rollback ----


async def test_a_fork_shares_nothing_from_then_on(session: Session) -> None:
    await run(session, "x = [1]")
    fork = await session.fork()
    assert (fork.num_cells, fork.id != session.id) == (1, True)
    await run(session, "x.append('ours')")
    await run(fork, "x.append('theirs')")
    assert await value(session, "x") == "[1, 'ours']"
    assert await value(fork, "x") == "[1, 'theirs']"
    await session.close()
    assert await value(fork, "x") == "[1, 'theirs']"
    await fork.close()


async def test_a_fork_has_files_of_its_own(session: Session) -> None:
    await run(session, "open('f', 'w').write('base')")
    fork = await session.fork()
    await run(session, "open('f', 'a').write(' ours')\nopen('only ours', 'w').write('')")
    assert await value(fork, "import os\nopen('f').read(), os.listdir('.')") == "('base', ['f'])"
    await run(fork, "open('f', 'a').write(' theirs')")
    assert await value(session, "open('f').read()") == "'base ours'"
    assert await value(fork, "open('f').read()") == "'base theirs'"
    await fork.close()


async def test_forks_keep_sharing_the_process_of_their_state(session: LocalSession) -> None:
    """A state that parked with its fork's descriptors open could not be shared: each later fork would repeat the
    cells."""
    await run(session, "x = 1")
    tree = session.tree
    for number in range(20):
        fork = await session.fork()
        assert isinstance(fork, LocalSession) and fork.tree is tree is not None, number
        assert await value(fork, "x + 1") == "2"
        await fork.close()


async def test_a_fork_of_a_fork(session: Session) -> None:
    await run(session, "n = 0")
    forks = [session]
    for _ in range(4):
        forks.append(await forks[-1].fork())
        await run(forks[-1], "n += 1")
    assert [await value(fork, "n") for fork in forks] == ["0", "1", "2", "3", "4"]
    for fork in forks[1:]:
        await fork.close()


async def test_rollback(session: Session) -> None:
    for number in range(4):
        await run(session, f"x = {number}\nopen('f', 'w').write('{number}')")
    await session.rollback()
    assert (session.num_cells, await value(session, "x, open('f').read()")) == (3, "(2, '2')")
    await session.rollback(3)
    assert await value(session, "x, open('f').read()") == "(0, '0')"
    await session.rollback(0)
    assert session.num_cells == 2
    with pytest.raises(ValueError, match="3"):
        await session.rollback(3)
    await session.rollback(2)
    assert session.num_cells == 0
    assert "NameError" in (await run(session, "x")).stderr
    assert await value(session, "import os\nos.listdir('.')") == "[]"


async def test_a_rollback_of_one_fork_is_not_seen_by_the_other(session: Session) -> None:
    await run(session, "x = 1")
    await run(session, "x = 2")
    fork = await session.fork()
    await session.rollback()
    assert await value(fork, "x") == "2"
    assert await value(session, "x") == "1"
    await fork.close()


async def test_a_rollback_of_one_fork_lets_the_cell_of_the_other_run(session: LocalSession) -> None:
    await run(session, "x = 1")
    forks = [await session.fork() for _ in range(2)]
    for fork in forks:
        await run(fork, "y = 2")
    tree = session.tree
    assert tree is not None and len(tree.sessions) == 3
    running = asyncio.create_task(run(session, "import time\ntime.sleep(1)\nx + 1"))
    await until(lambda: tree.waiting is not None)
    for fork in forks:
        await fork.rollback()
    result = await running
    assert (result.status, result.value, result.num_attempts) == (S.OK, "2", 1)
    assert session.tree is tree
    # The root and the two cells of the session; a state that was dropped is reaped with the next.
    await until(lambda: sum(map(is_running, descendants(tree.pid))) == 3)
    for fork in forks:
        await fork.close()


# ---- eviction ----


async def test_evicted_sessions_are_rebuilt_unnoticed() -> None:
    async with cold(max_live_sessions=2) as executor:
        sessions = [await executor.session() for _ in range(5)]
        for turn in range(3):
            for number, session in enumerate(sessions):
                code = "log = []" if turn == 0 else f"log.append({turn})\nopen('f', 'a').write('{number}')"
                assert (await run(session, code)).ok
                assert executor.status()["sessions_live"] <= 2
        for number, session in enumerate(sessions):
            assert await value(session, "log, open('f').read()") == f"([1, 2], '{number}{number}')"
            assert session.num_cells == 4
        for session in sessions:
            await session.close()
        assert (executor.status()["sessions"], executor.status()["sessions_live"]) == (0, 0)


async def test_a_rebuild_goes_through_cells_that_failed() -> None:
    async with cold(max_live_sessions=1) as executor:
        first, second = await executor.session(), await executor.session()
        await run(first, "x = 1")
        await run(first, "x = 2\nraise ValueError")
        await run(first, "import os; os._exit(1)")
        await run(first, "y = input()", "given\n")
        await run(second, "z = 1")
        assert await value(first, "x, y") == "(2, 'given')"


async def test_a_rebuild_ends_though_a_cell_dies_in_it(executor: LocalExecutor) -> None:
    """The cell before it left a thread, so its state cannot be told apart from one that another cell changed."""
    session = await executor.session()
    for _ in range(3):  # so that process ids are lower when the cells are replayed
        last_pid = await value(session, "import os\nos.getpid()")
        await session.rollback(1)
    thread = "import os, threading, time\nthreading.Thread(target=time.sleep, args=(3600,), daemon=True).start()"
    assert (await run(session, thread)).ok
    assert (await run(session, f"if os.getpid() <= {last_pid}:\n    os._exit(3)")).ok
    assert isinstance(session, LocalSession) and session.tree is not None
    session._trees.end(session.tree)
    assert await value(session, "6 * 7") == "42"
    await session.close()


async def test_files_are_not_waited_for_where_no_tree_answers(
    session: LocalSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    await run(session, "x = 1")
    assert session.tree is not None
    session._trees.end(session.tree)

    async def damaged(*_: object) -> None:
        await asyncio.sleep(0)
        raise DamagedError

    monkeypatch.setattr(LiveTree, "run", damaged)
    async with asyncio.timeout(30):
        with pytest.raises(InfrastructureError, match="does not answer"):
            await session.list_files()
    monkeypatch.undo()
    assert await value(session, "x") == "1"


async def test_a_seeded_generator_goes_on_across_cells_and_rebuilds() -> None:
    async with cold(max_live_sessions=1) as executor:
        seed = "import random, numpy\nrandom.seed(11)\nnumpy.random.seed(11)"
        draw = "random.random(), float(numpy.random.rand())"
        plain, evicted, other = [await executor.session() for _ in range(3)]
        seen: list[list[str | None]] = []
        for session, is_disturbed in ((plain, False), (evicted, True)):
            await run(session, seed)
            values = []
            for _ in range(3):
                if is_disturbed:
                    await run(other, "1")
                values.append(await value(session, draw))
            seen.append(values)
        assert seen[0] == seen[1]
        assert len(set(seen[0])) == 3
        whole = await value(other, f"{seed}\n[({draw}) for _ in range(3)]")
        assert whole == f"[{', '.join(str(item) for item in seen[0])}]"


async def test_unseeded_generators_differ_between_sessions_and_cells(executor: LocalExecutor) -> None:
    draw = "import random, numpy\nrandom.random(), float(numpy.random.rand())"
    sessions = [await executor.session() for _ in range(3)]
    values = [await value(session, draw) for session in sessions for _ in range(3)]
    assert len(set(values)) == 9
    for session in sessions:
        await session.close()


# ---- cells and processes ----


async def test_background_processes_end_with_their_cell(session: Session) -> None:
    code = """
import os, time
if os.fork() == 0:
    os.setsid()
    while True:
        with open("beats", "a") as file:
            file.write("x")
        time.sleep(0.002)
while not os.path.exists("beats"):
    time.sleep(0.001)
print("parent")
"""
    result = await run(session, code)
    assert (result.status, result.stdout) == (S.OK, "parent\n")
    num_beats = await value(session, "os.path.getsize('beats')")
    assert await value(session, "time.sleep(0.1)\nos.path.getsize('beats')") == num_beats


async def test_threads_of_a_cell_do_not_go_on_in_the_next(session: Session) -> None:
    code = """
import threading, time
n = 0
def count():
    global n
    while True:
        n += 1
        time.sleep(0.001)
threading.Thread(target=count, daemon=True).start()
while n < 5: time.sleep(0.001)
"""
    assert (await run(session, code)).ok
    first = await value(session, "n")
    await asyncio.sleep(0.1)
    assert await value(session, "n") == first


async def test_stdin_belongs_to_its_cell(session: Session) -> None:
    assert (await run(session, "print(input())", "one\nrest\n")).stdout == "one\n"
    assert (await run(session, "print(input())", "two\n")).stdout == "two\n"
    assert "EOFError" in (await run(session, "input()")).stderr


async def test_limits_belong_to_their_cell(session: Session) -> None:
    assert (await run(session, "import time\ntime.sleep(60)", wall_s=0.3)).status is S.TIMEOUT
    assert (await run(session, "time = __import__('time')\ntime.sleep(0.5)\nprint('y' * 5000)", wall_s=30)).ok
    cut = await run(session, "print('y' * 5000)", output_bytes=1000)
    assert (cut.status, len(cut.stdout), cut.stdout_cut) == (S.OUTPUT_LIMIT, 1000, True)
    assert (await run(session, "x = bytearray(1 << 30)", memory_bytes=64 * MIB)).status is S.MEMORY
    assert (await run(session, "print('y' * 5000)\nx = bytearray(150 << 20)", memory_bytes=400 * MIB)).ok


async def test_no_cell_runs_in_a_tree_that_the_kernel_kills_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cell's end may be known before the kernel kills the tree's other states."""
    monkeypatch.setattr(MemoryAccount, "ends_slot", True)
    async with cold() as executor:
        session = await executor.session()
        assert isinstance(session, LocalSession)
        await run(session, "x = 41")
        tree = session.tree
        with monkeypatch.context() as killed:
            killed.setattr(MemoryAccount, "was_killed", lambda _: True)
            assert (await run(session, "import os; os.kill(os.getpid(), 9)")).status is S.MEMORY
        after = await run(session, "x + 1")
        assert (after.value, after.num_attempts) == ("42", 1)
        assert session.tree is not tree
        await session.close()


async def test_cpu_limit_of_a_cell(session: Session) -> None:
    await run(session, "x = 1")
    result = await run(session, "while True: pass", wall_s=50, cpu_s=1)
    assert result.status is S.TIMEOUT
    assert "CPU" in result.message
    assert await value(session, "x") == "1"


async def test_cpu_time_is_counted_per_cell(session: Session) -> None:
    busy = "import time\nend = time.process_time() + 0.4\nwhile time.process_time() < end: pass"
    costs = [(await run(session, busy, cpu_s=1)).cpu_s for _ in range(4)]
    assert all(0.2 < cost < 0.9 for cost in costs), costs


async def test_process_limit_of_a_cell(session: Session) -> None:
    code = """
import os, time
made = 0
try:
    while made < 500:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        made += 1
except BlockingIOError:
    pass
made
"""
    made = await run(session, code, num_processes=8)
    assert made.ok
    assert 1 <= int(made.value or 0) <= 200
    assert await value(session, "made > 0") == "True"


async def test_numbers_of_a_cell(session: Session) -> None:
    result = await run(session, "import time\ntime.sleep(0.2)")
    assert 0.1 <= result.wall_s < 120, "its clock starts when the fork reports itself, at the latest a moment after"
    assert result.cpu_s < 0.2
    assert result.peak_memory_bytes > 0


async def test_cells_of_one_session_run_one_after_another(session: Session) -> None:
    await run(session, "import time\nlog = []")
    cells = [f"log.append('start {i}')\ntime.sleep(0.02)\nlog.append('end {i}')" for i in range(6)]
    results = await asyncio.gather(*(run(session, cell) for cell in cells))
    assert all(result.ok for result in results)
    log = await value(session, "log")
    assert log == str([f"{word} {i}" for i in range(6) for word in ("start", "end")])


@pytest.mark.timing
async def test_sessions_run_beside_each_other(executor: LocalExecutor) -> None:
    sessions = [await executor.session() for _ in range(6)]
    await asyncio.gather(*(run(session, "import time") for session in sessions))
    began = time.monotonic()
    await asyncio.gather(*(run(session, "time.sleep(2)") for session in sessions))
    assert time.monotonic() - began < 10
    for session in sessions:
        await session.close()


# ---- ends ----


async def test_a_closed_session_refuses(executor: LocalExecutor) -> None:
    session = await executor.session()
    await run(session, "x = 1")
    await session.close()
    for use in (session.run("x"), session.fork(), session.rollback()):
        with pytest.raises(ValueError, match="closed"):
            await use
    await session.close()


async def test_a_cancelled_cell_leaves_the_state_before_it(session: Session) -> None:
    await run(session, "x = 1")
    parked = descendants(slot_pid(session))
    cell = asyncio.create_task(session.run("x = 2\nwhile True: pass", limits=Limits(wall_s=60, cpu_s=60)))
    await until(lambda: bool(descendants(slot_pid(session)) - parked))
    cell.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cell
    assert await value(session, "x") == "1"
    assert session.num_cells == 2


async def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    await until(lambda: not is_running(pid))


def slot_pid(session: Session) -> int:
    assert isinstance(session, LocalSession)
    assert session.tree is not None
    assert session.tree.pid > 0
    return session.tree.pid


async def test_a_cancelled_rebuild_leaves_no_slot() -> None:
    async with cold() as executor:
        session = await executor.session()
        assert isinstance(session, LocalSession)
        assert (await run(session, "x = 41")).ok
        trees = session._trees
        await until(lambda: trees._spare is not None and trees._spare.pid > 0)
        spare = trees._spare
        assert spare is not None and session.tree is not None
        trees.end(session.tree)
        os.kill(spare.pid, signal.SIGSTOP)  # so the rebuild in it does not end before it is cancelled
        try:
            rebuilding = asyncio.create_task(session.run("x + 1"))
            await until(lambda: spare.waiting is not None)
            rebuilding.cancel()
            with pytest.raises(asyncio.CancelledError):
                await rebuilding
        finally:
            os.kill(spare.pid, signal.SIGCONT)
        assert spare not in trees.live
        await until(lambda: not is_running(spare.pid))
        assert await value(session, "x + 1") == "42"


async def test_a_spare_slot_lost_with_the_session_s_own_is_not_the_cell_s_fault() -> None:
    async with cold() as executor:
        session = await executor.session()
        assert isinstance(session, LocalSession)
        await run(session, "x = 41")
        trees = session._trees
        await until(lambda: trees._spare is not None and trees._spare.pid > 0)
        spare, own_pid = trees._spare, slot_pid(session)
        assert spare is not None
        running = asyncio.create_task(session.run("import time; time.sleep(0.5); x + 1"))
        await until(lambda: session.tree is not None and session.tree.waiting is not None)
        os.kill(spare.pid, signal.SIGSTOP)  # it is about to die, and its channel does not tell so yet
        os.kill(own_pid, signal.SIGKILL)
        await until(lambda: session.tree is not None and session.tree.pid not in (0, own_pid))
        await kill(spare.pid)
        execution = await running
        assert (execution.value, execution.num_attempts) == ("42", 2)


@pytest.mark.parametrize("num_kills", [1, 2])
async def test_a_cell_whose_slot_is_killed_is_rerun_once(session: Session, num_kills: int) -> None:
    """A second loss is the cell's own error: a fault of ours on demand would be a way to never be scored."""
    await run(session, "x = 1\nopen('f', 'w').write('kept')")
    cell = asyncio.create_task(run(session, "x = 2\nimport time\ntime.sleep(5)", wall_s=90))
    killed = 0
    for _ in range(num_kills):
        await until(lambda: is_in_a_cell(session, killed))  # noqa: B023
        killed = slot_pid(session)
        os.kill(killed, signal.SIGKILL)
    result = await cell
    if num_kills == 1:
        assert (result.status, session.num_cells, result.num_attempts) == (S.OK, 2, 2)
    else:
        assert (result.status, session.num_cells) == (S.ERROR, 1)
        assert result.message
    assert await value(session, "x, open('f').read()") == f"({2 if num_kills == 1 else 1}, 'kept')"


def is_in_a_cell(session: Session, killed: int) -> bool:
    """A process of its slot, if it is another than the killed one, runs or sleeps and is not parked."""
    assert isinstance(session, LocalSession)
    pid = session.tree.pid if session.tree is not None else 0
    return pid not in (0, killed) and session.num_cells == 1 and len(descendants(pid)) >= 3


async def test_a_slot_killed_between_cells_is_not_noticed(session: Session) -> None:
    await run(session, "x = 1")
    await kill(slot_pid(session))
    assert await value(session, "x") == "1"


async def test_a_session_outlives_the_template() -> None:
    async with cold() as executor:
        session = await executor.session()
        await run(session, "x = 1")
        assert executor._factory is not None
        assert executor._factory.templates.current is not None
        await kill(executor._factory.templates.current.facts["pid"])
        assert await value(session, "x") == "1"
        await kill(slot_pid(session))
        assert await value(session, "x") == "1"


async def test_closing_the_executor_answers_running_cells() -> None:
    executor = cold()
    await executor.start()
    session = await executor.session()
    await run(session, "x = 1")
    parked = descendants(slot_pid(session))
    cell = asyncio.create_task(run(session, "import time\ntime.sleep(60)", wall_s=90))
    await until(lambda: bool(descendants(slot_pid(session)) - parked))
    await executor.close()
    assert (await cell).status is S.INFRASTRUCTURE
