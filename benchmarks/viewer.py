"""How long the viewer takes to open the demo, and to answer about a step that is too large to load.

    python benchmarks/viewer.py [--rollouts 4096] [--json]

The demo: from the start of `rstar2 view --demo` until everything that its first page asks for is answered. The large
step: rollouts of 5,000 tokens each in one file, groups of 32 scattered over it; each question is asked of a viewer that
has just been started, so nothing is indexed yet, and answered until it is complete. Bytes are what the viewer read.
"""

import argparse
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from rstar2.records import Group, Outcome, RunDirectory, Selection, StopReason, Trace, Turn, Verdict
from rstar2.records.codec import encode
from rstar2.records.run_layout import RunLayout, segment
from rstar2.web.run_reader import RunReader
from rstar2.web.step_reader import Query

NUM_TOKENS, GROUP_SIZE, STEP = 5000, 32, 500
FIRST_PAGE = (
    "",
    "main.js",
    "style.css",
    "api/runs",
    *(f"api/runs/demo/{name}" for name in ("metrics", "events", "steps")),
)


def open_demo() -> float:
    started = time.perf_counter()
    command = [sys.executable, "-c", "from rstar2.cli.main import main; main()", "view", "--demo", "--no-browser"]
    with subprocess.Popen([*command, "--port", "0"], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        address = re.search(r"http://\S+/", process.stderr.readline())
        assert address is not None
        for path in FIRST_PAGE:
            with urlopen(address[0] + path) as response:
                response.read()
        seconds = time.perf_counter() - started
        process.terminate()
    return seconds


def write_large_step(path: Path, num_rollouts: int) -> None:
    rng = random.Random(0)
    with RunDirectory.create(path, verb="train", recipe_toml="", argv=[]):
        pass
    turn = Turn(
        token_ids=tuple(rng.randrange(150_000) for _ in range(NUM_TOKENS)),
        log_probs=tuple(-rng.random() for _ in range(NUM_TOKENS)),
        entropies=tuple(rng.random() for _ in range(NUM_TOKENS)),
        text="so " * NUM_TOKENS,
        stop_reason=StopReason.END_OF_TURN,
    )
    trace = Trace("TRACE", "PROBLEM", (1,), "", (turn,), Outcome.ANSWERED, step=STEP, verdict=Verdict.RIGHT, reward=1.0)
    line = encode(trace)
    num_groups = num_rollouts // GROUP_SIZE
    with segment(RunLayout(path).traces, STEP).open("wb") as file:
        for n in range(num_rollouts):
            file.write(line.replace(b"TRACE", b"t%d" % n).replace(b"PROBLEM", b"p%d" % (n % num_groups)) + b"\n")
    same = (0.0,) * GROUP_SIZE
    with segment(RunLayout(path).groups, STEP).open("wb") as file:
        for n in range(num_groups):
            ids = tuple(f"t{m}" for m in range(n, num_rollouts, num_groups))
            selections = (Selection.EQUAL_REWARDS,) * GROUP_SIZE
            file.write(
                encode(Group(f"g{n}", f"p{n}", STEP, ids, same, same, same, (None,) * GROUP_SIZE, selections)) + b"\n"
            )


def measure(path: Path, ask: Callable[[RunReader], dict[str, Any]], *, to_the_end: bool = True) -> dict[str, float]:
    reader = RunReader(path, "large")
    started = time.perf_counter()
    answer, longest, num_answers = {"is_end": False}, 0.0, 0
    while num_answers == 0 or (to_the_end and not answer["is_end"]):
        asked = time.perf_counter()
        answer = ask(reader)
        longest = max(longest, time.perf_counter() - asked)
        num_answers += 1
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "answers": num_answers, "longest_s": longest, "megabytes": reader.num_bytes_read / 1e6}


def offset_in_the_middle(path: Path, num_rollouts: int) -> int:
    with segment(RunLayout(path).traces, STEP).open("rb") as file:
        return sum(len(file.readline()) for _ in range(num_rollouts // 2))


def filtering() -> Callable[[RunReader], dict[str, Any]]:
    after = 0

    def ask(reader: RunReader) -> dict[str, Any]:
        nonlocal after
        page = reader.rollouts(STEP, Query(frozenset({"wrong"})), after)
        after = page["next"]
        return page

    return ask


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=4096)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large"
        write_large_step(path, options.rollouts)
        deep = offset_in_the_middle(path, options.rollouts)
        results = {
            "first page of rollouts": measure(path, lambda reader: reader.rollouts(STEP, Query(), 0), to_the_end=False),
            "link to a trace in the middle": measure(path, lambda r: {"is_end": True, **r.trace(STEP, deep)}),
            "a group side by side": measure(path, lambda reader: reader.side_by_side(STEP, 7, None)),
            "a filter that matches nothing": measure(path, filtering()),
        }
        size = segment(RunLayout(path).traces, STEP).stat().st_size
    demo_s = min(open_demo() for _ in range(3))
    if options.json:
        print(json.dumps({"demo_s": demo_s, "step_bytes": size, "answers": results}, indent=2))
        return
    print(f"demo: {demo_s:.2f} s from the start of the command to the last answer of its first page")
    print(f"a step of {options.rollouts:,} rollouts, {size / 1e9:.2f} GB")
    print(f"{'question':<32}{'answers':>8}{'longest':>10}{'in all':>10}{'read':>12}")
    for name, row in results.items():
        times = f"{row['longest_s']:>8.2f} s{row['seconds']:>8.2f} s"
        print(f"{name:<32}{row['answers']:>8}{times}{row['megabytes']:>9.0f} MB")


if __name__ == "__main__":
    main()
