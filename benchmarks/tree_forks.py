"""What a fork of a running episode costs, in one process: the notebook's and the episode's part, and the engine's.

    python benchmarks/tree_forks.py [--forks 200] [--json FILE]

An episode has a notebook with a few variables and a list of a million numbers, and a conversation of 1,024 tokens whose
keys and values are in the engine's prefix cache. Each fork copies the episode, and the copy is closed. `first cell` is
a cell in the copy, which pays for what the fork put off. The engine's part is by how much the first token of the copy
is later than the next one of the parent would be: it has to find the prefix. `token without prefix` is of a
conversation of that length that was never seen. The model computes next to nothing. Times are wall-clock.
"""

import argparse
import asyncio
import json
import random
import statistics
import time
from datetime import UTC, datetime
from pathlib import Path

import torch

from rstar2.agent import JupyterTool
from rstar2.engine import Sampling
from rstar2.engine.embedded import EmbeddedEngine, EmbeddedOptions
from rstar2.environments import Judgement
from rstar2.environments.plain_episode import PlainEpisode
from rstar2.records import Trace
from rstar2.sandbox import LocalExecutor

NUM_PREFIX_TOKENS = 1024
VOCABULARY = 1000
SETUP = "import math\nx, y, names = 3, 4.5, ['a', 'b']\nnumbers = list(range(1_000_000))\nprint(len(numbers))"


async def unjudged(_trace: Trace) -> Judgement:
    return Judgement()


def tiny_engine() -> EmbeddedEngine:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(1)
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
    config = LlamaConfig(**sizes, num_attention_heads=2, max_position_embeddings=2 * NUM_PREFIX_TOKENS)
    return EmbeddedEngine.on_model(LlamaForCausalLM(config), EmbeddedOptions(kv_cache_tokens=1 << 18))


async def first_token_s(engine: EmbeddedEngine, session: str, token_ids: list[int]) -> float:
    started_s = time.perf_counter()
    async for _ in engine.generate(session, token_ids, Sampling(), 1):
        pass
    return time.perf_counter() - started_s


async def measure(num_forks: int) -> dict[str, list[float]]:
    """Milliseconds of each fork, and of what comes after it."""
    names = ("fork", "first cell", "token of the parent", "token of the copy", "token without prefix")
    times: dict[str, list[float]] = {name: [] for name in names}
    engine, rng = tiny_engine(), random.Random(0)
    prefix = rng.choices(range(VOCABULARY), k=NUM_PREFIX_TOKENS)
    await first_token_s(engine, "parent", prefix)
    async with LocalExecutor() as executor:
        tool = JupyterTool(executor)
        episode = PlainEpisode(unjudged, (tool,))
        await tool.call({"code": SETUP})
        for number in range(num_forks):
            started_s = time.perf_counter()
            forked = await episode.fork()
            fork_s = time.perf_counter() - started_s
            assert forked is not None
            stranger = rng.choices(range(VOCABULARY), k=NUM_PREFIX_TOKENS)
            asked = [("parent", prefix), (f"copy {number}", prefix), (f"stranger {number}", stranger)]
            tokens_s: dict[str, float] = {}
            for session, token_ids in rng.sample(asked, 3):  # the first of them finds colder caches of the processor
                tokens_s[session] = await first_token_s(engine, session, token_ids)
            began_s = time.perf_counter()
            result = await forked.tools[0].call({"code": f"x += {number}\nprint(x + len(numbers))"})
            cell_s = time.perf_counter() - began_s
            assert result.text == str(3 + number + 1_000_000), result.text
            await forked.close()
            for name, seconds in zip(
                names, (fork_s, cell_s, *(tokens_s[session] for session, _ in asked)), strict=True
            ):
                times[name].append(1e3 * seconds)
        await episode.close()
    await engine.close()
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
        print(f"{name:>20}: p50 {rows[name]['p50_ms']:7.3f} ms, p90 {cuts[89]:7.3f} ms, p99 {cuts[98]:7.3f} ms")
    if options.json is not None:
        document = {"date": datetime.now(UTC).isoformat(), "forks": options.forks, "times": rows}
        options.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
