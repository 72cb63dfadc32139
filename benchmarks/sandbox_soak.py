"""A soak: hundreds of thousands of executions, and whether memory, descriptors, processes and latency stay flat.

    python benchmarks/sandbox_soak.py --count 200000

Most programs are clean; some write files, raise, flood, hang or die, as in training. Exit code 1 if anything grew.
"""

import argparse
import asyncio
import json
import os
import platform
import statistics
import time
from datetime import UTC, datetime
from pathlib import Path

from rstar2.sandbox import ExecutionStatus, Limits, LocalExecutor, Request

PROGRAMS = [
    *[("print(6 * 7)", ExecutionStatus.OK)] * 90,
    ("open('f', 'w').write('x' * 1000)", ExecutionStatus.OK),
    ("import numpy; print(numpy.ones(1000).sum())", ExecutionStatus.OK),
    ("1 / 0", ExecutionStatus.ERROR),
    ("import os; os.kill(os.getpid(), 11)", ExecutionStatus.SIGNAL),
    ("print('x' * 2_000_000)", ExecutionStatus.OUTPUT_LIMIT),
    ("x = bytearray(200 << 20)", ExecutionStatus.MEMORY),
    ("import os\nfor _ in range(5): os.fork()", ExecutionStatus.OK),
    ("import sys; print(len(sys.stdin.read()))", ExecutionStatus.OK),
    ("import threading; threading.Thread(target=print, args=(1,)).start()", ExecutionStatus.OK),
    ("import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'while True: pass'])", ExecutionStatus.OK),
]
LIMITS = Limits(wall_s=5.0, memory_bytes=128 << 20)
WARM_UP_SHARE = 0.1


def children_of(pid: int) -> list[int]:
    try:
        direct = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return direct + [grandchild for child in direct for grandchild in children_of(child)]


def observe() -> dict[str, float]:
    own = Path("/proc/self/status").read_text()
    resident = next(int(line.split()[1]) for line in own.splitlines() if line.startswith("VmRSS"))
    family = children_of(os.getpid())
    shares = []
    for pid in family:
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        shares += [int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")]
    return {
        "host_mib": resident / 1024,
        "family_mib": sum(shares) / 1024,
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "processes": len(family),
    }


async def soak(count: int, num_rounds: int) -> list[dict[str, float]]:
    rounds = []
    per_round = count // num_rounds
    async with LocalExecutor() as executor:
        for number in range(num_rounds):
            started = time.perf_counter()
            chosen = [PROGRAMS[(number + index * 7) % len(PROGRAMS)] for index in range(per_round)]
            num_wrong = 0
            async for index, execution in executor.run_many(
                Request(code, stdin="x" * 100, limits=LIMITS, queue_s=3600) for code, _ in chosen
            ):
                num_wrong += execution.status is not chosen[index][1]
            rate = per_round / (time.perf_counter() - started)
            latencies = []
            for _ in range(100):
                one = time.perf_counter()
                await executor.run(Request("print(1)"))
                latencies.append((time.perf_counter() - one) * 1000)
            await asyncio.sleep(0.5)
            rounds.append({**observe(), "rate": rate, "p50_ms": statistics.median(latencies), "wrong": num_wrong})
            print(json.dumps({"round": number, **{k: round(v, 2) for k, v in rounds[-1].items()}}), flush=True)
    return rounds


def grew(rounds: list[dict[str, float]], name: str, allowed: float) -> bool:
    """Whether the last third is above the first (after warm-up) by more than the allowed share."""
    steady = rounds[max(1, int(len(rounds) * WARM_UP_SHARE)) :]
    third = max(1, len(steady) // 3)
    first = statistics.median(row[name] for row in steady[:third])
    last = statistics.median(row[name] for row in steady[-third:])
    return last > first * (1 + allowed) + 1


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    rounds = asyncio.run(soak(options.count, options.rounds))
    allowed = {"host_mib": 0.1, "family_mib": 0.2, "descriptors": 0.1, "processes": 0.25, "p50_ms": 0.5}
    grown = [name for name, share in allowed.items() if grew(rounds, name, share)]
    num_wrong = sum(row["wrong"] for row in rounds)
    print(
        json.dumps(
            {
                "date": datetime.now(UTC).isoformat(timespec="seconds"),
                "machine": platform.platform(),
                "executions": options.count,
                "wrong": num_wrong,
                "grown": grown,
                "first": rounds[1] if len(rounds) > 1 else rounds[0],
                "last": rounds[-1],
            }
        )
    )
    raise SystemExit(1 if grown or num_wrong else 0)


if __name__ == "__main__":
    main()
