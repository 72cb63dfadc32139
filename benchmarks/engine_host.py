"""What an embedded engine costs beside its device: CPU seconds of its two threads for tokens that cost nothing to make.

    python benchmarks/engine_host.py [--rollouts 4096] [--concurrent 2048] [--clients 8] [--run-ms 30] [--tool-ms 30]
        [--every-cycle]

The real scheduler, cache bookkeeping and sockets, with a runner that draws random ids, eight for each row every
`--run-ms`, as a GPU would. Each turn has 70 tokens in the mean, each rollout two turns, and in between a tool's answer
of 40 tokens that takes `--tool-ms` in the mean. They are asked for by other processes, as a farm of rollouts does. A
GPU that makes tokens faster than this waits. `--every-cycle` leaves Python's collector as it is.
"""

import argparse
import asyncio
import multiprocessing
import random
import socket
import time
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from rstar2.engine.embedded import EmbeddedEngine, EmbeddedOptions
from rstar2.engine.embedded import options as limits_of_engines
from rstar2.engine.embedded.options import CUDA_BLOCK_SIZE
from rstar2.engine.embedded.runner import DecodeHandle
from rstar2.engine.process.child import make_garbage_collection_rare
from rstar2.engine.process.host import join_engine, serve_guest
from rstar2.engine.protocol import Sampling

STOP_ID, VOCABULARY = 2, 1000
PROMPT_TOKENS, MEAN_TURN_TOKENS, TOOL_TOKENS, NUM_TURNS = 60, 70, 40, 2
STEPS_AHEAD = 8


@dataclass(frozen=True)
class Due:
    """Stands in for a CUDA event of the engine."""

    at_s: float

    def synchronize(self) -> None:
        time.sleep(max(0.0, self.at_s - time.monotonic()))


class FreeRunner:
    """Stands in for the engine's `Runner`; the bookkeeping of slots is the real one's."""

    is_asynchronous = True

    def __init__(self, engine: EmbeddedEngine, run_s: float) -> None:
        self._slots = engine._runner._slots
        self._rng = np.random.default_rng(0)
        self._run_s = run_s
        self._done_s = 0.0

    def prefill(self, chunks: Any) -> None:
        pass

    def start_decode(self, sequences: Any) -> DecodeHandle:
        num_rows = len(sequences)
        self._slots.update(sequences, num_rows)
        output_3AB = np.zeros((3, STEPS_AHEAD, num_rows))
        output_3AB[0] = self._rng.integers(STOP_ID + 1, VOCABULARY, (STEPS_AHEAD, num_rows))
        ends_AB = self._rng.random((STEPS_AHEAD, num_rows)) < 1 / MEAN_TURN_TOKENS
        for row in np.flatnonzero(ends_AB.any(0)):
            last = ends_AB[:, row].argmax()
            output_3AB[0, last, row] = STOP_ID
            output_3AB[0, last + 1 :, row] = -1
        self._done_s = max(self._done_s, time.monotonic()) + self._run_s
        return DecodeHandle(num_rows, torch.from_numpy(output_3AB), Due(self._done_s))


def make_engine(
    num_concurrent: int, run_s: float, steps_ahead: int = STEPS_AHEAD, *, starts_early: bool = False
) -> EmbeddedEngine:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(1)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=2048,
    )
    options = EmbeddedOptions(
        max_running=num_concurrent,
        kv_cache_tokens=500 * num_concurrent,
        max_prefill_tokens=16384,
        steps_ahead=steps_ahead,
        starts_early=starts_early,
    )
    with patch.object(limits_of_engines, "BLOCK_SIZE", CUDA_BLOCK_SIZE):  # as beside a GPU
        engine = EmbeddedEngine.on_model(LlamaForCausalLM(config), options)
    engine._runner = FreeRunner(engine, run_s)  # type: ignore[assignment]
    return engine


def roll_out(connection: socket.socket, num_rollouts: int, num_concurrent: int, tool_s: float) -> None:
    """A client's process."""
    asyncio.run(_roll_out(connection, num_rollouts, num_concurrent, tool_s))


async def _roll_out(connection: socket.socket, num_rollouts: int, num_concurrent: int, tool_s: float) -> None:
    engine = await join_engine(connection)
    rng, places = random.Random(0), asyncio.Semaphore(num_concurrent)
    sampling = Sampling(temperature=1.0, stop_token_ids=(STOP_ID,), entropies=True)

    async def one(number: int) -> None:
        async with places:
            ids = rng.choices(range(STOP_ID + 1, VOCABULARY), k=PROMPT_TOKENS)
            for _ in range(NUM_TURNS):
                async for chunk in engine.generate(f"s{number}", ids, sampling, 400):
                    ids += chunk.token_ids
                await asyncio.sleep(tool_s * rng.expovariate(1.0))
                ids += rng.choices(range(STOP_ID + 1, VOCABULARY), k=TOOL_TOKENS)
            await engine.release(f"s{number}")

    await asyncio.gather(*(one(number) for number in range(num_rollouts)))
    await engine.close()


async def serve(engine: EmbeddedEngine, connections: list[socket.socket]) -> None:
    began_s, began_cpu_s, began_loop_s = time.monotonic(), time.process_time(), time.thread_time()
    await asyncio.gather(*(serve_guest(engine, connection) for connection in connections))
    wall_s, cpu_s, loop_s = (
        time.monotonic() - began_s,
        time.process_time() - began_cpu_s,
        time.thread_time() - began_loop_s,
    )
    num_tokens = engine.load().num_generated_tokens
    print(f"{num_tokens:,} tokens in {wall_s:.2f} s, the starting of clients included")
    print(f"engine's thread {cpu_s - loop_s:.2f} s, event loop {loop_s:.2f} s of CPU")
    print(f"{num_tokens / cpu_s:,.0f} tokens a second of CPU, both threads together")
    await engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=4096)
    parser.add_argument("--concurrent", type=int, default=2048)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--run-ms", type=float, default=30.0)
    parser.add_argument("--tool-ms", type=float, default=30.0)
    parser.add_argument("--every-cycle", action="store_true")
    options = parser.parse_args()
    engine = make_engine(options.concurrent, options.run_ms / 1e3)
    if not options.every_cycle:
        make_garbage_collection_rare()
    pairs = [socket.socketpair() for _ in range(options.clients)]
    shares = (options.rollouts // options.clients, options.concurrent // options.clients, options.tool_ms / 1e3)
    context = multiprocessing.get_context("spawn")
    clients = [context.Process(target=roll_out, args=(theirs, *shares)) for _, theirs in pairs]
    for client in clients:
        client.start()
    for _, theirs in pairs:
        theirs.close()
    asyncio.run(serve(engine, [ours for ours, _ in pairs]))
    for client in clients:
        client.join()


if __name__ == "__main__":
    main()
