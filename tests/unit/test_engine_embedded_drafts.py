"""Guessed tokens: where they come from, and that no bit of what is sampled depends on them."""

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from rstar2.engine import Chunk, Sampling
from rstar2.engine.embedded import EmbeddedEngine, EmbeddedOptions
from rstar2.engine.embedded import runner as module
from rstar2.engine.embedded.drafts import Draft, guess_next, make_drafts
from rstar2.engine.embedded.scheduler import EngineSequence

pytestmark = pytest.mark.unit

PERIOD = [7, 3, 9, 4, 1, 8, 2, 6, 5]


@pytest.mark.parametrize(
    ("token_ids", "num_tokens", "guess"),
    [
        ([1, 2, 3, 4, 1, 2], 3, [3, 4, 1]),
        ([1, 2, 3, 4, 1, 2], 1, [3]),
        ([1, 2, 5, 9, 2, 6, 1, 2], 2, [5, 9]),  # two ids in common are better than a later place with one
        ([1, 2, 5, 3, 2, 6, 4, 2], 2, [6, 4]),  # else the last place with one
        ([1, 2, 5, 1, 2, 6, 1, 2], 2, [6, 1]),  # of several places the last
        ([4, 4], 3, [4]),
        ([1, 2, 3], 3, []),
        ([1], 3, []),
        ([1, 2, 1], 0, []),
        ([1, 2, 1], -5, []),
    ],
)
def test_a_guess_is_what_followed_before(token_ids: list[int], num_tokens: int, guess: list[int]) -> None:
    assert guess_next(token_ids, num_tokens) == guess


def test_drafts_fill_the_rows_that_are_left_and_stay_in_the_cache() -> None:
    def sequence(num_blocks: int, max_total_tokens: int) -> EngineSequence:
        return EngineSequence([1, 2, 3, 4, 1, 2], max_total_tokens, blocks=list(range(num_blocks)))

    roomy, no_block, at_its_end = sequence(2, 20), sequence(1, 20), sequence(2, 7)
    assert make_drafts([roomy], 4, block_size=6) == [Draft(0, 1, [3, 4, 1])]
    assert make_drafts([roomy, roomy], 4, block_size=6) == [Draft(0, 2, [3, 4])]
    assert make_drafts([no_block, at_its_end, roomy], 4, block_size=6) == [Draft(2, 3, [3])]
    assert make_drafts([roomy] * 4, 4, block_size=6) == []
    assert make_drafts([sequence(2, 9)], 4, block_size=6) == [Draft(0, 1, [3, 4])]


def copying_model() -> Any:
    """It mostly says the successor of the last token in a circle of ids."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 10, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256}
    model = AutoModelForCausalLM.from_config(LlamaConfig(**sizes, **heads), dtype=torch.float32)
    with torch.no_grad():
        embedding = torch.randn(10, 32)
        model.get_input_embeddings().weight.copy_(embedding)
        for number, token_id in enumerate(PERIOD):
            model.get_output_embeddings().weight[PERIOD[(number + 1) % len(PERIOD)]] = embedding[token_id] * 0.15
    return model


async def turn(model: Any, sampling: Sampling, max_tokens: int) -> list[Chunk]:
    engine = EmbeddedEngine.on_model(model, EmbeddedOptions(kv_cache_tokens=512))
    try:
        return [chunk async for chunk in engine.generate("s", PERIOD * 8, sampling, max_tokens)]
    finally:
        await engine.close()


def values_of(chunks: list[Chunk]) -> list[tuple[int, float, float]]:
    return [value for chunk in chunks for value in zip(chunk.token_ids, chunk.log_probs, chunk.entropies, strict=True)]


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 61])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_right_guesses_save_passes_and_change_no_bit(
    monkeypatch: pytest.MonkeyPatch, temperature: float, max_tokens: int
) -> None:
    model = copying_model()
    sampling = Sampling(temperature=temperature, seed=3, entropies=True)
    guessed = await turn(model, sampling, max_tokens)
    monkeypatch.setattr(module, "make_drafts", lambda *_: [])
    plain = await turn(model, sampling, max_tokens)
    assert values_of(guessed) == values_of(plain)
    assert guessed[-1].stop_reason is plain[-1].stop_reason
    assert len(plain) == max_tokens
    assert max_tokens < 60 or len(guessed) < 50


async def test_a_guessed_stop_token_ends_the_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    model = copying_model()
    sampling = Sampling(temperature=0.0, stop_token_ids=(PERIOD[5],), entropies=True)
    guessed = await turn(model, sampling, 40)
    monkeypatch.setattr(module, "make_drafts", lambda *_: [])
    plain = await turn(model, sampling, 40)
    assert values_of(guessed) == values_of(plain)
    assert guessed[-1].stop_reason is plain[-1].stop_reason
