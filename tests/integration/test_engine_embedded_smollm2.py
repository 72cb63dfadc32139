"""SmolLM2 itself: greedy tokens are the likeliest of a `transformers` pass over them, log-probabilities those of it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import torch

from rstar2.engine import Sampling
from rstar2.engine.embedded import EmbeddedEngine, EmbeddedOptions

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

NUM_TOKENS = 12
SUBJECTS = (
    "the sea",
    "a prime number",
    "Paris",
    "a sorted list",
    "the moon",
    "bread",
    "a triangle",
    "rain",
    "music",
    "7",
)
OPENINGS = ("Tell me about {}.", "What is {}?", "Write a line of Python about {}", "{} and", "I think that {} is")
PROMPTS = [opening.format(subject) for subject in SUBJECTS for opening in OPENINGS]


@pytest.fixture
async def engine(smollm2: Path) -> AsyncIterator[EmbeddedEngine]:
    engine = EmbeddedEngine.from_folder(smollm2, EmbeddedOptions(max_context_tokens=256), device="cpu")
    yield engine
    await engine.close()


async def turn(engine: EmbeddedEngine, session: str, ids: list[int], sampling: Sampling) -> tuple[Any, Any]:
    token_ids: list[int] = []
    log_probs: list[float] = []
    async for chunk in engine.generate(session, ids, sampling, NUM_TOKENS):
        token_ids += chunk.token_ids
        log_probs += chunk.log_probs
    return token_ids, log_probs


async def test_greedy_tokens_of_fifty_prompts_and_sampled_log_probs(engine: EmbeddedEngine, smollm2: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(smollm2)
    all_ids = [tokenizer.encode(prompt) for prompt in PROMPTS]
    assert len(all_ids) == 50
    made = await asyncio.gather(*(turn(engine, str(n), ids, Sampling(temperature=0)) for n, ids in enumerate(all_ids)))
    model = engine.model
    for ids, (token_ids, _) in zip(all_ids, made, strict=True):
        with torch.inference_mode():
            logits = model(torch.tensor([ids + token_ids])).logits[0, len(ids) - 1 : -1]
        assert token_ids == logits.argmax(-1).tolist()
    sampled = await asyncio.gather(
        *(turn(engine, str(n), ids, Sampling(temperature=1.0, seed=n)) for n, ids in enumerate(all_ids[:10]))
    )
    for ids, (token_ids, log_probs) in zip(all_ids, sampled, strict=False):
        with torch.inference_mode():
            logits = model(torch.tensor([ids + token_ids])).logits[0, len(ids) - 1 : -1]
        wanted = logits.log_softmax(-1).gather(-1, torch.tensor(token_ids)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(log_probs), wanted, atol=1e-4, rtol=0)
