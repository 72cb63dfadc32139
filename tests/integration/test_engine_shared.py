"""An engine in another process on this one's parameters: it sees every update, and its death is told."""

import asyncio
import os
import signal
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from rstar2.engine import Sampling
from rstar2.engine.embedded import EmbeddedEngine, EmbeddedOptions
from rstar2.engine.embedded.weights import share_weights
from rstar2.engine.process.shared import SharedEngine
from rstar2.errors import InfrastructureError, UserError

pytestmark = pytest.mark.integration

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
OPTIONS = EmbeddedOptions(kv_cache_tokens=1024, max_running=8, records_at_start=True)
PROMPT = [5, 6, 7, 8]


def tiny_model() -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=256,
    )
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).to(DEVICE).eval()


async def sampled(
    engine: SharedEngine | EmbeddedEngine, session: str, prompt: Sequence[int] = PROMPT
) -> tuple[list[int], set[int]]:
    token_ids: list[int] = []
    versions: set[int] = set()
    async for chunk in engine.generate(session, prompt, Sampling(seed=3), 24):
        token_ids += chunk.token_ids
        versions.add(chunk.policy_version)
    await engine.release(session)
    return token_ids, versions


async def test_it_generates_with_what_was_learnt_here() -> None:
    torch.set_num_threads(1)
    model = tiny_model()
    shared = await SharedEngine.start(share_weights(model), OPTIONS)
    before = await sampled(shared, "a")
    async with shared.paused_for_weight_sync(7):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.1)
    after = await sampled(shared, "b")
    await shared.close()
    here = EmbeddedEngine.on_model(model, OPTIONS)
    expected, _ = await sampled(here, "c")
    await here.close()
    assert before[1] == {0} and after[1] == {7}
    assert after[0] == expected != before[0]


async def test_it_scores_and_forgets_prefixes_and_stands_still_while_it_is_held() -> None:
    torch.set_num_threads(1)
    model = tiny_model()
    shared = await SharedEngine.start(share_weights(model), OPTIONS)
    here = EmbeddedEngine.on_model(model, OPTIONS)
    try:
        for given in ((PROMPT, 1, 0), (PROMPT, 3, 2, 0.7)):
            assert await shared.score(*given) == await here.score(*given)
        with pytest.raises(UserError, match="start must be at least 1"):
            await shared.score(PROMPT, 0, 0)

        async with shared.held():
            waiting = asyncio.create_task(sampled(shared, "a"))
            async with shared.paused_for_weight_sync(2):
                await asyncio.sleep(0.1)
            await asyncio.sleep(0.1)
            assert not waiting.done() and not shared.load().num_generated_tokens
        assert await waiting == (*(await sampled(here, "a"))[:1], {2})
        assert shared.policy_version == 2

        async def num_prefilled() -> int:
            before = shared.load().num_prefill_tokens
            await sampled(shared, "b", range(5, 50))
            async with asyncio.timeout(240):
                while shared.load().num_running:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            return shared.load().num_prefill_tokens - before

        complete = await num_prefilled()
        assert await num_prefilled() < complete
        await shared.drop_prefixes()
        assert await num_prefilled() == complete
    finally:
        await asyncio.gather(shared.close(), here.close())


async def test_a_pause_whose_caller_is_cancelled_while_it_begins_ends() -> None:
    shared = await SharedEngine.start(share_weights(tiny_model()), OPTIONS)

    async def pause(pausing: AbstractAsyncContextManager[None]) -> None:
        async with pausing:
            raise AssertionError("it was cancelled before")

    try:
        for pausing in (shared.held(), shared.paused_for_weight_sync(1), shared.held()):
            asking = asyncio.create_task(pause(pausing))
            await asyncio.sleep(0)  # it has asked, and nobody has answered
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            assert await asyncio.wait_for(sampled(shared, "a"), 240)
    finally:
        await shared.close()


async def test_whoever_waits_hears_of_its_death_and_learning_does_not_hang() -> None:
    shared = await SharedEngine.start(share_weights(tiny_model()), OPTIONS)

    def told() -> pytest.RaisesExc[InfrastructureError]:
        return pytest.raises(InfrastructureError, match=f"process {shared.pid} has disconnected")

    with told():
        async with shared.paused_for_weight_sync(1):
            waiting = asyncio.create_task(sampled(shared, "a"))
            await asyncio.sleep(0.1)
            assert not waiting.done(), "it is paused"
            os.kill(shared.pid, signal.SIGKILL)
            with told():
                await asyncio.wait_for(waiting, 240)
    with told():
        async with shared.paused_for_weight_sync(2):
            raise AssertionError("nobody is there to pause")
    await shared.close()
    with pytest.raises(ProcessLookupError):
        os.kill(shared.pid, 0)


async def test_what_can_never_work_is_the_user_s_mistake() -> None:
    with pytest.raises(UserError, match="max_context_tokens is 999"):
        await SharedEngine.start(share_weights(tiny_model()), EmbeddedOptions(max_context_tokens=999))
