"""What the executor returns for programs of every kind, and what its callers see when it is full or loses a part."""

import asyncio
import json
import os
import signal
import statistics
import sys
import textwrap
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
import pytest_asyncio
from sandbox_leftovers import traces_of
from sandbox_service import cold

from rstar2.records import Fault
from rstar2.sandbox import (
    Execution,
    ExecutionStatus,
    Limits,
    LocalConfig,
    LocalExecutor,
    Overloaded,
    Request,
)
from rstar2.sandbox.execution import MIB
from rstar2.sandbox.isolation.guarantees import detect
from rstar2.sandbox.slots.slot import MemoryAccount
from rstar2.sandbox.slots.slot_factory import SlotConfig

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]
S = ExecutionStatus
FOREVER = "while True: pass"


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=[True, False], ids=["fast", "python"])
async def executor(request: pytest.FixtureRequest) -> AsyncIterator[LocalExecutor]:
    async with LocalExecutor(LocalConfig(slots=SlotConfig(fast=request.param))) as executor:
        yield executor


async def run(executor: LocalExecutor, code: str, stdin: str = "", **limits: Any) -> Execution:
    return await executor.run(Request(textwrap.dedent(code), stdin, Limits(**limits)))


async def until(condition: Any, deadline_s: float = 60.0) -> None:
    async with asyncio.timeout(deadline_s):
        while not condition():  # noqa: ASYNC110 - the condition is about other processes
            await asyncio.sleep(0.01)


# ---- the last expression ----


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("1 + 1", "2"),
        ("x = 1", None),
        ("None", None),
        ("print(1)", None),
        ("", None),
        ("# nothing", None),
        ("'é\\n'", "'é\\n'"),
        ("x = [1,\n 2]\nx[\n1\n]  # the second", "2"),
        ("1\n2", "2"),
        ("1; 2", "2"),
        ("if True:\n    3", None),
        ("def f():\n    return 5\nf()", "5"),
        ("'a' 'b'", "'ab'"),
        ("(1,)", "(1,)"),
        ("lambda: 1\n...", "Ellipsis"),
        ("class A:\n    def __repr__(self):\n        return 'shown'\nA()", "shown"),
        ("from __future__ import annotations\nx: y = 1\nx", "1"),
        ("import numpy\nnumpy.arange(3)", "array([0, 1, 2])"),
        ("import sympy\nsympy.sqrt(8)", "2*sqrt(2)"),
        ("import pandas\npandas.DataFrame({'a': [1]})", "   a\n0  1"),
        ("'\\ud800'", "'\\ud800'"),
        ("_ = 7\n_", "7"),
        ("1;", None),
    ],
)
async def test_the_value_is_what_a_notebook_shows(executor: LocalExecutor, code: str, value: str | None) -> None:
    result = await run(executor, code)
    assert (result.status, result.value) == (S.OK, value)
    assert "value" not in result.stdout
    assert not result.value_cut


async def test_a_value_is_shown_after_what_was_printed(executor: LocalExecutor) -> None:
    result = await run(executor, "print('out')\nprint('more', end='')\n42")
    assert (result.stdout, result.value) == ("out\nmore", "42")


async def test_a_repr_that_fails_is_an_error_of_the_program(executor: LocalExecutor) -> None:
    result = await run(executor, "class A:\n    def __repr__(self):\n        raise ValueError('no')\nprint(1)\nA()")
    assert (result.status, result.stdout, result.value) == (S.ERROR, "1\n", None)
    assert result.stderr.endswith("ValueError: no\n")
    assert 'File "<cell>", line 3, in __repr__' in result.stderr


# ---- errors ----


async def test_a_traceback_has_the_lines_of_the_program_and_no_frame_of_ours(executor: LocalExecutor) -> None:
    result = await run(executor, "\n\ndef f(x):\n    return 1 / x\n\nprint('before')\nf(0)\nprint('after')")
    assert (result.status, result.exit_code, result.stdout) == (S.ERROR, 1, "before\n")
    lines = [line for line in result.stderr.splitlines() if line.startswith("  File")]
    assert lines == ['  File "<cell>", line 7, in <module>', '  File "<cell>", line 4, in f']
    assert "    return 1 / x\n" in result.stderr
    assert result.fault is Fault.POLICY


@pytest.mark.parametrize(
    ("code", "line", "kind"),
    [
        ("x = 1\n1 +", 2, "SyntaxError"),
        ("def f():\nreturn", 2, "IndentationError"),
        ("x = 'a", 1, "SyntaxError"),
        ("a = 1\n\n\nreturn a", 4, "SyntaxError"),
        ("1\n2\nraise KeyError('k')", 3, "KeyError"),
        ("x = 0\n[\n    1,\n    1 / x,\n]", 4, "ZeroDivisionError"),
        ("import json\njson.loads('{')", 2, "json.decoder.JSONDecodeError"),
    ],
)
async def test_errors_name_their_line(executor: LocalExecutor, code: str, line: int, kind: str) -> None:
    result = await run(executor, code)
    assert result.status is S.ERROR
    assert f'File "<cell>", line {line}' in result.stderr
    assert result.stderr.splitlines()[-1].startswith(kind)


@pytest.mark.parametrize("code", ["print(1)\n\0", "# -*- coding: no-such -*-\nprint(1)", "x = '\ud800'\nprint(1)"])
async def test_a_text_that_is_no_source_is_an_error_of_the_program(executor: LocalExecutor, code: str) -> None:
    result = await run(executor, code)
    assert (result.status, result.exit_code, result.stdout) == (S.ERROR, 1, "")
    assert "Error" in result.stderr


async def test_source_lines_are_those_of_this_program(executor: LocalExecutor) -> None:
    """Nothing that ran before it, not even in the template, lends its lines to a traceback that the program prints."""
    await run(executor, "first = 1\n1 / 0  # of the first")
    result = await run(
        executor,
        """
        import traceback
        def fail():
            raise KeyError("second")
        try:
            fail()
        except KeyError:
            traceback.print_exc()
        """,
    )
    assert 'File "<cell>", line 4, in fail' in result.stderr
    assert 'raise KeyError("second")' in result.stderr
    assert "first" not in result.stderr
    assert "ValueError" not in result.stderr


# ---- limits ----


@pytest.mark.parametrize(
    "ending", ["1 / 0", "import sys; sys.exit(3)", "import os; os.abort()", FOREVER, "bytearray(1 << 40)",
               "import time; time.sleep(60)", "print('x' * (1 << 20))", "import os; os.kill(os.getpid(), 9)"],
)  # fmt: skip
async def test_what_was_printed_before_the_end_is_kept(executor: LocalExecutor, ending: str) -> None:
    code = (
        f"import sys\nprint('kept')\nprint('seen', file=sys.stderr)\nprint('unflushed', end='', flush=True)\n{ending}"
    )
    result = await run(executor, code, wall_s=2, output_bytes=100_000)
    assert not result.ok
    assert result.stdout.startswith("kept\nunflushed")
    assert result.stderr.startswith("seen\n")


async def test_wall_limit(executor: LocalExecutor) -> None:
    result = await run(executor, "print('a')\nimport time\ntime.sleep(60)", wall_s=0.4)
    assert (result.status, result.exit_code, result.signal, result.stdout) == (S.TIMEOUT, None, None, "a\n")
    assert 0.4 <= result.wall_s < 120
    assert "0.4 s" in result.message


async def test_cpu_limit(executor: LocalExecutor) -> None:
    result = await run(executor, FOREVER, wall_s=50, cpu_s=1)
    assert (result.status, result.signal) == (S.TIMEOUT, signal.SIGXCPU)
    assert 0.5 <= result.cpu_s < 3
    assert "CPU" in result.message


async def test_sleeping_costs_no_cpu(executor: LocalExecutor) -> None:
    result = await run(executor, "import time\ntime.sleep(1.2)\nprint('awake')", wall_s=30, cpu_s=1)
    assert (result.status, result.stdout) == (S.OK, "awake\n")


@pytest.mark.parametrize(
    "code",
    [
        "b = bytearray(300 << 20)",
        "pieces = []\nwhile True: pieces.append(bytearray(1 << 20))",
        "pieces = []\nwhile True: pieces.append('x' * 1000 + str(len(pieces)))",
        "import numpy\nnumpy.ones(1 << 27)",
        "'x' * (1 << 40)",
    ],
    ids=["one piece", "megabytes", "small pieces", "numpy", "impossible"],
)
async def test_memory_limit(executor: LocalExecutor, code: str) -> None:
    result = await run(executor, f"print('a', flush=True)\n{code}", memory_bytes=128 * MIB)
    assert (result.status, result.stdout) == (S.MEMORY, "a\n")
    assert str(128 * MIB) in result.message


async def test_a_memory_error_that_is_caught_is_no_ending(executor: LocalExecutor) -> None:
    code = "try:\n    bytearray(1 << 40)\nexcept MemoryError:\n    print('caught')"
    result = await run(executor, code, memory_bytes=128 * MIB)
    assert (result.status, result.stdout) == (S.OK, "caught\n")


async def test_nothing_runs_in_a_group_that_the_kernel_kills_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program's end may be known before the kernel kills the slot's own process."""
    monkeypatch.setattr(MemoryAccount, "ends_slot", True)
    async with cold(num_young=1, max_slots=1) as executor:
        assert executor._dispatcher is not None
        (slot,) = executor._dispatcher._slots
        with monkeypatch.context() as killed:
            killed.setattr(MemoryAccount, "was_killed", lambda _: True)
            assert (await run(executor, "import os; os.kill(os.getpid(), 9)")).status is S.MEMORY
        assert slot not in executor._dispatcher._slots
        after = await run(executor, "print(1)")
    assert (after.status, after.num_attempts) == (S.OK, 1)


async def test_memory_within_the_limit_is_to_be_had(executor: LocalExecutor) -> None:
    result = await run(
        executor, "b = bytearray(96 << 20)\nb[::4096] = bytes(len(b) // 4096)\nlen(b)", memory_bytes=128 * MIB
    )
    assert (result.status, result.value) == (S.OK, str(96 * MIB))


@pytest.mark.parametrize(
    ("code", "stream"),
    [
        ("while True: print('y' * 100)", "stdout"),
        ("import sys\nwhile True: print('y' * 100, file=sys.stderr)", "stderr"),
        ("'y' * 100_000", "value"),
        ("import os\nwhile True: os.write(1, b'y' * 65536)", "stdout"),
    ],
)
async def test_output_limit(executor: LocalExecutor, code: str, stream: str) -> None:
    result = await run(executor, code, output_bytes=10_000)
    assert result.status is S.OUTPUT_LIMIT
    assert len(getattr(result, stream)) == 10_000
    assert [name for name in ("stdout", "stderr", "value") if getattr(result, f"{name}_cut")] == [stream]
    assert "10000 bytes" in result.message


@pytest.mark.parametrize("num_bytes", [9_999, 10_000])
async def test_output_up_to_the_limit_is_whole(executor: LocalExecutor, num_bytes: int) -> None:
    result = await run(executor, f"print('y' * {num_bytes - 1})", output_bytes=10_000)
    assert (result.status, len(result.stdout), result.stdout_cut) == (S.OK, num_bytes, False)


async def test_one_byte_over_the_limit_is_cut(executor: LocalExecutor) -> None:
    result = await run(executor, "print('y' * 10_000)", output_bytes=10_000)
    assert (result.status, len(result.stdout), result.stdout_cut) == (S.OUTPUT_LIMIT, 10_000, True)


async def test_file_limit(executor: LocalExecutor) -> None:
    code = """
    with open("big", "wb", buffering=0) as file:
        print(file.write(b"x" * 50_000))
        try:
            print(file.write(b"x" * 100_000), file.write(b"y"))
        except OSError as error:
            print(error.strerror)
    """
    result = await run(executor, code, file_bytes=100_000)
    assert (result.status, result.stdout) == (S.OK, "50000\nFile too large\n")


async def test_process_limit(executor: LocalExecutor) -> None:
    code = """
    import os, time
    made = 0
    try:
        while made < 100:
            if os.fork() == 0:
                time.sleep(60)
                os._exit(0)
            made += 1
    except BlockingIOError:
        print(made)
    """
    result = await run(executor, code, num_processes=8)
    assert result.status is S.OK
    assert 1 <= int(result.stdout) <= 8


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("wall_s", 1e9),
        ("wall_s", float("inf")),
        ("cpu_s", 1e9),
        ("memory_bytes", 4096),
        ("memory_bytes", 1 << 70),
        ("num_processes", 1 << 31),
        ("output_bytes", 1 << 40),
        ("file_bytes", 1 << 63),
    ],
)
async def test_an_absurd_limit_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        Limits(**{name: value})


async def test_a_memory_limit_below_what_the_slot_still_holds_harms_nobody() -> None:
    """What an earlier program left in the slot's caches may be over a small limit already."""
    async with cold(num_young=2, max_slots=2) as executor:
        await asyncio.gather(*(run(executor, "open('f', 'w').write('x' * (8 << 20))") for _ in range(4)))
        async with asyncio.timeout(240):
            results = [await run(executor, "print(1)", memory_bytes=16 * MIB) for _ in range(4)]
            assert {result.status for result in results} <= {S.MEMORY, S.OK}
            assert (await run(executor, "print(1)")).stdout == "1\n"
        assert executor.status()["running"] == 0


@pytest.mark.parametrize("name", ["wall_s", "cpu_s", "memory_bytes", "num_processes", "output_bytes", "file_bytes"])
async def test_limits_must_be_positive(name: str) -> None:
    for value in (0, -1, float("nan")):
        with pytest.raises(ValueError, match=name):
            Limits(**{name: value})


async def test_limits_do_not_outlive_their_execution(executor: LocalExecutor) -> None:
    small = Limits(wall_s=0.3, memory_bytes=64 * MIB, output_bytes=10, num_processes=4, file_bytes=10)
    await asyncio.gather(*(executor.run(Request(FOREVER, limits=small)) for _ in range(8)))
    code = "open('f', 'w').write('x' * 1000)\nb = bytearray(200 << 20)\nprint('y' * 1000)"
    results = await asyncio.gather(*(run(executor, code) for _ in range(16)))
    assert {(result.status, len(result.stdout)) for result in results} == {(S.OK, 1001)}


# ---- stdin ----


async def test_stdin(executor: LocalExecutor) -> None:
    result = await run(executor, "import sys\nprint(input(), sys.stdin.read().split())", "first\n2 3\n4 é")
    assert result.stdout == "first ['2', '3', '4', 'é']\n"


async def test_stdin_at_its_end(executor: LocalExecutor) -> None:
    result = await run(executor, "print(1)\ninput()")
    assert (result.status, result.stdout) == (S.ERROR, "1\n")
    assert result.stderr.endswith("EOFError: EOF when reading a line\n")


async def test_large_stdin_and_stdout_at_once(executor: LocalExecutor) -> None:
    text = "".join(f"{i}\n" for i in range(100_000))
    result = await run(executor, "import sys\nfor line in sys.stdin:\n    sys.stdout.write(line)", text)
    assert result.stdout == text


async def test_code_and_stdin_of_any_text(executor: LocalExecutor) -> None:
    result = await run(
        executor, "s = input()\nprint(s == '\\U0001F600 é \\x00', ascii('\U0001f600'))", "\U0001f600 é \x00\n"
    )
    assert result.stdout == "True '\\U0001f600'\n"


async def test_too_much_code_is_refused_without_harm(executor: LocalExecutor) -> None:
    result = await run(executor, "#" * (9 << 20))
    assert result.status is S.ERROR
    assert "limited" in result.message
    assert (await run(executor, "#" * (7 << 20) + "\nprint(1)")).stdout == "1\n"


# ---- numbers ----


@pytest.mark.timing
async def test_wall_and_cpu_time(executor: LocalExecutor) -> None:
    asleep = await run(executor, "import time\ntime.sleep(0.3)")
    assert 0.3 <= asleep.wall_s < 120
    assert asleep.cpu_s < 0.2
    busy = await run(executor, "import time\nwhile time.process_time() < 0.4: pass")
    assert 0.3 <= busy.cpu_s < 2
    assert busy.wall_s >= 0.9 * busy.cpu_s
    assert busy.queue_s >= 0


async def test_cpu_time_of_children_counts(executor: LocalExecutor) -> None:
    code = """
    import os, time
    if os.fork() == 0:
        while time.process_time() < 0.4: pass
        os._exit(0)
    os.wait()
    """
    assert (await run(executor, code)).cpu_s >= 0.3


async def test_peak_memory(executor: LocalExecutor) -> None:
    small = await run(executor, "print(1)")
    large = await run(executor, "b = bytearray(150 << 20)\nb[::4096] = bytes(len(b) // 4096)\ndel b")
    assert 0 < small.peak_memory_bytes < large.peak_memory_bytes
    assert 140 * MIB < large.peak_memory_bytes < 600 * MIB
    assert (await run(executor, "print(1)")).peak_memory_bytes < large.peak_memory_bytes - 100 * MIB


# ---- endings ----


@pytest.mark.parametrize("code", [0, 1, 2, 3, 113, 117, 120, 128, 251, 255])
@pytest.mark.parametrize("way", ["import sys; sys.exit({})", "import os; os._exit({})"])
async def test_exit_codes(executor: LocalExecutor, way: str, code: int) -> None:
    result = await run(executor, way.format(code))
    assert (result.status, result.exit_code, result.signal) == (S.ERROR if code else S.OK, code, None)


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT", "SIGKILL", "SIGTERM", "SIGBUS", "SIGFPE", "SIGUSR1", "SIGHUP"])
async def test_signals(executor: LocalExecutor, name: str) -> None:
    number = getattr(signal, name)
    result = await run(executor, f"import os\nos.kill(os.getpid(), {int(number)})")
    assert (result.status, result.exit_code, result.signal) == (S.SIGNAL, None, number)
    assert name in result.message


SIGNALLED = """
import os
try:
    os.kill(os.getpid(), 2)
except KeyboardInterrupt:
    print("interrupted")
os.kill(os.getpid(), {})
"""


@pytest.mark.parametrize("fast", [True, False])
async def test_a_host_that_ignores_signals_keeps_that_to_itself(fast: bool) -> None:
    """As under `nohup`, or in the background of a shell."""
    host = f"""
import signal
for number in (signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
import asyncio
from rstar2.sandbox import Limits, LocalConfig, LocalExecutor, Request
from rstar2.sandbox.slots.slot_factory import SlotConfig

async def main():
    executor = LocalExecutor(LocalConfig(SlotConfig(fast={fast}, warm=False)))
    for number in (signal.SIGHUP, signal.SIGUSR1):
        result = await executor.run(Request({SIGNALLED!r}.format(int(number)), "", Limits(), 60))
        print(result.stdout.strip(), signal.Signals(result.signal).name)
    await executor.close()

asyncio.run(main())
"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", host, stdout=asyncio.subprocess.PIPE)
    said, _ = await asyncio.wait_for(process.communicate(), 240)
    assert said.decode().split() == ["interrupted", "SIGHUP", "interrupted", "SIGUSR1"]


async def test_a_real_segmentation_fault(executor: LocalExecutor) -> None:
    result = await run(executor, "import ctypes\nprint('a', flush=True)\nctypes.string_at(0)")
    assert (result.status, result.signal, result.stdout) == (S.SIGNAL, signal.SIGSEGV, "a\n")


async def test_children_that_live_on_do_not_hold_the_result(executor: LocalExecutor) -> None:
    code = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(60)\nprint('done')"
    result = await run(executor, code, wall_s=30)
    assert (result.status, result.stdout) == (S.OK, "done\n")
    assert result.wall_s < 120


# ---- independence ----


@pytest.mark.parametrize(
    ("change", "look"),
    [
        ("x = 1", "'x' in globals()"),
        ("import builtins; builtins.print = None", "print is None"),
        ("open('left.txt', 'w').write('x')", "__import__('os').listdir('.') != []"),
        ("import os; os.mkdir('d'); os.chmod('.', 0o700) if False else None", "__import__('os').path.exists('d')"),
        ("import os; os.environ['X'] = '1'", "'X' in __import__('os').environ"),
        ("import os; os.chdir('/')", "__import__('os').getcwd() == '/'"),
        ("import sys; sys.setrecursionlimit(50000)", "__import__('sys').getrecursionlimit() == 50000"),
        ("import math; math.pi = 3", "__import__('math').pi == 3"),
        ("import sys; sys.path.insert(0, '/x')", "'/x' in __import__('sys').path"),
        ("import json; json.dumps = 1", "__import__('json').dumps == 1"),
        ("import decimal; decimal.getcontext().prec = 3", "__import__('decimal').getcontext().prec == 3"),
        ("import os; os.umask(0)", "__import__('os').umask(0) == 0"),
        ("import signal; signal.signal(10, signal.SIG_IGN)", "__import__('signal').getsignal(10) == 1"),
        ("import os; os.dup2(1, 50)", "import os\ntry:\n    x = bool(os.fstat(50))\nexcept OSError:\n    x = False\nx"),
        ("import resource; resource.setrlimit(7, (20, 20))", "__import__('resource').getrlimit(7)[0] == 20"),
        ("import os; os.nice(5)", "__import__('os').nice(0) >= 5"),
    ],
)
async def test_nothing_of_one_run_is_seen_by_the_next(executor: LocalExecutor, change: str, look: str) -> None:
    results = await asyncio.gather(*(run(executor, change) for _ in range(12)))
    assert {result.status for result in results} == {S.OK}, results[0].stderr
    looks = await asyncio.gather(*(run(executor, look) for _ in range(12)))
    assert {result.value for result in looks} == {"False"}, looks[0].stderr


@pytest.mark.parametrize(
    "draw",
    [
        "import random\nrandom.random()",
        "import random\nrandom.Random().random()",
        "import numpy\nnumpy.random.rand()",
        "import numpy\nnumpy.random.default_rng().random()",
        "from sympy.core.random import rng\nrng.random()",
        "import scipy.stats\nscipy.stats.norm.rvs()",
        "import os\nos.urandom(8)",
        "import secrets\nsecrets.token_hex()",
        "import uuid\nuuid.uuid4()",
        "import tempfile\ntempfile.mktemp()",
    ],
)
async def test_random_numbers_differ_between_runs(executor: LocalExecutor, draw: str) -> None:
    results = await asyncio.gather(*(run(executor, draw) for _ in range(10)))
    values = [result.value for result in results]
    assert len(set(values)) == len(values), values


# ---- the queue ----


async def test_queue_timeout() -> None:
    async with cold(num_young=1, max_slots=1) as executor:
        holder = asyncio.create_task(run(executor, FOREVER, wall_s=60, cpu_s=60))
        await until(lambda: executor.status()["running"] == 1)
        waited = await executor.run(Request("print(1)", queue_s=0.3))
        assert (waited.status, waited.exit_code, waited.stdout) == (S.QUEUE_TIMEOUT, None, "")
        assert waited.status.is_sandbox_fault
        assert waited.fault is Fault.INFRASTRUCTURE
        assert waited.queue_s >= 0.3
        patient = asyncio.create_task(run(executor, "print(2)"))
        await until(lambda: executor.status()["queued"] == 1)
        holder.cancel()
        assert (await patient).stdout == "2\n"


async def test_over_capacity_is_said_at_once() -> None:
    async with cold(num_young=1, max_slots=1, queue_capacity=2) as executor:
        holder = asyncio.create_task(run(executor, FOREVER, wall_s=60, cpu_s=60))
        await until(lambda: executor.status()["running"] == 1)
        waiting = [asyncio.create_task(run(executor, f"print({i})")) for i in range(2)]
        await until(lambda: executor.status()["queued"] == 2)
        with pytest.raises(Overloaded) as refused:
            await run(executor, "print('refused')")
        assert not holder.done()
        assert refused.value.retry_after_s > 0
        holder.cancel()
        assert [(await task).stdout for task in waiting] == ["0\n", "1\n"]


async def test_a_batch_over_capacity_leaves_nothing_behind() -> None:
    async with cold(num_young=2, max_slots=2, queue_capacity=10) as executor:
        with pytest.raises(Overloaded):
            async for _ in executor.run_many([Request("import time\ntime.sleep(20)")] * 50):
                pass
        await until(lambda: executor.status()["running"] == 0)
        assert (await run(executor, "print(1)")).stdout == "1\n"


async def test_cancelling_frees_the_slot() -> None:
    async with cold(num_young=1, max_slots=1) as executor:
        running = asyncio.create_task(run(executor, FOREVER, wall_s=60, cpu_s=60))
        await until(lambda: executor.status()["running"] == 1)
        queued = asyncio.create_task(run(executor, "print('never')"))
        await until(lambda: executor.status()["queued"] == 1)
        queued.cancel()
        running.cancel()
        assert [type(error) for error in await asyncio.gather(running, queued, return_exceptions=True)] == [
            asyncio.CancelledError
        ] * 2
        assert (await run(executor, "print(1)")).stdout == "1\n"
        assert executor.status()["queued"] == 0


async def test_results_stream_back_before_the_slowest_ends() -> None:
    async with cold() as executor:
        slow = Request("import time\ntime.sleep(60)", limits=Limits(wall_s=90))
        found: dict[int, str] = {}
        async with aclosing(executor.run_many([slow, *(Request(f"print({i})") for i in range(1, 40))])) as results:
            async for index, result in results:
                found[index] = result.stdout
                if len(found) == 39:
                    break
        assert found == {index: f"{index}\n" for index in range(1, 40)}


async def test_leaving_a_batch_early_ends_the_rest() -> None:
    async with cold(num_young=2, max_slots=4) as executor:
        requests = [Request("print(0)"), *[Request("import time\ntime.sleep(30)", limits=Limits(wall_s=60))] * 20]
        async with aclosing(executor.run_many(requests)) as results:
            async for index, _ in results:
                assert index == 0
                break
        await until(lambda: executor.status()["running"] == executor.status()["queued"] == 0)
        assert (await run(executor, "print(1)")).stdout == "1\n"


async def test_a_single_call_does_not_wait_for_a_batch() -> None:
    async with cold() as executor:
        num_done = 0

        async def batch() -> None:
            nonlocal num_done
            async for _, result in executor.run_many([Request("print(1)")] * 2000):
                assert result.ok
                num_done += 1

        task = asyncio.create_task(batch())
        await until(lambda: num_done >= 20)
        before = num_done
        assert (await run(executor, "print('single')")).stdout == "single\n"
        assert num_done - before < 200
        await task
        assert num_done == 2000


@pytest.mark.timing
async def test_long_runners_do_not_starve_short_ones() -> None:
    async with cold() as executor:

        async def median_s() -> float:
            times = []
            for _ in range(20):
                began = time.monotonic()
                assert (await run(executor, "print(1)")).ok
                times.append(time.monotonic() - began)
            return statistics.median(times)

        long = Limits(wall_s=30, cpu_s=30)
        crowd = [
            asyncio.create_task(executor.run(Request("import time\ntime.sleep(30)", limits=long))) for _ in range(100)
        ]
        crowd += [asyncio.create_task(executor.run(Request(FOREVER, limits=long))) for _ in range(20)]
        await until(lambda: executor.status()["running"] == 120, 30)
        crowded = await median_s()
        for task in crowd:
            task.cancel()
        await asyncio.gather(*crowd, return_exceptions=True)
        assert crowded < 2, "they had to wait for the long ones"


@pytest.mark.skipif(not detect().is_privileged, reason="needs root, which gives slots uids of their own")
async def test_executors_of_one_process_do_not_share_their_limits() -> None:
    forks = "import os, time\nwhile True:\n    try:\n        if os.fork() == 0: time.sleep(60)\n    except OSError:\n"
    held = f"{forks}        print('full', flush=True)\n        time.sleep(60)"
    limits = Limits(wall_s=60, num_processes=24)
    async with cold(num_young=1, max_slots=1) as first, cold(num_young=1, max_slots=1) as second:
        sessions = [await executor.session() for executor in (first, second)]
        for session in sessions:
            assert (await session.run("1")).ok
        hogs = [asyncio.create_task(first.run(Request(held, limits=limits)))]
        hogs += [asyncio.create_task(sessions[0].run(held, limits=limits))]
        await until(lambda: len(traces_of(os.getpid()).processes) > 40)
        few = Limits(num_processes=8)
        code = "import os\npid = os.fork()\nif pid == 0: os._exit(0)\nprint(os.waitpid(pid, 0)[1])"
        results = [await second.run(Request(code, limits=few)), await sessions[1].run(code, limits=few)]
        for hog in hogs:
            hog.cancel()
        await asyncio.gather(*hogs, return_exceptions=True)
    assert [result.stdout for result in results] == ["0\n", "0\n"], results


# ---- parts that die ----


async def load(executor: LocalExecutor, num_calls: int, **limits: Any) -> list[Execution]:
    """Each sleeps a little, so that there is somebody to hit, and tells its number."""
    async with asyncio.timeout(240):
        code = "import time\ntime.sleep(0.05)\nprint({})"
        return await asyncio.gather(*(run(executor, code.format(i), **limits) for i in range(num_calls)))


def check_answers(results: list[Execution]) -> int:
    """Every answer is the right one or a typed fault of ours; returns the number of faults."""
    faults = 0
    for number, result in enumerate(results):
        if result.status is S.INFRASTRUCTURE:
            assert result.message
            faults += 1
        else:
            assert (result.status, result.stdout) == (S.OK, f"{number}\n")
    return faults


def kill_template(executor: LocalExecutor) -> None:
    assert executor._factory is not None
    template = executor._factory.templates.current
    assert template is not None
    os.kill(template.facts["pid"], signal.SIGKILL)


async def test_killed_slots_are_replaced_and_their_calls_retried() -> None:
    async with cold() as executor:
        assert executor._dispatcher is not None
        calls = asyncio.create_task(load(executor, 100))
        killed: set[int] = set()
        while len(killed) < 10 and not calls.done():
            for slot in executor._dispatcher._slots[:2]:
                if slot.pid and slot.pid not in killed:
                    killed.add(slot.pid)
                    os.kill(slot.pid, signal.SIGKILL)
            await asyncio.sleep(0.03)
        assert killed
        assert check_answers(await calls) < 20
        status = executor.status()
        assert status["slots_lost"] > 0
        assert check_answers(await load(executor, 5)) == 0


async def test_an_idle_slot_that_is_killed_costs_nobody_anything() -> None:
    async with cold(num_young=2, max_slots=2) as executor:
        assert executor._dispatcher is not None
        await load(executor, 4)
        for slot in executor._dispatcher._slots:
            os.kill(slot.pid, signal.SIGKILL)
        results = await load(executor, 4)
        assert check_answers(results) == 0


async def test_a_killed_template_is_replaced() -> None:
    async with cold() as executor:
        calls = asyncio.create_task(load(executor, 100))
        await until(lambda: executor.status()["running"] > 0)
        kill_template(executor)
        assert check_answers(await calls) == 0
        await until(lambda: executor.status()["template_deaths"] == 1)
        assert executor.status()["template_deaths"] == 1
        assert check_answers(await load(executor, 20)) == 0


async def test_template_and_all_slots_killed_at_once() -> None:
    async with cold() as executor:
        calls = asyncio.create_task(load(executor, 60))
        await until(lambda: executor.status()["running"] > 0)
        assert executor._dispatcher is not None
        kill_template(executor)
        for slot in executor._dispatcher._slots:
            if slot.pid:
                os.kill(slot.pid, signal.SIGKILL)
        check_answers(await calls)
        assert check_answers(await load(executor, 20)) == 0


async def test_a_stopped_slot_is_given_up_after_its_grace() -> None:
    async with cold(num_young=2, max_slots=2) as executor:
        await load(executor, 4)
        assert executor._dispatcher is not None
        os.kill(executor._dispatcher._slots[0].pid, signal.SIGSTOP)
        results = await load(executor, 12, wall_s=4)
        assert check_answers(results) == 0
        assert max(result.num_attempts for result in results) == 2
        assert executor.status()["slots_lost"] == 1


# ---- nothing is left ----


async def test_after_close_nothing_is_left() -> None:
    before = traces_of(os.getpid())
    executor = cold()
    await executor.start()
    calls = [asyncio.create_task(run(executor, FOREVER, wall_s=60, cpu_s=60)) for _ in range(12)]
    session = await executor.session()
    await session.run("open('f', 'w').write('x')")
    await until(lambda: executor.status()["running"] == 12)
    traces = traces_of(os.getpid()) - before
    assert len(traces.processes) > 20
    await executor.close()
    assert traces.left_after(20.0) == []
    assert {result.status for result in await asyncio.gather(*calls)} == {S.INFRASTRUCTURE}


HOST = """
import asyncio, json, sys
from rstar2.sandbox import Limits, LocalConfig, LocalExecutor, Request
from rstar2.sandbox.slots.slot_factory import SlotConfig

async def main():
    executor = LocalExecutor(LocalConfig(slots=SlotConfig(warm=False, fast=json.loads(sys.argv[1]))))
    async with executor:
        limits = Limits(wall_s=60, cpu_s=60)
        programs = ["while True: pass", "import time; time.sleep(60)", "open('f', 'w').write('x')", "print(1)"]
        session = await executor.session()
        await session.run("x = 1")
        loops = [asyncio.create_task(keep(executor, Request(program, limits=limits))) for program in programs * 3]
        while executor.status()["running"] < 6:
            await asyncio.sleep(0.01)
        print("under load", flush=True)
        await asyncio.gather(*loops)

async def keep(executor, request):
    while True:
        await executor.run(request)

asyncio.run(main())
"""


@pytest.mark.parametrize("fast", [True, False], ids=["fast", "python"])
async def test_after_kill_9_of_the_host_nothing_is_left(fast: bool) -> None:
    arguments = [sys.executable, "-c", HOST, json.dumps(fast)]
    before = traces_of(os.getpid())  # what others left behind is not this host's
    host = await asyncio.create_subprocess_exec(*arguments, stdout=asyncio.subprocess.PIPE)
    try:
        assert host.stdout is not None
        assert await host.stdout.readline() == b"under load\n"
        traces = traces_of(host.pid) - before
        assert len(traces.processes) > 10
    finally:
        host.kill()
        await host.wait()
    assert await asyncio.to_thread(traces.left_after, 20.0) == []
    assert traces_of(host.pid).groups == frozenset()
