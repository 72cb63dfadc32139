"""Whether the simulator may be trusted: the same rollouts on real engines and in the simulator, how long both take.

    python benchmarks/simulator_trust.py [--json]

Real are the two engine processes (embedded engines with their caches, queues and preemptions), the driver, and the
sandbox that runs the tools. The simulator gets the tools' measured delays, and engine speeds that were fitted to the
samples in the step's record. A ratio near 1 is a simulator that is right.

Cores that other processes use are no device of a steady speed, and two engines on them slow each other down, as no two
accelerators do. So the engines are paced: a step takes as long as it would on a separate device.
"""

import argparse
import asyncio
import json
import math
import os
import platform
import random
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from rstar2.engine import Sampling
from rstar2.engine.embedded import EmbeddedEngine, EmbeddedOptions
from rstar2.engine.embedded.scheduler import PrefillChunk
from rstar2.engine.process.child import spawn
from rstar2.engine.process.host import serve
from rstar2.engine.remote import RemoteEngine
from rstar2.engine.remote.client import SILENCE_S
from rstar2.records import StepRecord
from rstar2.rollout.driver import Driver
from rstar2.rollout.placed_rollout import PlacedRollout
from rstar2.rollout.policies import make_policy
from rstar2.rollout.scheduler import EngineSpeed, RolloutSpec
from rstar2.rollout.simulator import Fleet, PlannedRollout, PlannedTurn, SimulationResult, Workload, simulate
from rstar2.rollout.simulator.fit import engine_model, fit_speeds
from rstar2.sandbox import LocalExecutor, Request
from rstar2.train.seeds import named_seed

SEED = 1
POLICIES = ("static", "kv-aware")
STEP_S = 0.012
SEQUENCE_S = 0.0008
PREFILL_TOKEN_S = 0.0012
"""The proportions of `rstar2 simulate`'s default: a context that was lost costs many steps."""
OPTIONS = EmbeddedOptions(kv_cache_tokens=2048, max_running=32, max_context_tokens=512, max_prefill_tokens=256)
NUM_PROMPT_TOKENS, NUM_APPENDED_TOKENS, MAX_RESPONSE_TOKENS = 33, 12, 256
VOCAB_SIZE = 128
MEDIAN_TOKENS = (200, 170, 140, 120, 70, 60, 50, 45)
"""The median response of each problem, hard problems first as in a curriculum: an even split in advance is uneven
work."""
REPORT_PERIOD_S = 0.05
ROUGH_SPEED = EngineSpeed(prefill_token_s=1.2e-3, step_s=1.2e-2, cached_token_s=1e-6)


def workload(num_siblings: int) -> Workload:
    rng = random.Random(SEED)
    rollouts: list[PlannedRollout] = []
    for problem, median in enumerate(MEDIAN_TOKENS):
        for sibling in range(num_siblings):
            num_left = min(MAX_RESPONSE_TOKENS, max(16, int(median * math.exp(0.4 * rng.gauss(0, 1)))))
            turns: list[PlannedTurn] = []
            for _ in range(min(2, num_left // 40)):
                turns.append(
                    PlannedTurn(int(num_left * rng.uniform(0.2, 0.5)), NUM_APPENDED_TOKENS, rng.uniform(0.1, 0.3))
                )
                num_left -= turns[-1].num_sampled_tokens + NUM_APPENDED_TOKENS
            turns.append(PlannedTurn(max(1, num_left)))
            spec = RolloutSpec(f"{problem}-{sibling}", f"{problem}", NUM_PROMPT_TOKENS, MAX_RESPONSE_TOKENS)
            rollouts.append(PlannedRollout(spec, tuple(turns)))
    return Workload("trust", tuple(rollouts))


@dataclass(frozen=True)
class Live:
    """A step as it really was."""

    record: StepRecord
    workload: Workload
    """With the tools' delays as they were."""

    @property
    def makespan_s(self) -> float:
        return self.record.critical_path[-1].end_s

    @property
    def num_preemptions(self) -> int:
        return sum(use.num_preemptions for use in self.record.engines) + self.record.num_cancels

    @property
    def num_recomputed_tokens(self) -> int:
        return sum(use.num_prefill_tokens - use.num_new_tokens for use in self.record.engines)


@contextmanager
def model_folder() -> Iterator[Path]:
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=512,
    )
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
        yield Path(folder)


# The engine's process.


class PacedRunner:
    """Every prefill and every decode step takes as long as an accelerator's would, whatever the cores do besides."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def prefill(self, chunks: Sequence[PrefillChunk]) -> None:
        end_s = time.monotonic() + PREFILL_TOKEN_S * sum(chunk.end - chunk.start for chunk in chunks)
        self._runner.prefill(chunks)
        sleep_until(end_s)

    def start_decode(self, sequences: Sequence[Any]) -> Any:
        end_s = time.monotonic() + STEP_S + SEQUENCE_S * len(sequences)
        handle = self._runner.start_decode(sequences)
        sleep_until(end_s)
        return handle


def sleep_until(end_s: float) -> None:
    time.sleep(max(0.0, end_s - time.monotonic()))


def load_paced(folder: Path) -> EmbeddedEngine:
    engine = EmbeddedEngine.from_folder(folder, OPTIONS, device="cpu")
    with engine.paused():
        engine._runner = PacedRunner(engine._runner)  # type: ignore[assignment]
    return engine


def serve_paced(connection: socket.socket, folder: Path) -> None:
    torch.set_num_threads(1)
    asyncio.run(serve(connection, partial(load_paced, folder)))


# Ours.


async def start_engine(folder: Path) -> RemoteEngine:
    channel = await spawn(serve_paced, folder)
    hello = await channel.hello("the engine's process")
    return RemoteEngine(channel, hello["load"], "the engine's process", SILENCE_S)


async def run_live(planned: Workload, policy: str, engines: Sequence[RemoteEngine], sandbox: LocalExecutor) -> Live:
    plans = {plan.spec.rollout: plan for plan in planned.rollouts}
    delays_s: dict[str, list[float]] = {name: [] for name in plans}
    driver: Driver[None] = Driver(make_policy(policy), report_period_s=REPORT_PERIOD_S)
    for number, engine in enumerate(engines):
        driver.add_engine(f"engine-{number:03d}", engine, ROUGH_SPEED)

    async def rollout(placed: PlacedRollout) -> None:
        plan = plans[placed.spec.rollout]
        tokens = random.Random(named_seed(SEED, placed.spec.problem)).choices(range(VOCAB_SIZE), k=NUM_PROMPT_TOKENS)
        for number, turn in enumerate(plan.turns):
            sampling = Sampling(seed=named_seed(SEED, placed.spec.rollout, number))
            async for chunk in placed.generate(tokens, sampling, turn.num_sampled_tokens):
                tokens += chunk.token_ids
            if number < len(plan.turns) - 1:
                placed.calls_tool()
                begin_s = time.monotonic()
                execution = await sandbox.run(Request(f"import time; time.sleep({turn.tool_s}); print('done')"))
                assert execution.stdout == "done\n"
                delays_s[placed.spec.rollout].append(time.monotonic() - begin_s)
                tokens += [1] * turn.num_appended_tokens

    driver.begin_step(0)
    results = await driver.run([plan.spec for plan in planned.rollouts], rollout)
    assert results == [None] * len(results)
    measured = [
        replace(
            plan,
            turns=tuple(
                replace(turn, tool_s=tool_s)
                for turn, tool_s in zip(plan.turns, [*delays_s[plan.spec.rollout], 0.0], strict=True)
            ),
        )
        for plan in planned.rollouts
    ]
    return Live(driver.end_step(), Workload("trust", tuple(measured)))


def simulated(live: Live, policy: str, records: list[StepRecord]) -> SimulationResult:
    """With the speeds that these records show."""
    num_cache_tokens = live.record.engines[0].num_cache_tokens
    model = engine_model(
        fit_speeds(records), num_cache_tokens, max_num_seqs=32, max_num_batched_tokens=256, block_size=16
    )
    return simulate(live.workload, make_policy(policy), Fleet(model, 2), report_period_s=REPORT_PERIOD_S)


async def measure() -> dict[str, Live]:
    with model_folder() as folder:
        engines = await asyncio.gather(start_engine(folder), start_engine(folder))
        try:
            async with LocalExecutor() as sandbox:
                await run_live(workload(num_siblings=1), "static", engines, sandbox)  # warms everything up
                planned = workload(num_siblings=5)
                return {policy: await run_live(planned, policy, engines, sandbox) for policy in POLICIES}
        finally:
            await asyncio.gather(*(engine.close() for engine in engines))


def compare(live: dict[str, Live]) -> dict[str, dict[str, float]]:
    """Each policy on engines and in the simulator, with the speeds that its own record shows."""
    rows = {}
    for policy, real in live.items():
        result = simulated(real, policy, [real.record])
        rows[policy] = {
            "makespan_s": real.makespan_s,
            "simulated_makespan_s": result.makespan_s,
            "ratio": result.makespan_s / real.makespan_s,
            "num_preemptions": real.num_preemptions,
            "num_simulated_preemptions": result.preemptions,
            "num_recomputed_tokens": real.num_recomputed_tokens,
            "num_simulated_recomputed_tokens": result.recomputed_tokens,
        }
    return rows


def gain(live: dict[str, Live]) -> tuple[float, float]:
    """How many times as long the first policy takes as the second: on engines, and in the simulator with the speeds of
    both records."""
    records = [real.record for real in live.values()]
    first, second = (simulated(real, policy, records).makespan_s for policy, real in live.items())
    static, kv_aware = (real.makespan_s for real in live.values())
    return static / kv_aware, first / second


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    live = asyncio.run(measure())
    rows, (real_gain, simulated_gain) = compare(live), gain(live)
    facts = {
        "machine": platform.processor() or platform.machine(),
        "num_cores": len(os.sched_getaffinity(0)),
        "load_average": round(os.getloadavg()[0], 1),
        "seed": SEED,
        "date": datetime.now(UTC).date().isoformat(),
    }
    if options.json:
        print(json.dumps({**facts, "policies": rows, "gain": real_gain, "simulated_gain": simulated_gain}))
        return
    for name, value in facts.items():
        print(f"{name:14} {value}")
    print(f"\n{'policy':10}{'on engines s':>14}{'simulated s':>13}{'ratio':>7}{'preemptions':>16}{'recomputed':>18}")
    for policy, row in rows.items():
        preemptions = f"{row['num_preemptions']} and {row['num_simulated_preemptions']}"
        recomputed = f"{row['num_recomputed_tokens']:,} and {row['num_simulated_recomputed_tokens']:,}"
        print(
            f"{policy:10}{row['makespan_s']:14.2f}{row['simulated_makespan_s']:13.2f}{row['ratio']:7.2f}"
            f"{preemptions:>16}{recomputed:>18}"
        )
    print(f"\nstatic takes {real_gain:.2f} times as long as kv-aware on engines, {simulated_gain:.2f} in the simulator")


if __name__ == "__main__":
    main()
