"""Random joins, leaves, cancels, preemptions and weight updates: no block is lost, none has two owners."""

import asyncio
import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, LlamaConfig

from rstar2.engine import Sampling
from rstar2.engine.embedded import EmbeddedEngine, EmbeddedOptions
from rstar2.engine.embedded.blocks import BlockManager
from rstar2.engine.embedded.scheduler import BatchScheduler, EngineSequence, StepPlan

pytestmark = pytest.mark.property

BLOCK_SIZE = 4
NUM_EVENTS = 1000


class Device:
    """Does what plans say to a list of slots, in order, and checks each read: a token's place must still hold the
    prefix it was written for. So a block that two sequences own, or one reused too early, is seen."""

    def __init__(self, scheduler: BatchScheduler, rng: random.Random) -> None:
        self._scheduler, self._rng = scheduler, rng
        self._held: dict[int, tuple[int, ...]] = {}
        self._in_flight: list[StepPlan] = []

    def run(self, plan: StepPlan) -> None:
        for chunk in plan.prefill:
            for position in range(chunk.start, chunk.end):
                self._write(chunk.sequence.blocks, chunk.sequence.token_ids, position)
        for chunk in plan.prefill:
            self._read(chunk.sequence.blocks, chunk.sequence.token_ids, chunk.end)
        for sequence in plan.decode:
            known = len(sequence.token_ids) - 1
            self._read(sequence.blocks, sequence.token_ids, known)
        self._in_flight.append(plan)

    def _write(self, blocks: list[int], token_ids: list[int], position: int) -> None:
        slot = blocks[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE
        self._held[slot] = tuple(token_ids[: position + 1])

    def _read(self, blocks: list[int], token_ids: list[int], end: int) -> None:
        for position in range(end):
            slot = blocks[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE
            assert self._held[slot] == tuple(token_ids[: position + 1])

    def absorb(self, living: set[EngineSequence], num_left: int) -> list[EngineSequence]:
        """Makes tokens known, of all but the last `num_left` plans; returns the sequences that ended."""
        ended = []
        while len(self._in_flight) > num_left:
            plan = self._in_flight.pop(0)
            for sequence in plan.decode:
                if sequence not in living:
                    continue
                num_steps = self._scheduler.steps_ahead
                room = sequence.max_total_tokens - len(sequence.token_ids)
                has_stopped = self._rng.random() < 0.1
                num_tokens = min(room, self._rng.randint(1, num_steps) if has_stopped else num_steps)
                first = len(sequence.token_ids) - 1
                blocks = sequence.blocks
                sequence.append([self._rng.randrange(3) for _ in range(num_tokens)], num_steps)
                for position in range(first, len(sequence.token_ids) - 1):
                    if blocks:
                        self._write(blocks, sequence.token_ids, position)
                if has_stopped or sequence.is_full:
                    living.remove(sequence)
                    ended.append(sequence)
        return ended


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    num_blocks=st.integers(10, 40),
    steps_ahead=st.integers(1, 5),
    max_running=st.integers(1, 12),
    is_pipelined=st.booleans(),
)
def test_the_scheduler_loses_no_block(
    seed: int, num_blocks: int, steps_ahead: int, max_running: int, is_pipelined: bool
) -> None:
    rng = random.Random(seed)
    blocks = BlockManager(num_blocks, BLOCK_SIZE)
    scheduler = BatchScheduler(
        blocks, max_running=max_running, max_prefill_tokens=rng.randint(1, 40), steps_ahead=steps_ahead
    )
    device = Device(scheduler, rng)
    living: set[EngineSequence] = set()
    kept: list[list[int]] = []
    for _ in range(NUM_EVENTS):
        event = rng.random()
        if event < 0.2:
            # Few ids, so that prefixes are often shared.
            token_ids = [rng.randrange(2) for _ in range(rng.randint(1, BLOCK_SIZE * num_blocks // 3))]
            num_total = min(len(token_ids) + rng.randint(1, 30), BLOCK_SIZE * num_blocks)
            sequence = EngineSequence(token_ids, num_total)
            living.add(sequence)
            scheduler.add(sequence)
        elif event < 0.25 and living:
            sequence = rng.choice(sorted(living, key=id))
            living.remove(sequence)
            kept.append(scheduler.remove(sequence))
        elif event < 0.27 and kept:
            blocks.unkeep(kept.pop(rng.randrange(len(kept))))
        elif event < 0.28:
            for sequence in device.absorb(living, num_left=0):
                kept.append(scheduler.remove(sequence))
            blocks.drop_cache()
        else:
            device.run(scheduler.plan())
            for sequence in device.absorb(living, num_left=1 if is_pipelined else 0):
                kept.append(scheduler.remove(sequence))
        blocks.check()
    for sequence in device.absorb(living, num_left=0):
        scheduler.remove(sequence)
    for sequence in living:
        scheduler.remove(sequence)
    blocks.check()
    assert blocks.num_free == num_blocks
    assert not scheduler.running
    assert not scheduler.waiting


def tiny_model() -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=50, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1,
        num_key_value_heads=1, max_position_embeddings=256,
    )  # fmt: skip
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


async def test_the_engine_loses_no_block_over_a_thousand_turns() -> None:
    rng = random.Random(0)
    options = EmbeddedOptions(kv_cache_tokens=640, max_running=32, max_prefill_tokens=96, steps_ahead=4)
    engine = EmbeddedEngine.on_model(tiny_model(), options)
    gate = asyncio.Semaphore(60)

    async def one(session: str) -> None:
        prompt = [rng.randrange(2) for _ in range(rng.randint(1, 30))]
        num_tokens, num_wanted = rng.randint(1, 150), rng.choice([1, 20, 1000, 1000])
        async with gate:
            stream = engine.generate(
                session, prompt, Sampling(stop_token_ids=(7,) if rng.random() < 0.5 else ()), num_tokens
            )
            num_seen = 0
            async for chunk in stream:
                num_seen += len(chunk.token_ids)
                if num_seen >= num_wanted:
                    break
            await stream.aclose()
            if rng.random() < 0.3:
                await engine.cancel(str(rng.randrange(1000)))
            if rng.random() < 0.5:
                await engine.release(session)

    await asyncio.gather(*(one(str(n)) for n in range(1000)))
    await engine.cancel("nobody")  # messages are acted on in order, so every cancel before it is done
    load = engine.load()
    engine._blocks.check()
    assert load.num_free_blocks == load.num_blocks
    assert load.num_running == load.num_waiting == 0
    await engine.close()
