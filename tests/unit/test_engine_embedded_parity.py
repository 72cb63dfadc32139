"""Token for token what `transformers` makes, for each architecture, on tiny random models."""

import asyncio
from copy import deepcopy
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

from rstar2.engine import Sampling
from rstar2.engine.embedded import EmbeddedEngine, EmbeddedOptions

pytestmark = pytest.mark.unit

VOCAB_SIZE = 300
NUM_PROMPTS = 50
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
CONFIGS = {
    "llama": LlamaConfig(num_attention_heads=6, num_key_value_heads=2, hidden_size=96, tie_word_embeddings=True),
    "llama with biases and scaled positions": LlamaConfig(
        num_attention_heads=4, num_key_value_heads=4, hidden_size=64, attention_bias=True, mlp_bias=True,
        rope_parameters=LLAMA3_ROPE,
    ),
    "qwen2": Qwen2Config(num_attention_heads=4, num_key_value_heads=1, hidden_size=64),
    "qwen3": Qwen3Config(num_attention_heads=4, num_key_value_heads=2, hidden_size=64, head_dim=32),
}  # fmt: skip


def tiny_model(name: str) -> Any:
    torch.manual_seed(0)
    config = CONFIGS[name]
    config.vocab_size, config.intermediate_size, config.num_hidden_layers = VOCAB_SIZE, 80, 2
    config.max_position_embeddings = 256
    config.layer_types = ["full_attention"] * 2
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # norms and biases are all ones and zeros otherwise
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(1, 70, (NUM_PROMPTS,), generator=generator).tolist()
    return [torch.randint(0, VOCAB_SIZE, (length,), generator=generator).tolist() for length in lengths]


async def turn(engine: EmbeddedEngine, session: str, ids: list[int], sampling: Sampling) -> tuple[Any, Any, Any]:
    token_ids: list[int] = []
    log_probs: list[float] = []
    entropies: list[float] = []
    async for chunk in engine.generate(session, ids, sampling, 16):
        token_ids += chunk.token_ids
        log_probs += chunk.log_probs
        entropies += chunk.entropies
    return token_ids, log_probs, entropies


@pytest.mark.parametrize("steps_ahead", [1, 5])
@pytest.mark.parametrize("name", CONFIGS)
async def test_greedy_tokens_are_those_of_transformers(name: str, steps_ahead: int) -> None:
    model = tiny_model(name)
    options = EmbeddedOptions(kv_cache_tokens=1024, max_running=12, max_prefill_tokens=40, steps_ahead=steps_ahead)
    engine = EmbeddedEngine.on_model(model, options)
    all_ids = prompts()
    made = await asyncio.gather(*(turn(engine, str(n), ids, Sampling(temperature=0)) for n, ids in enumerate(all_ids)))
    await engine.close()
    for ids, (token_ids, _, _) in zip(all_ids, made, strict=True):
        # Each token is the likeliest after those before it: by induction these are the greedy tokens.
        with torch.no_grad():
            logits = model(torch.tensor([ids + token_ids])).logits[0, len(ids) - 1 : -1]
        assert token_ids == logits.argmax(-1).tolist()
        assert len(token_ids) == 16


@pytest.mark.parametrize("name", CONFIGS)
async def test_log_probs_and_entropies_are_those_of_a_forward_pass(name: str) -> None:
    model = tiny_model(name)
    engine = EmbeddedEngine.on_model(model, EmbeddedOptions(kv_cache_tokens=1024, max_prefill_tokens=40))
    all_ids = prompts()[:20]
    samplings = [Sampling(temperature=0.7, seed=n, entropies=True) for n in range(20)]
    pairs = list(zip(all_ids, samplings, strict=True))
    made = await asyncio.gather(*(turn(engine, str(n), *pair) for n, pair in enumerate(pairs)))
    await engine.close()
    for ids, (token_ids, log_probs, entropies) in zip(all_ids, made, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([ids + token_ids])).logits[0, len(ids) - 1 : -1]
        wanted = (logits / 0.7).log_softmax(-1)
        drawn = wanted.gather(-1, torch.tensor(token_ids)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(log_probs), drawn, atol=1e-4, rtol=0)
        torch.testing.assert_close(torch.tensor(entropies), torch.special.entr(wanted.exp()).sum(-1), atol=1e-4, rtol=0)


async def test_in_bfloat16_a_cpu_is_as_near_to_exact_weights_as_transformers() -> None:
    exact = tiny_model("llama")
    model = deepcopy(exact).bfloat16()
    engine = EmbeddedEngine.on_model(model, EmbeddedOptions(kv_cache_tokens=1024))
    all_ids = prompts()
    made = await asyncio.gather(*(turn(engine, str(n), ids, Sampling(seed=n)) for n, ids in enumerate(all_ids)))
    await engine.close()
    ours: list[torch.Tensor] = []
    theirs: list[torch.Tensor] = []
    for ids, (token_ids, log_probs, _) in zip(all_ids, made, strict=True):
        values = []
        for each in (exact, model):
            with torch.no_grad():
                logits = each(torch.tensor([ids + token_ids])).logits[0, len(ids) - 1 : -1].float()
            values.append(logits.log_softmax(-1).gather(-1, torch.tensor(token_ids)[:, None])[:, 0])
        ours.append((torch.tensor(log_probs) - values[0]).abs())
        theirs.append((values[1] - values[0]).abs())
    assert 0 < torch.cat(ours).mean() <= torch.cat(theirs).mean()
    assert torch.cat(theirs).mean() < 0.1
