"""The GPU's kernels against plain PyTorch, and the engine on a GPU against `transformers`; skipped without one."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

from rstar2.engine import Sampling
from rstar2.engine.embedded import EmbeddedEngine, EmbeddedOptions

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

VOCAB_SIZE = 512


def tiny_model(config_class: type) -> Any:
    torch.manual_seed(0)
    config = config_class(
        vocab_size=VOCAB_SIZE,
        hidden_size=96,
        intermediate_size=160,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=512,
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).cuda().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def prompts(number: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(1, 150, (number,), generator=generator).tolist()
    return [torch.randint(0, VOCAB_SIZE, (length,), generator=generator).tolist() for length in lengths]


async def turn(engine: EmbeddedEngine, session: str, ids: list[int], sampling: Sampling) -> tuple[Any, Any]:
    token_ids: list[int] = []
    log_probs: list[float] = []
    async for chunk in engine.generate(session, ids, sampling, 40):
        token_ids += chunk.token_ids
        log_probs += chunk.log_probs
    return token_ids, log_probs


def run_all(engine: EmbeddedEngine, all_ids: list[list[int]], samplings: list[Sampling]) -> list[tuple[Any, Any]]:
    async def run() -> list[tuple[Any, Any]]:
        pairs = enumerate(zip(all_ids, samplings, strict=True))
        return await asyncio.gather(*(turn(engine, str(n), ids, sampling) for n, (ids, sampling) in pairs))

    return asyncio.run(run())


@pytest.mark.parametrize("config_class", [LlamaConfig, Qwen2Config, Qwen3Config])
def test_greedy_tokens_and_sampled_log_probs_are_those_of_transformers(config_class: type) -> None:
    model = tiny_model(config_class)
    all_ids = prompts(20)
    engine = EmbeddedEngine.on_model(model, EmbeddedOptions(kv_cache_tokens=8192, max_prefill_tokens=100))
    for (token_ids, _), ids in zip(run_all(engine, all_ids, [Sampling(temperature=0)] * 20), all_ids, strict=True):
        prompt = torch.tensor([ids], device="cuda")
        mask = torch.ones_like(prompt)
        wanted = model.generate(
            prompt, attention_mask=mask, max_new_tokens=40, do_sample=False, eos_token_id=None, pad_token_id=0
        )
        assert token_ids == wanted[0, len(ids) :].tolist()
    samplings = [Sampling(temperature=0.8, seed=n) for n in range(20)]
    for (token_ids, log_probs), ids in zip(run_all(engine, all_ids, samplings), all_ids, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([ids + token_ids], device="cuda")).logits[0, len(ids) - 1 : -1]
        wanted = (logits / 0.8).log_softmax(-1).gather(-1, torch.tensor(token_ids, device="cuda")[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(log_probs), wanted.cpu(), atol=1e-4, rtol=0)
    asyncio.run(engine.close())


def test_cuts_and_stops_are_the_same_whatever_else_is_in_the_batch() -> None:
    model = tiny_model(LlamaConfig)
    all_ids = prompts(40)
    samplings = [Sampling(seed=n, stop_token_ids=(7, 8, 9), top_k=20 * (n % 2), top_p=0.9) for n in range(40)]
    roomy = EmbeddedEngine.on_model(model, EmbeddedOptions(kv_cache_tokens=65536))
    tight = EmbeddedEngine.on_model(model, EmbeddedOptions(kv_cache_tokens=400, max_running=8, steps_ahead=3))
    together, pressed = (run_all(engine, all_ids, samplings) for engine in (roomy, tight))
    assert [token_ids for token_ids, _ in together] == [token_ids for token_ids, _ in pressed]
    assert tight.load().num_free_blocks == tight.load().num_blocks
    for engine in (roomy, tight):
        asyncio.run(engine.close())


def test_a_cache_that_is_given_back_is_free_for_others_and_then_the_engines_again() -> None:
    model = tiny_model(LlamaConfig)
    all_ids, samplings = prompts(20), [Sampling(seed=n) for n in range(20)]
    size = EmbeddedOptions(kv_cache_tokens=4_000_000)
    kept, given = (EmbeddedEngine.on_model(model, option) for option in (size, replace(size, gives_cache_back=True)))

    def sampled(engine: EmbeddedEngine) -> list[list[int]]:
        return [token_ids for token_ids, _ in run_all(engine, all_ids, samplings)]

    expected = sampled(kept)
    assert sampled(given) == expected
    before_bytes, _ = torch.cuda.mem_get_info()

    async def free_bytes(engine: EmbeddedEngine) -> int:
        async with engine.paused_for_weight_sync(1):
            return torch.cuda.mem_get_info()[0]

    cache_bytes = 4_000_000 * 2 * 3 * 2 * 16 * 4
    assert asyncio.run(free_bytes(given)) - before_bytes > 0.99 * cache_bytes
    assert asyncio.run(free_bytes(kept)) - before_bytes < 0.01 * cache_bytes
    assert abs(torch.cuda.mem_get_info()[0] - before_bytes) < 0.01 * cache_bytes
    assert sampled(given) == expected

    async def pause_during_a_turn() -> list[int]:
        chunks = given.generate("long", all_ids[0], Sampling(seed=0), 300)
        first = await anext(chunks)
        async with given.paused_for_weight_sync(2):
            assert torch.cuda.mem_get_info()[0] - before_bytes < 0.1 * cache_bytes, "the turn needs it"
        return [*first.token_ids, *[number async for chunk in chunks for number in chunk.token_ids]]

    assert asyncio.run(pause_during_a_turn())[:40] == expected[0]
    for engine in (kept, given):
        asyncio.run(engine.close())


@pytest.mark.parametrize("config_class", [LlamaConfig, Qwen3Config])
def test_scores_of_given_tokens_are_those_of_transformers(config_class: type) -> None:
    model = tiny_model(config_class)
    engine = EmbeddedEngine.on_model(model, EmbeddedOptions(kv_cache_tokens=8192, max_prefill_tokens=100))

    async def run(all_ids: list[list[int]]) -> list[Any]:
        turns = [turn(engine, str(number), ids, Sampling(seed=number)) for number, ids in enumerate(all_ids)]
        found = await asyncio.gather(*(engine.score(ids, 1, 3) for ids in all_ids), *turns)
        return found[: len(all_ids)]

    all_ids = [ids for ids in prompts(20) if len(ids) > 1]
    for ids, scores in zip(all_ids, asyncio.run(run(all_ids)), strict=True):
        with torch.no_grad():
            expected = model(torch.tensor([ids], device="cuda")).logits[0, :-1].log_softmax(-1).cpu()
        wanted = expected.gather(-1, torch.tensor(ids[1:])[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(scores.log_probs), wanted, atol=1e-4, rtol=0)
        assert [top[0][0] for top in scores.top] == expected.argmax(-1).tolist()
