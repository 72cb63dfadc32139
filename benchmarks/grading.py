"""Verdicts a second on one core: integers, which need no executor, and the comparisons that math-verify makes.

    python benchmarks/grading.py [--json] [--num-integers N] [--num-comparisons N]

Integers are timed from the model's text to the verdict. Comparisons are timed twice: the grading program alone, warm,
in one process; and through an executor, isolated, one at a time.
"""

import argparse
import asyncio
import contextlib
import io
import json
import platform
import random
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime

from rstar2 import sandbox
from rstar2.grading import Grader, SymbolicComparison, decide, extract_answer, program
from rstar2.sandbox.unsafe.executor import UnsafeExecutor

SEED = 0
PAIRS = [
    (r"\frac{1}{2}", "0.5"),
    (r"3 + 2\sqrt{2}, 3 - 2\sqrt{2}", r"3 \pm 2\sqrt2"),
    ("(x+1)^2", "x^2+2x+1"),
    (r"\begin{bmatrix}1\\2\end{bmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"),
    (r"\frac{1}{\sqrt{2}}", r"\frac{\sqrt{2}}{2}"),
    (r"\frac{\pi}{3}", r"\frac{\pi}{4}"),
    (r"(-\infty, 1) \cup [2, \infty)", r"(-\infty,1]\cup[2,\infty)"),
    ("2x - y + 3 = 0", "y=2x+3"),
]


def time_integers(num_verdicts: int) -> float:
    rng = random.Random(SEED)
    golds = [str(rng.randrange(10**9)) for _ in range(num_verdicts)]
    texts = [f"<reason>{'so ' * 100}</reason><answer>\\boxed{{{int(gold):,}}}</answer>" for gold in golds]

    def grade_all() -> None:
        for text, gold in zip(texts, golds, strict=True):
            decide(extract_answer(text) or "", gold)

    return num_verdicts / cpu_s_of(grade_all)


def time_program(num_verdicts: int) -> float:
    """The grading program in this process: what a warm worker would spend."""
    comparisons = [decide(*PAIRS[n % len(PAIRS)]) for n in range(num_verdicts)]

    def compare_all() -> None:
        stdin = sys.stdin
        try:
            for comparison in comparisons:
                assert isinstance(comparison, SymbolicComparison)
                sys.stdin = io.StringIO(json.dumps(asdict(comparison)))
                with contextlib.redirect_stdout(io.StringIO()):
                    program.main()
        finally:
            sys.stdin = stdin

    return num_verdicts / cpu_s_of(compare_all)


async def time_executor(num_verdicts: int) -> tuple[str, float]:
    async with getattr(sandbox, "LocalExecutor", UnsafeExecutor)() as executor:
        grader = Grader(executor)
        await grader.grade_answer(*PAIRS[0])
        started = time.perf_counter()
        for n in range(num_verdicts):
            await grader.grade_answer(*PAIRS[n % len(PAIRS)])
        return type(executor).__name__, num_verdicts / (time.perf_counter() - started)


def cpu_s_of(work: Callable[[], None]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--num-integers", type=int, default=100_000)
    parser.add_argument("--num-comparisons", type=int, default=80)
    options = parser.parse_args()
    executor, through_executor = asyncio.run(time_executor(options.num_comparisons))
    result = {
        "integer_verdicts_per_core_s": round(time_integers(options.num_integers)),
        "math_verify_verdicts_per_core_s": round(time_program(options.num_comparisons), 1),
        "isolated_verdicts_per_s": round(through_executor, 1),
        "executor": executor,
        "machine": f"{platform.machine()} {platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "seed": SEED,
        "date": datetime.now(UTC).date().isoformat(),
    }
    if options.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:34} {value}")


if __name__ == "__main__":
    main()
