"""What judging a program by ten hidden tests costs, beside one `python -c` that runs program and asserts together.

    python benchmarks/code_judging.py [--json] [--num-programs N]

`ms` is the time of one program alone; `per_s` counts programs that are judged at the same time.
"""

import argparse
import asyncio
import json
import platform
import statistics
import subprocess
import sys
import time
from datetime import UTC, datetime
from typing import Any

from rstar2.environments.code import CodeJudge, read_task
from rstar2.sandbox import Limits, LocalExecutor

NUM_TESTS = 10
ASSERTS = {
    "prompt": "The divisors of n.",
    "tests": [
        f"assert divisors({n}) == {[d for d in range(1, n + 1) if n % d == 0]}" for n in range(10, 10 + NUM_TESTS)
    ],
    "solution": "def divisors(n):\n    return [d for d in range(1, n + 1) if n % d == 0]",
}
STDIN = {
    "prompt": "Twice the number.",
    "tests": [{"input": f"{n}\n", "output": f"{2 * n}\n"} for n in range(NUM_TESTS)],
    "solution": "print(2 * int(input()))",
}


async def measure(judge: CodeJudge, row: dict[str, Any], num_programs: int) -> dict[str, float]:
    task = read_task(row, "bench")

    async def judged() -> None:
        report = await judge.judge(task, row["solution"])
        assert report.is_right, report

    times = []
    for _ in range(num_programs // 4):
        started = time.perf_counter()
        await judged()
        times.append(1000 * (time.perf_counter() - started))
    started = time.perf_counter()
    await asyncio.gather(*(judged() for _ in range(num_programs)))
    rate = num_programs / (time.perf_counter() - started)
    return {"ms": round(statistics.median(times), 1), "per_s": round(rate, 1)}


def python_ms(num_programs: int) -> float:
    code = "\n".join([ASSERTS["solution"], *ASSERTS["tests"]])
    times = []
    for _ in range(num_programs // 4):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        times.append(1000 * (time.perf_counter() - started))
    return round(statistics.median(times), 1)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--num-programs", type=int, default=64)
    options = parser.parse_args()
    async with LocalExecutor() as executor:
        judge = CodeJudge(executor, Limits(), queue_s=120.0)
        result: dict[str, Any] = {
            "ten_asserts": await measure(judge, ASSERTS, options.num_programs),
            "ten_stdin_cases": await measure(judge, STDIN, options.num_programs),
            "python_with_ten_asserts_ms": python_ms(options.num_programs),
            "machine": f"{platform.machine()} {platform.system()} {platform.release()}",
            "python": platform.python_version(),
            "date": datetime.now(UTC).date().isoformat(),
        }
    if options.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:28} {value}")


if __name__ == "__main__":
    asyncio.run(main())
