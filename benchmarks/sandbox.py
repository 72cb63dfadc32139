"""The sandbox under heavy loads, the cost of its isolation, and code-judge beside it.

    python benchmarks/sandbox.py [--only in-flight,mixed] [--code-judge http://HOST:PORT] [--quick] [--json]

Throughput and latency on this machine are what `rstar2 sandbox bench` measures. Exit code 3 if an answer was wrong.
"""

import argparse
import asyncio
import json
import statistics
import sys
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path

import aiohttp

from rstar2.errors import InfrastructureError
from rstar2.sandbox import Limits, LocalConfig, LocalExecutor, Request
from rstar2.sandbox.bench import (
    EXPECTED,
    NUMPY,
    PRINT,
    SYMPY,
    BenchRow,
    BenchRun,
    Measurement,
    measure,
    percentiles_ms,
    print_table,
    versus,
)
from rstar2.sandbox.http.access import find_token
from rstar2.sandbox.slots.slot_factory import SlotConfig

NUM_IN_FLIGHT = 45_000


async def measure_512_singles(bench: BenchRun) -> list[BenchRow]:
    """512 requests, each on a separate connection, all at once."""
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
        p50, p99 = percentiles_ms(await asyncio.gather(*(one(session) for _ in range(512))))
    return [BenchRow("512 single requests at once, p99", p99, "ms", detail={"p50_ms": p50})]


async def measure_mixed(bench: BenchRun) -> list[BenchRow]:
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
    count, limits, gate = bench.count(1000), Limits(wall_s=2.0), asyncio.Semaphore(64)
    short_s: list[float] = []

    async def one(code: str, expected: str | None) -> None:
        async with gate:
            started = time.perf_counter()
            execution = await bench.executor.run(Request(code, limits=limits))
            if code == PRINT:
                short_s.append(time.perf_counter() - started)
        if expected is not None:
            bench.check(execution, expected)
        elif execution.status.is_sandbox_fault:
            bench.num_failures += 1

    started = time.perf_counter()
    await asyncio.gather(*(one(*kinds[number * 37 % len(kinds)]) for number in range(count)))
    rate = count / (time.perf_counter() - started)
    p50, p99 = percentiles_ms(short_s)
    return [BenchRow("mixed load, 64 at once", rate, "/s", detail={"print_p50_ms": p50, "print_p99_ms": p99})]


async def measure_45000_in_flight(bench: BenchRun) -> list[BenchRow]:
    """All of them accepted before the first is answered: each prints its own number, none is lost, none runs twice."""
    count = bench.count(NUM_IN_FLIGHT)
    steady_rate = await bench.rate(PRINT, 4000)
    seen = [0] * count
    started = time.perf_counter()
    peak_bytes = 0

    async def watch_memory() -> None:
        nonlocal peak_bytes
        while True:
            peak_bytes = max(peak_bytes, memory_of_tree(bench.service_pid))
            await asyncio.sleep(0.5)

    watcher = asyncio.create_task(watch_memory())
    requests = [Request(f"print({number})", queue_s=600.0) for number in range(count)]
    async for index, execution in bench.executor.run_many(requests):
        seen[index] += 1
        bench.check(execution, f"{index}\n")
    watcher.cancel()
    elapsed_s, expected_s = time.perf_counter() - started, count / steady_rate
    bench.num_failures += sum(times != 1 for times in seen)
    detail = {
        "steady_per_s": steady_rate,
        "service_peak_mib": peak_bytes / 2**20,
        "over_steady": elapsed_s / expected_s,
    }
    return [BenchRow(f"{count} in flight", elapsed_s, "s", expected_s, "steady rate", expected_s / elapsed_s, detail)]


def memory_of_tree(root_pid: int) -> int:
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


async def measure_isolation(bench: BenchRun) -> list[BenchRow]:
    """Two in-process executors, with and without isolation, alternately."""
    on_rates, off_rates = [], []
    bare = LocalExecutor(LocalConfig(slots=SlotConfig(isolate=False)))
    async with bench.in_process(LocalExecutor()) as on, bench.in_process(bare) as off:
        for _ in range(5):
            on_rates.append(await on.rate(PRINT, 2000))
            off_rates.append(await off.rate(PRINT, 2000))
    ours, theirs = statistics.median(on_rates), statistics.median(off_rates)
    return [BenchRow("print, isolated, in process", ours, "/s", theirs, "isolation off", ours / theirs)]


async def measure_code_judge(bench: BenchRun, address: str) -> list[BenchRow]:
    rows = []
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600)) as session:
        for name, code, num_ours, num_theirs in (("print", PRINT, 3000, 128), ("sympy", SYMPY, 400, 24)):
            ours, theirs = [], []
            for _ in range(3):
                ours.append(await bench.rate(code, num_ours))
                count = bench.count(num_theirs)
                body = {"type": "batch", "submissions": [{"type": "python", "solution": code}] * count}
                started = time.perf_counter()
                async with session.post(f"{address}/run/long-batch", json=body) as response:
                    answer = await response.json()
                if response.status != 200 or not all(item["success"] for item in answer["results"]):
                    raise InfrastructureError(f"code-judge at {address} did not run the {name} batch")
                theirs.append(count / (time.perf_counter() - started))
            rows.append(versus(f"{name}, batch", "code-judge", ours, theirs))
    return rows


def main() -> None:
    measurements: dict[str, Measurement] = {
        "singles": measure_512_singles,
        "mixed": measure_mixed,
        "in-flight": measure_45000_in_flight,
        "isolation": measure_isolation,
    }
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help=f"comma-separated: {', '.join(measurements)}, code-judge")
    parser.add_argument("--code-judge", help="the address of a running code-judge to compare with")
    parser.add_argument("--quick", action="store_true", help="a few seconds; the numbers are rough")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.code_judge:
        measurements["code-judge"] = partial(measure_code_judge, address=options.code_judge)
    names = options.only.split(",") if options.only else list(measurements)
    if unknown := set(names) - set(measurements):
        parser.error(f"--only: there is no {', '.join(unknown)}; there are {', '.join(measurements)}")
    chosen = {name: measurements[name] for name in names}
    report = asyncio.run(measure(chosen, quick=options.quick, say=lambda text: print(text, file=sys.stderr)))
    if options.json:
        print(json.dumps(asdict(report), indent=2))
    else:
        print_table(report)
    sys.exit(0 if report.is_clean else 3)


if __name__ == "__main__":
    main()
