"""The embedded engine says how likely given tokens are, as the model itself does, while turns run beside it."""

import asyncio
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from rstar2.engine import Sampling
from rstar2.engine.embedded import EmbeddedEngine, EmbeddedOptions
from rstar2.errors import UserError
from rstar2.models.tiny import TinySizes, build_tiny

pytestmark = pytest.mark.unit

SIZES = TinySizes(2, 16, 2, 1, 400, 64)
IDS = [(7 * number) % 390 + 5 for number in range(40)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny"
    build_tiny(path, "qwen3", SIZES, ["some words"], seed=0)
    return path


def engine_on(folder: Path, **options: int) -> EmbeddedEngine:
    return EmbeddedEngine.from_folder(folder, EmbeddedOptions(**options), device="cpu")


@pytest.mark.parametrize("temperature", [1.0, 0.7])
async def test_scores_are_those_of_the_model_however_the_prompt_is_chunked(folder: Path, temperature: float) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor([IDS])).logits[0] / temperature
    expected = logits.log_softmax(-1)
    engine = engine_on(folder, max_prefill_tokens=7)
    try:
        for start in (1, 9, len(IDS) - 1, len(IDS)):
            scores = await engine.score(IDS, start, 3, temperature)
            rows = range(start - 1, len(IDS) - 1)
            wanted = [float(expected[row, IDS[row + 1]]) for row in rows]
            assert scores.log_probs == pytest.approx(wanted, abs=1e-4)
            assert [[token_id for token_id, _ in top] for top in scores.top] == [
                expected[row].topk(3).indices.tolist() for row in rows
            ]
    finally:
        await engine.close()


async def all_blocks_are_free(engine: EmbeddedEngine) -> None:
    """The engine's thread reports its load after the step whose result the caller has."""
    async with asyncio.timeout(240):
        while engine.load().num_free_blocks != engine.load().num_blocks:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_turns_run_beside_it_and_all_blocks_come_back(folder: Path) -> None:
    engine = engine_on(folder, max_prefill_tokens=8, kv_cache_tokens=128)
    try:
        alone = await engine.score(IDS, 1, 1)

        async def turn(number: int) -> int:
            sampling = Sampling(seed=number)
            return sum([len(chunk.token_ids) async for chunk in engine.generate(f"s{number}", IDS[:9], sampling, 20)])

        results = await asyncio.gather(*map(turn, range(6)), *(engine.score(IDS, 1, 1) for _ in range(6)))
        assert results == [20] * 6 + [alone] * 6
        await all_blocks_are_free(engine)
    finally:
        await engine.close()


async def test_a_caller_that_leaves_frees_its_place(folder: Path) -> None:
    engine = engine_on(folder, max_prefill_tokens=4)
    try:
        waiting = [asyncio.ensure_future(engine.score(IDS, 1, 0)) for _ in range(4)]
        await asyncio.sleep(0)
        for task in waiting[:3]:
            task.cancel()
        assert len((await waiting[3]).log_probs) == len(IDS) - 1
        await all_blocks_are_free(engine)
    finally:
        await engine.close()


async def test_a_mistake_is_named(folder: Path) -> None:
    engine = engine_on(folder)
    try:
        with pytest.raises(UserError, match="start"):
            await engine.score(IDS, 0, 1)
        with pytest.raises(UserError, match="context"):
            await engine.score(IDS * 100, 1, 1)
    finally:
        await engine.close()
