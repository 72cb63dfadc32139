"""What a fork of a running episode costs, in one process: the notebook's and the episode's part, and the first token.

    python benchmarks/tree_forks.py [--forks 200] [--json FILE]

An episode has a notebook with a few variables and a list of a million numbers. Each fork copies the episode, and the
copy is closed. `first cell` is a cell in the copy, which pays for what the fork put off. Times are wall-clock.
"""

import argparse
import asyncio
import json
import statistics
import time
from datetime import UTC, datetime
from pathlib import Path

from rstar2.agent import JupyterTool
from rstar2.environments import Judgement
from rstar2.environments.plain_episode import PlainEpisode
from rstar2.records import Trace
from rstar2.sandbox import LocalExecutor

SETUP = "import math\nx, y, names = 3, 4.5, ['a', 'b']\nnumbers = list(range(1_000_000))\nprint(len(numbers))"


async def unjudged(_trace: Trace) -> Judgement:
    return Judgement()


async def measure(num_forks: int) -> dict[str, list[float]]:
    """Milliseconds of each fork, and of the first cell in each copy."""
    times: dict[str, list[float]] = {"fork": [], "first cell": []}
    async with LocalExecutor() as executor:
        tool = JupyterTool(executor)
        episode = PlainEpisode(unjudged, (tool,))
        await tool.call({"code": SETUP})
        for number in range(num_forks):
            started_s = time.perf_counter()
            forked = await episode.fork()
            forked_s = time.perf_counter()
            assert forked is not None
            result = await forked.tools[0].call({"code": f"x += {number}\nprint(x + len(numbers))"})
            ended_s = time.perf_counter()
            assert result.text == str(3 + number + 1_000_000), result.text
            await forked.close()
            times["fork"].append(1e3 * (forked_s - started_s))
            times["first cell"].append(1e3 * (ended_s - forked_s))
        await episode.close()
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forks", type=int, default=200)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = {}
    for name, values in asyncio.run(measure(options.forks)).items():
        cuts = statistics.quantiles(values, n=100)
        rows[name] = {"p50_ms": statistics.median(values), "p90_ms": cuts[89], "p99_ms": cuts[98]}
        print(f"{name:>12}: p50 {rows[name]['p50_ms']:7.3f} ms, p90 {cuts[89]:7.3f} ms, p99 {cuts[98]:7.3f} ms")
    if options.json is not None:
        document = {"date": datetime.now(UTC).isoformat(), "forks": options.forks, "times": rows}
        options.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
