"""Packed projections: the product that was asked for, row by row the same in any batch, and never of old weights."""

import asyncio
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from rstar2.engine import Sampling
from rstar2.engine.embedded import EmbeddedEngine, EmbeddedOptions
from rstar2.engine.embedded.contexts_cpu import ROW_QUANTUM
from rstar2.engine.embedded.packing import PackedLinear, can_pack
from rstar2.engine.embedded.weights import Linear

pytestmark = pytest.mark.unit

PROMPT = list(range(40))
SIZES = ((960, 576), (576, 1536), (1000, 72), (4096, 576))
TOLERANCES = {torch.float32: {"atol": 1e-3, "rtol": 1e-4}, torch.bfloat16: {"atol": 1e-3, "rtol": 1e-2}}
NUM_ROWS = (*range(ROW_QUANTUM, 68, ROW_QUANTUM), 96, 100, 160, 252, 256)


@pytest.fixture(params=[1, None], ids=["one thread", "all threads"])
def _num_threads(request: pytest.FixtureRequest) -> Any:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(request.param or num_threads)
    yield
    torch.set_num_threads(num_threads)


@pytest.mark.usefixtures("_num_threads")
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.inference_mode()
def test_a_row_is_the_same_in_any_number_of_rows(dtype: torch.dtype, size: tuple[int, int]) -> None:
    if not can_pack(dtype):
        pytest.skip(f"oneDNN has no packed products of {dtype} here")
    torch.manual_seed(0)
    linear = Linear(torch.randn(size).to(dtype), torch.randn(size[0]).to(dtype))
    packed, input = PackedLinear(linear, is_packed=True), torch.randn(max(NUM_ROWS), size[1])
    whole = packed(input)
    assert whole.dtype == torch.float32
    torch.testing.assert_close(whole, PackedLinear(linear, is_packed=False)(input), **TOLERANCES[dtype])
    for num_rows in NUM_ROWS:
        assert torch.equal(packed(input[:num_rows]), whole[:num_rows])
        assert torch.equal(packed(input[-num_rows:]), whole[-num_rows:])


def tiny_model(*, is_tied: bool) -> Any:
    torch.manual_seed(0)
    sizes = {"vocab_size": 100, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    config = LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=is_tied)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def change_through_versions(model: Any) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)


def change_through_data(model: Any) -> None:
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.2)


def change_by_an_optimizer(model: Any) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.tensor([PROMPT]), labels=torch.tensor([PROMPT])).loss.backward()
    optimizer.step()
    optimizer.zero_grad()


async def assert_samples_the_model(engine: EmbeddedEngine, model: Any, prompt: list[int]) -> None:
    token_ids: list[int] = []
    log_probs: list[float] = []
    async for chunk in engine.generate("s", prompt, Sampling(seed=1), 20):
        token_ids += chunk.token_ids
        log_probs += chunk.log_probs
    with torch.no_grad():
        logits = model(torch.tensor([prompt + token_ids])).logits[0, len(prompt) - 1 : -1]
    wanted = logits.log_softmax(-1).gather(-1, torch.tensor(token_ids)[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(log_probs), wanted, atol=1e-4, rtol=0)


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("change", [change_through_versions, change_through_data, change_by_an_optimizer])
async def test_after_an_update_the_new_weights_are_sampled(change: Any, is_tied: bool) -> None:
    model = tiny_model(is_tied=is_tied)
    engine = EmbeddedEngine.on_model(model, EmbeddedOptions(kv_cache_tokens=512))
    for version in range(1, 4):
        await assert_samples_the_model(engine, model, PROMPT)
        with engine.paused():
            change(model)
            engine.weights_changed(version)
    await assert_samples_the_model(engine, model, PROMPT)
    await engine.close()


@pytest.mark.parametrize("change", [change_through_versions, change_by_an_optimizer])
async def test_an_update_that_nobody_told_of_is_sampled_too(change: Any) -> None:
    model = tiny_model(is_tied=True)
    engine = EmbeddedEngine.on_model(model, EmbeddedOptions(kv_cache_tokens=512))
    await assert_samples_the_model(engine, model, PROMPT)
    with engine.paused():
        change(model)
    # Another prompt: what the cache holds of the first is of the old weights.
    await assert_samples_the_model(engine, model, PROMPT[::-1])
    await engine.close()


def test_two_engines_on_one_model_each_see_an_update() -> None:
    model = tiny_model(is_tied=True)
    engines = [EmbeddedEngine.on_model(model, EmbeddedOptions(kv_cache_tokens=512)) for _ in range(2)]
    for engine in engines:
        asyncio.run(assert_samples_the_model(engine, model, PROMPT))
    change_through_data(model)
    for engine in engines:
        engine.weights_changed(1)
        asyncio.run(assert_samples_the_model(engine, model, PROMPT))
        asyncio.run(engine.close())
