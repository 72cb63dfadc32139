"""An embedded engine in a child process: the same tokens, the same errors, and what a kill -9 of it looks like."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from rstar2.engine import Chunk, Engine, Sampling
from rstar2.engine.embedded import EmbeddedEngine, EmbeddedOptions
from rstar2.engine.embedded.weights import share_weights
from rstar2.engine.process.shared import SharedEngine
from rstar2.errors import InfrastructureError, UserError
from rstar2.records import StopReason
from rstar2.rollout.driver import Driver
from rstar2.rollout.placed_rollout import PlacedRollout
from rstar2.rollout.policies import make_policy
from rstar2.rollout.scheduler import EngineSpeed, RolloutSpec

pytestmark = pytest.mark.integration

OPTIONS = EmbeddedOptions(kv_cache_tokens=1024, max_running=8, max_context_tokens=256)
PROMPT = tuple(range(40))
SPEED = EngineSpeed(prefill_token_s=1e-4, step_s=1e-3, cached_token_s=1e-7)


def make_model() -> Any:
    sizes = {"vocab_size": 100, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256}
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(LlamaConfig(**sizes | heads), dtype=torch.float32)


@pytest.fixture
async def child() -> AsyncIterator[SharedEngine]:
    engine = await SharedEngine.start(share_weights(make_model()), OPTIONS)
    yield engine
    await engine.close()


async def turn(engine: Engine, session: str, num_tokens: int) -> list[Chunk]:
    sampling = Sampling(seed=5, entropies=True, stop_token_ids=(99,))
    return [chunk async for chunk in engine.generate(session, PROMPT, sampling, num_tokens)]


async def test_tokens_and_errors_are_those_of_the_engine_inside(child: SharedEngine) -> None:
    here = EmbeddedEngine.on_model(make_model(), OPTIONS)
    try:
        ours, theirs = [await turn(engine, "s", 60) for engine in (here, child)]
    finally:
        await here.close()
    assert [t for chunk in theirs for t in chunk.token_ids] == [t for chunk in ours for t in chunk.token_ids]
    log_probs = [[value for chunk in chunks for value in chunk.log_probs] for chunks in (theirs, ours)]
    assert log_probs[0] == pytest.approx(log_probs[1], abs=1e-5)
    assert sum(len(chunk.entropies) for chunk in theirs) == sum(len(chunk.token_ids) for chunk in theirs)
    assert [chunk.stop_reason for chunk in theirs[:-1]] == [None] * (len(theirs) - 1)
    assert theirs[-1].stop_reason is ours[-1].stop_reason
    assert child.load().num_blocks == 64
    with pytest.raises(UserError, match="the prompt has no tokens"):
        [_ async for _ in child.generate("s", (), Sampling(), 5)]

    stream = child.generate("t", PROMPT, Sampling(seed=1), 200)
    first = await anext(stream)
    await child.cancel("t")
    rest = [chunk async for chunk in stream]
    assert rest[-1].stop_reason is StopReason.CANCELLED
    assert len(first.token_ids) + sum(len(chunk.token_ids) for chunk in rest) < 200
    await child.release("t")

    left = child.generate("u", PROMPT, Sampling(seed=1), 200)
    await anext(left)
    await left.aclose()  # type: ignore[attr-defined]
    async with asyncio.timeout(240):
        while child.load().num_running:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_a_killed_process_is_a_lost_engine_and_its_rollouts_go_on() -> None:
    first, second = await asyncio.gather(*(SharedEngine.start(share_weights(make_model()), OPTIONS) for _ in range(2)))
    driver: Driver[int] = Driver(make_policy("kv-aware"), report_period_s=0.05)
    driver.add_engine("first", first, SPEED)
    driver.add_engine("second", second, SPEED)
    num_done = 0

    async def rollout(seat: PlacedRollout) -> int:
        nonlocal num_done
        tokens = list(PROMPT)
        for _ in range(2):
            async for chunk in seat.generate(tokens, Sampling(seed=3), 50):
                tokens += chunk.token_ids
        num_done += 1
        if num_done == 5:
            os.kill(first.pid, signal.SIGKILL)
        return len(tokens)

    specs = [RolloutSpec(f"r{number}", f"p{number // 4}", len(PROMPT), 120) for number in range(24)]
    results = await asyncio.wait_for(driver.run(specs, rollout), 240)
    assert results == [140] * 24
    assert driver.recorder.counts.num_engines_lost == 1
    with pytest.raises(InfrastructureError, match="has disconnected"):
        first.load()
    with pytest.raises(InfrastructureError, match="has disconnected"):
        await first.cancel("r0")
    await asyncio.gather(first.close(), second.close())


async def test_a_process_that_hangs_is_lost_as_well() -> None:
    engine = await SharedEngine.start(share_weights(make_model()), OPTIONS, silence_s=5.0)
    try:
        stream = engine.generate("s", PROMPT, Sampling(seed=1), 200)
        await anext(stream)
        os.kill(engine.pid, signal.SIGSTOP)
        with pytest.raises(InfrastructureError, match="has sent nothing for 5 s"):
            async with asyncio.timeout(240):
                [_ async for _ in stream]
        assert "has sent nothing" in str(await engine.lost())
    finally:
        os.kill(engine.pid, signal.SIGKILL)
        await engine.close()
