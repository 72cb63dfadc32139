"""Measures the sandbox beside a rival in the same run: shared machines are noisy, ratios are not.

Everything but `in-process` goes over HTTP to a service started for the purpose, as users would run it. Loads and rivals
that take longer, or need more than this machine, are in `benchmarks/sandbox.py`.
"""

import asyncio
import contextlib
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from rstar2.errors import InfrastructureError
from rstar2.sandbox.client import RemoteExecutor
from rstar2.sandbox.execution import Execution, ExecutionStatus
from rstar2.sandbox.executor import Executor, Request
from rstar2.sandbox.local import LocalExecutor, usable_cores
from rstar2.sandbox.slots.template_process import is_fast_path_built

PRINT = "print(1+1)"
NUMPY = "import numpy as np\nprint(np.arange(10).sum())"
SYMPY = "import sympy\nx = sympy.symbols('x')\nprint(sympy.solve(x**2 - 5*x + 6, x))"
EXPECTED = {PRINT: "2\n", NUMPY: "45\n", SYMPY: "[2, 3]\n"}
NOTEBOOK_STATES = {"empty": "x = 1", "100 MB": "import numpy\nx = numpy.ones(100 * 2**17)"}
CELLS = tuple(f"import numpy, sympy\nv{n} = sympy.Integer({n}) ** 2\nprint(v{n})" for n in range(10))


@dataclass(frozen=True, slots=True)
class BenchRow:
    name: str
    value: float
    unit: str
    rival: float | None = None
    rival_name: str = ""
    ratio: float | None = None
    """The sandbox is this many times better than the rival."""
    detail: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BenchReport:
    date: str
    machine: str
    num_cores: int
    fast_path: bool
    rows: list[BenchRow]
    num_failures: int

    @property
    def is_clean(self) -> bool:
        return self.num_failures == 0


@dataclass
class BenchRun:
    """The state that all measurements share: the service, and the count of wrong or missing answers."""

    executor: Executor
    address: str
    service_pid: int
    scale: float
    num_failures: int = 0

    def count(self, base: int) -> int:
        return max(8, int(base * self.scale))

    def check(self, execution: Execution, expected: str) -> None:
        if execution.status is not ExecutionStatus.OK or execution.stdout != expected:
            self.num_failures += 1

    async def rate(self, code: str, base: int) -> float:
        """Programs a second in one batch, after a short one to warm up."""
        count = self.count(base)
        await self._run_all(code, min(64, count))
        return count / await self._run_all(code, count)

    async def _run_all(self, code: str, count: int) -> float:
        started, num_seen = time.perf_counter(), 0
        async for _, execution in self.executor.run_many([Request(code)] * count):
            self.check(execution, EXPECTED[code])
            num_seen += 1
        self.num_failures += count - num_seen
        return time.perf_counter() - started

    @contextlib.asynccontextmanager
    async def in_process(self, executor: LocalExecutor) -> AsyncIterator["BenchRun"]:
        """Measure an executor in this process, without a service, as a trainer uses the sandbox."""
        async with executor:
            await _idle_machine()
            inner = BenchRun(executor, "", 0, self.scale)
            yield inner
            self.num_failures += inner.num_failures


Measurement = Callable[[BenchRun], Awaitable[list[BenchRow]]]


def percentiles_ms(times_s: Iterable[float]) -> tuple[float, float]:
    """The 50th and 99th percentiles."""
    ordered = sorted(times_s)
    return ordered[len(ordered) // 2] * 1000, ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))] * 1000


def versus(name: str, rival_name: str, ours: list[float], theirs: list[float]) -> BenchRow:
    """Compare two rates that were measured alternately, so that other load on the machine affected both."""
    ratio = statistics.median(our / their for our, their in zip(ours, theirs, strict=True))
    return BenchRow(name, statistics.median(ours), "/s", statistics.median(theirs), rival_name, ratio)


def _subprocess_rate(code: str, count: int) -> float:
    """Programs per second of plain `python -c`, one per core at a time."""

    def run_one(_: int) -> None:
        subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)

    with ThreadPoolExecutor(usable_cores()) as pool:
        list(pool.map(run_one, range(usable_cores())))
        started = time.perf_counter()
        list(pool.map(run_one, range(count)))
        return count / (time.perf_counter() - started)


async def _measure_batch(bench: BenchRun, name: str, code: str, num_ours: int, num_theirs: int) -> list[BenchRow]:
    ours, theirs = [], []
    for _ in range(3):
        ours.append(await bench.rate(code, num_ours))
        theirs.append(await asyncio.to_thread(_subprocess_rate, code, bench.count(num_theirs)))
    return [versus(name, "python -c", ours, theirs)]


async def _measure_in_process(bench: BenchRun) -> list[BenchRow]:
    async with bench.in_process(LocalExecutor()) as inner:
        return await _measure_batch(inner, "print, batch, in process", PRINT, 4000, 150)


async def _measure_latency(bench: BenchRun) -> list[BenchRow]:
    """Time one call after another, on a keep-alive connection."""
    times_s = []
    for number in range(bench.count(600)):
        started = time.perf_counter()
        bench.check(await bench.executor.run(Request(PRINT)), EXPECTED[PRINT])
        if number >= 20 or bench.scale < 1:
            times_s.append(time.perf_counter() - started)
    p50, p99 = percentiles_ms(times_s)
    started = time.perf_counter()
    await asyncio.to_thread(subprocess.run, [sys.executable, "-c", PRINT], capture_output=True, check=True)
    theirs = (time.perf_counter() - started) * 1000
    return [BenchRow("print, one at a time, p50", p50, "ms", theirs, "python -c", theirs / p50, {"p99_ms": p99})]


async def _measure_session(bench: BenchRun) -> list[BenchRow]:
    """Compare ten cells in one session with replaying all cells so far in a new interpreter for each cell."""
    times_s = []
    for _ in range(max(3, bench.count(10))):
        session = await bench.executor.session()
        started = time.perf_counter()
        for number, cell in enumerate(CELLS):
            bench.check(await session.run(cell), f"{number * number}\n")
        times_s.append(time.perf_counter() - started)
        await session.close()
    ours = statistics.median(times_s)
    started = time.perf_counter()
    for number in range(1, len(CELLS) + 1):
        command = [sys.executable, "-c", "\n".join(CELLS[:number])]
        await asyncio.to_thread(subprocess.run, command, capture_output=True, check=True)
    theirs = time.perf_counter() - started
    return [BenchRow("session of 10 cells", ours * 1000, "ms", theirs * 1000, "replay in python -c", theirs / ours)]


async def _measure_notebook(bench: BenchRun) -> list[BenchRow]:
    """Time cells, forks and rollbacks of one in-process notebook, with small and with large state."""
    rows = []
    async with LocalExecutor() as executor:
        for size, state in NOTEBOOK_STATES.items():
            times_s: dict[str, list[float]] = {"cell": [], "fork": [], "rollback": []}
            notebook = await executor.session()
            bench.num_failures += not (await notebook.run(state)).ok
            for _ in range(bench.count(200)):
                started = time.perf_counter()
                bench.num_failures += not (await notebook.run("y = 1")).ok
                ran = time.perf_counter()
                branch = await notebook.fork()
                forked = time.perf_counter()
                await branch.close()
                closed = time.perf_counter()
                await notebook.rollback(1)
                times_s["cell"].append(ran - started)
                times_s["fork"].append(forked - ran)
                times_s["rollback"].append(time.perf_counter() - closed)
            await notebook.close()
            for name, taken_s in times_s.items():
                p50, p99 = percentiles_ms(taken_s)
                rows.append(BenchRow(f"notebook, {size}: {name}, p50", p50, "ms", detail={"p99_ms": p99}))
    return rows


MEASUREMENTS: dict[str, Measurement] = {
    "print": partial(_measure_batch, name="print, batch", code=PRINT, num_ours=4000, num_theirs=150),
    "in-process": _measure_in_process,
    "numpy": partial(_measure_batch, name="numpy, batch", code=NUMPY, num_ours=2000, num_theirs=40),
    "sympy": partial(_measure_batch, name="sympy, batch", code=SYMPY, num_ours=600, num_theirs=16),
    "latency": _measure_latency,
    "session": _measure_session,
    "notebook": _measure_notebook,
}


async def measure(chosen: Mapping[str, Measurement], *, quick: bool, say: Callable[[str], None]) -> BenchReport:
    rows: list[BenchRow] = []
    async with _service() as (address, pid), RemoteExecutor(address) as executor:
        bench = BenchRun(executor, address, pid, 0.05 if quick else 1.0)
        for name, run in chosen.items():
            say(f"measuring {name} ...")
            rows += await run(bench)
    return BenchReport(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=f"{platform.system()} {platform.release()} {platform.machine()}, Python {platform.python_version()}",
        num_cores=usable_cores(),
        fast_path=is_fast_path_built(),
        rows=rows,
        num_failures=bench.num_failures,
    )


async def _idle_machine(deadline_s: float = 15.0) -> None:
    """Wait until the cores are idle: an executor that has just started makes a spare template in the background."""
    deadline = time.monotonic() + deadline_s
    idle_share = 0.0
    while idle_share < 0.9 and time.monotonic() < deadline:
        idle, total = _cpu_times()
        await asyncio.sleep(0.3)
        idle_now, total_now = _cpu_times()
        idle_share = (idle_now - idle) / max(total_now - total, 1)


def _cpu_times() -> tuple[int, int]:
    """Of all cores since boot: idle and in total."""
    times = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return times[3], sum(times)


@contextlib.asynccontextmanager
async def _service() -> AsyncIterator[tuple[str, int]]:
    """Start `rstar2 sandbox serve` on a free port; yields its address and process id."""
    command = [sys.executable, "-m", "rstar2", "sandbox", "serve", "--port", "0"]
    environment = {name: value for name, value in os.environ.items() if name != "RSTAR2_SANDBOX_TOKEN"}
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE, env=environment)
    assert process.stderr is not None
    said = [""]
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(120):
                while line := (await process.stderr.readline()).decode():
                    said.append(line)
                    if line.startswith("serving on "):
                        break
        if not said[-1].startswith("serving on "):
            raise InfrastructureError(f"the service did not start: {''.join(said).strip()}")
        await _idle_machine()
        yield said[-1].split()[2], process.pid
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


def print_table(report: BenchReport) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(
        title=f"rstar2 sandbox bench, {report.date}, {report.machine}, {report.num_cores} cores", title_justify="left"
    )
    for heading in ("measurement", "here", "beside it", "times better", "more"):
        table.add_column(heading, justify="left" if heading in ("measurement", "more", "beside it") else "right")
    for row in report.rows:
        rival = f"{row.rival:,.1f} {row.unit} ({row.rival_name})" if row.rival is not None else ""
        more = ", ".join(f"{name} {value:,.2f}" for name, value in row.detail.items())
        ratio = f"{row.ratio:.2f}" if row.ratio is not None else ""
        table.add_row(
            row.name,
            f"{row.value:,.2f} {row.unit}" if row.unit == "ms" else f"{row.value:,.1f} {row.unit}",
            rival,
            ratio,
            more,
        )
    Console().print(table)
    Console().print(
        "every answer was right" if report.is_clean else f"[bold]{report.num_failures} answers were wrong or missing[/]"
    )
