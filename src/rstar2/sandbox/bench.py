"""Measurements of the sandbox, each beside its rival in the same run: shared machines are noisy, ratios are not.

Everything goes over HTTP to a service started for the purpose, as users would run it, except the cost of isolation,
which compares two in-process executors.
"""

import asyncio
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import aiohttp

from rstar2.errors import InfrastructureError, UserError
from rstar2.sandbox.client import RemoteExecutor
from rstar2.sandbox.execution import Execution, ExecutionStatus, Limits
from rstar2.sandbox.executor import Executor, Request
from rstar2.sandbox.http.tokens import find_token
from rstar2.sandbox.local import LocalConfig, LocalExecutor, usable_cores
from rstar2.sandbox.slots.host import HostConfig
from rstar2.sandbox.slots.template import is_fast_path_built

PRINT = "print(1+1)"
NUMPY = "import numpy as np\nprint(np.arange(10).sum())"
SYMPY = "import sympy\nx = sympy.symbols('x')\nprint(sympy.solve(x**2 - 5*x + 6, x))"
EXPECTED = {PRINT: "2\n", NUMPY: "45\n", SYMPY: "[2, 3]\n"}
CELLS = tuple(
    f"import numpy, sympy\nv{number} = sympy.Integer({number}) ** 2\nprint(v{number})" for number in range(10)
)
NUM_IN_FLIGHT = 45_000


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    value: float
    unit: str
    rival: float | None = None
    rival_name: str = ""
    ratio: float | None = None
    """How many times better than the rival."""
    detail: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Report:
    date: str
    machine: str
    num_cores: int
    fast_path: bool
    rows: list[Row]
    num_failures: int

    @property
    def is_clean(self) -> bool:
        return self.num_failures == 0


@dataclass
class _Bench:
    """What the measurements share: the service, and a count of answers that were not what they had to be."""

    executor: Executor
    address: str
    service_pid: int
    scale: float
    code_judge: str | None
    num_failures: int = 0

    def count(self, base: int) -> int:
        return max(8, int(base * self.scale))

    def check(self, execution: Execution, expected: str) -> None:
        if execution.status is not ExecutionStatus.OK or execution.stdout != expected:
            self.num_failures += 1


async def _batch_rate(bench: _Bench, code: str, count: int) -> float:
    await _run_all(bench, code, min(64, count))
    return count / await _run_all(bench, code, count)


async def _run_all(bench: _Bench, code: str, count: int) -> float:
    started = time.perf_counter()
    num_seen = 0
    async for _, execution in bench.executor.run_many([Request(code)] * count):
        bench.check(execution, EXPECTED[code])
        num_seen += 1
    bench.num_failures += count - num_seen
    return time.perf_counter() - started


def _subprocess_rate(code: str, count: int) -> float:
    """Plain `python -c`, as many at once as there are cores."""

    def run_one(_: int) -> None:
        subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)

    with ThreadPoolExecutor(usable_cores()) as pool:
        list(pool.map(run_one, range(usable_cores())))
        started = time.perf_counter()
        list(pool.map(run_one, range(count)))
        return count / (time.perf_counter() - started)


async def _against_subprocess(bench: _Bench, name: str, code: str, num_ours: int, num_theirs: int) -> Row:
    """Ours, theirs, ours, theirs: whatever the machine's neighbours do, they do it to both."""
    ours, theirs = [], []
    for _ in range(3):
        ours.append(await _batch_rate(bench, code, bench.count(num_ours)))
        theirs.append(await asyncio.to_thread(_subprocess_rate, code, bench.count(num_theirs)))
    ratio = statistics.median(our / their for our, their in zip(ours, theirs, strict=True))
    return Row(name, statistics.median(ours), "/s", statistics.median(theirs), "python -c", ratio)


async def measure_print(bench: _Bench) -> list[Row]:
    return [await _against_subprocess(bench, "print, batch", PRINT, 4000, 150)]


async def measure_in_process(bench: _Bench) -> list[Row]:
    """The same without a service, as a trainer that has the sandbox in its own process would run it."""
    async with LocalExecutor() as executor:
        inner = _Bench(executor, "", 0, bench.scale, None)
        row = await _against_subprocess(inner, "print, batch, in process", PRINT, 4000, 150)
        bench.num_failures += inner.num_failures
    return [row]


async def measure_numpy(bench: _Bench) -> list[Row]:
    return [await _against_subprocess(bench, "numpy, batch", NUMPY, 2000, 40)]


async def measure_sympy(bench: _Bench) -> list[Row]:
    return [await _against_subprocess(bench, "sympy, batch", SYMPY, 600, 16)]


async def measure_latency(bench: _Bench) -> list[Row]:
    """One call at a time, each on a kept connection."""
    times_s = []
    for number in range(bench.count(600)):
        started = time.perf_counter()
        bench.check(await bench.executor.run(Request(PRINT)), EXPECTED[PRINT])
        if number >= 20 or bench.scale < 1:
            times_s.append(time.perf_counter() - started)
    p50, p99 = _percentiles_ms(times_s)
    started = time.perf_counter()
    await asyncio.to_thread(subprocess.run, [sys.executable, "-c", PRINT], capture_output=True, check=True)
    theirs = (time.perf_counter() - started) * 1000
    return [Row("print, one at a time, p50", p50, "ms", theirs, "python -c", theirs / p50, {"p99_ms": p99})]


def _percentiles_ms(times_s: list[float]) -> tuple[float, float]:
    ordered = sorted(times_s)
    return ordered[len(ordered) // 2] * 1000, ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))] * 1000


async def measure_512_singles(bench: _Bench) -> list[Row]:
    """512 requests, each on a connection of its own, all at once."""
    body = {"code": PRINT}
    connector = aiohttp.TCPConnector(limit=0)

    async def one(session: aiohttp.ClientSession) -> float:
        started = time.perf_counter()
        async with session.post(f"{bench.address}/v1/run", json=body) as response:
            answer = await response.json()
            if response.status != 200 or answer.get("stdout") != EXPECTED[PRINT]:
                bench.num_failures += 1
        return time.perf_counter() - started

    headers = {"Authorization": f"Bearer {find_token(bench.address)}"}
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
        times_s = await asyncio.gather(*(one(session) for _ in range(512)))
    p50, p99 = _percentiles_ms(list(times_s))
    return [Row("512 single requests at once, p99", p99, "ms", detail={"p50_ms": p50})]


async def measure_45000_in_flight(bench: _Bench) -> list[Row]:
    """All of them accepted before the first is answered: programs that say who they are, none lost, none twice."""
    count = NUM_IN_FLIGHT if bench.scale >= 1 else bench.count(NUM_IN_FLIGHT)
    steady_rate = await _batch_rate(bench, PRINT, bench.count(4000))
    seen = [0] * count
    started = time.perf_counter()
    peak_bytes = 0

    async def watch_memory() -> None:
        nonlocal peak_bytes
        while True:
            peak_bytes = max(peak_bytes, _memory_of_tree(bench.service_pid))
            await asyncio.sleep(0.5)

    watcher = asyncio.create_task(watch_memory())
    requests = [Request(f"print({number})", queue_s=600.0) for number in range(count)]
    async for index, execution in bench.executor.run_many(requests):
        seen[index] += 1
        bench.check(execution, f"{index}\n")
    watcher.cancel()
    elapsed_s = time.perf_counter() - started
    bench.num_failures += sum(times != 1 for times in seen)
    expected_s = count / steady_rate
    detail = {
        "steady_per_s": steady_rate,
        "service_peak_mib": peak_bytes / 2**20,
        "over_steady": elapsed_s / expected_s,
    }
    return [Row(f"{count} in flight", elapsed_s, "s", expected_s, "steady rate", expected_s / elapsed_s, detail)]


def _memory_of_tree(root_pid: int) -> int:
    """Proportional memory of a process and its descendants: shared pages count once."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    total, waiting = 0, [root_pid]
    while waiting:
        pid = waiting.pop()
        waiting += children.get(pid, [])
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        total += next((int(line.split()[1]) << 10 for line in rollup.splitlines() if line.startswith("Pss:")), 0)
    return total


async def measure_session(bench: _Bench) -> list[Row]:
    """Ten cells on kept state, against what one does without state: run all cells so far in a new interpreter."""
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
    return [Row("session of 10 cells", ours * 1000, "ms", theirs * 1000, "replay in python -c", theirs / ours)]


async def measure_mixed(bench: _Bench) -> list[Row]:
    """What a training step sends: mostly short programs, among sleepers, endless loops, floods and errors."""
    kinds = [
        *[(PRINT, EXPECTED[PRINT])] * 55,
        *[(NUMPY, EXPECTED[NUMPY])] * 20,
        *[(SYMPY, EXPECTED[SYMPY])] * 13,
        *[("1/0", None)] * 6,
        *[("import time; time.sleep(0.5)", None)] * 2,
        *[("while True: pass", None)] * 2,
        *[("while True: print('x' * 1000)", None)] * 2,
    ]
    count = bench.count(1000)
    limits = Limits(wall_s=2.0)
    short_s: list[float] = []
    work = [kinds[number * 37 % len(kinds)] for number in range(count)]
    gate = asyncio.Semaphore(64)

    async def one(code: str, expected: str | None) -> None:
        async with gate:
            started = time.perf_counter()
            execution = await bench.executor.run(Request(code, limits=limits))
            if code == PRINT:
                short_s.append(time.perf_counter() - started)
        if expected is not None:
            bench.check(execution, expected)
        elif execution.status.is_ours:
            bench.num_failures += 1

    started = time.perf_counter()
    await asyncio.gather(*(one(*item) for item in work))
    rate = count / (time.perf_counter() - started)
    p50, p99 = _percentiles_ms(short_s)
    return [Row("mixed load, 64 at once", rate, "/s", detail={"print_p50_ms": p50, "print_p99_ms": p99})]


async def measure_isolation(bench: _Bench) -> list[Row]:
    """Two in-process executors, with and without isolation, turn about."""
    async with LocalExecutor() as on, LocalExecutor(LocalConfig(host=HostConfig(isolate=False))) as off:
        rates: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(5):
            for is_on, executor in ((True, on), (False, off)):
                inner = _Bench(executor, "", 0, bench.scale, None)
                rates[is_on].append(await _batch_rate(inner, PRINT, bench.count(2000)))
                bench.num_failures += inner.num_failures
    ours, theirs = statistics.median(rates[True]), statistics.median(rates[False])
    return [Row("print, isolated, in process", ours, "/s", theirs, "isolation off", ours / theirs)]


async def measure_code_judge(bench: _Bench) -> list[Row]:
    if bench.code_judge is None:
        return []
    rows = []
    timeout = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        for name, code, num_ours, num_theirs in (("print", PRINT, 3000, 128), ("sympy", SYMPY, 400, 24)):
            ours, theirs = [], []
            for _ in range(3):
                ours.append(await _batch_rate(bench, code, bench.count(num_ours)))
                count = bench.count(num_theirs)
                body = {"type": "batch", "submissions": [{"type": "python", "solution": code}] * count}
                started = time.perf_counter()
                async with session.post(f"{bench.code_judge}/run/long-batch", json=body) as response:
                    answer = await response.json()
                if response.status != 200 or not all(item["success"] for item in answer["results"]):
                    raise InfrastructureError(f"code-judge at {bench.code_judge} did not run the {name} batch")
                theirs.append(count / (time.perf_counter() - started))
            ratio = statistics.median(our / their for our, their in zip(ours, theirs, strict=True))
            rows.append(
                Row(f"{name}, batch", statistics.median(ours), "/s", statistics.median(theirs), "code-judge", ratio)
            )
    return rows


_MEASUREMENTS: dict[str, Callable[[_Bench], Awaitable[list[Row]]]] = {
    "print": measure_print,
    "in-process": measure_in_process,
    "numpy": measure_numpy,
    "sympy": measure_sympy,
    "latency": measure_latency,
    "singles": measure_512_singles,
    "session": measure_session,
    "mixed": measure_mixed,
    "in-flight": measure_45000_in_flight,
    "isolation": measure_isolation,
    "code-judge": measure_code_judge,
}
NAMES = tuple(_MEASUREMENTS)


def choose(only: str | None) -> tuple[str, ...]:
    if only is None:
        return NAMES
    names = tuple(name.strip() for name in only.split(","))
    for name in names:
        if name not in _MEASUREMENTS:
            raise UserError(f"--only {name}: there is no such measurement; there are {', '.join(NAMES)}")
    return names


async def measure(names: tuple[str, ...], *, quick: bool, code_judge: str | None, say: Callable[[str], None]) -> Report:
    rows: list[Row] = []
    service = await _Service.start()
    try:
        async with RemoteExecutor(service.address) as executor:
            bench = _Bench(executor, service.address, service.pid, 0.05 if quick else 1.0, code_judge)
            for name in names:
                say(f"measuring {name} ...")
                rows += await _MEASUREMENTS[name](bench)
    finally:
        await service.stop()
    return Report(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=f"{platform.system()} {platform.release()} {platform.machine()}, Python {platform.python_version()}",
        num_cores=usable_cores(),
        fast_path=is_fast_path_built(),
        rows=rows,
        num_failures=bench.num_failures,
    )


@dataclass
class _Service:
    """`rstar2 sandbox serve` on a free port, in a process of its own."""

    process: asyncio.subprocess.Process
    address: str

    @property
    def pid(self) -> int:
        return self.process.pid

    @classmethod
    async def start(cls) -> "_Service":
        command = [sys.executable, "-m", "rstar2.cli.main", "sandbox", "serve", "--port", "0"]
        environment = {name: value for name, value in os.environ.items() if name != "RSTAR2_SANDBOX_TOKEN"}
        process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE, env=environment)
        assert process.stderr is not None
        said = []
        try:
            async with asyncio.timeout(120):
                while line := (await process.stderr.readline()).decode():
                    said.append(line)
                    if line.startswith("serving on "):
                        return cls(process, line.split()[2])
        except TimeoutError:
            process.kill()
        raise InfrastructureError(f"the service did not start: {''.join(said).strip()}")

    async def stop(self) -> None:
        self.process.terminate()
        await self.process.wait()


def print_table(report: Report) -> None:
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
        table.add_row(row.name, f"{row.value:,.1f} {row.unit}", rival, ratio, more)
    Console().print(table)
    Console().print(
        "every answer was right" if report.is_clean else f"[bold]{report.num_failures} answers were wrong or missing[/]"
    )
