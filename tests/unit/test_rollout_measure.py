"""Speeds that are known, found again: by trying an engine out, and from the record of a step."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from rstar2.engine import Chunk, EngineLoad, Sampling
from rstar2.errors import UserError
from rstar2.records import EngineSample, EngineUse, RunDirectory, StepRecord, StopReason
from rstar2.rollout.simulator import MeasurePlan, fit_run, measure
from rstar2.rollout.simulator.fit import Speeds, fit_speeds

pytestmark = pytest.mark.unit

SPEEDS = Speeds(step_s=0.005, sequence_s=0.0003, prefill_token_s=0.0002, cached_token_s=1e-6)


class VirtualEngine:
    """Decodes all turns together, a token a step, on a clock of its own that shows what each step costs."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._contexts: dict[str, int] = {}
        self._to_prefill = 0
        self._step = asyncio.Condition()
        self._stepper: asyncio.Task[None] | None = None

    def clock(self) -> float:
        return self.now_s

    async def generate(
        self,
        session: str,
        token_ids: Sequence[int],
        sampling: Sampling,  # noqa: ARG002
        max_tokens: int,
    ) -> AsyncIterator[Chunk]:
        self._contexts[session] = len(token_ids)
        self._to_prefill += len(token_ids)
        if self._stepper is None or self._stepper.done():
            self._stepper = asyncio.create_task(self._work())
        for number in range(max_tokens):
            async with self._step:
                await self._step.wait()
            self._contexts[session] += 1
            is_last = number == max_tokens - 1
            if is_last:
                del self._contexts[session]
            yield Chunk((0,), (0.0,), stop_reason=StopReason.TOKEN_LIMIT if is_last else None)

    async def _work(self) -> None:
        for _ in range(3):
            await asyncio.sleep(0)  # whoever was asked for at the same time arrives, too
        while self._contexts:
            num_seqs, num_cached = len(self._contexts), sum(self._contexts.values())
            self.now_s += SPEEDS.step_s + num_seqs * SPEEDS.sequence_s + self._to_prefill * SPEEDS.prefill_token_s
            self.now_s += num_cached * SPEEDS.cached_token_s
            self._to_prefill = 0
            async with self._step:
                self._step.notify_all()
            for _ in range(6):
                await asyncio.sleep(0)  # everyone takes their token

    def load(self) -> EngineLoad:
        return EngineLoad(16, 512, 512, 0, 0, 0, 0, 0, 0, 0)

    async def cancel(self, session: str) -> None: ...

    async def release(self, session: str) -> None: ...

    async def close(self) -> None: ...


async def test_what_an_engine_costs_is_found_by_trying_it_out() -> None:
    engine = VirtualEngine()
    plan = MeasurePlan(max_num_seqs=16, max_num_batched_tokens=4096, max_context_tokens=512, vocab_size=100)
    model = await asyncio.wait_for(measure(engine, plan, engine.clock), 240)
    assert model.num_cache_tokens == 8192
    assert model.overhead_s == pytest.approx(SPEEDS.step_s, rel=0.1)
    assert model.linear_token_s + model.sampled_token_s == pytest.approx(SPEEDS.sequence_s, rel=0.1)
    assert model.cached_token_s == pytest.approx(SPEEDS.cached_token_s, rel=0.1)
    assert model.linear_token_s == pytest.approx(SPEEDS.prefill_token_s, rel=0.1)


def record(num_samples: int) -> StepRecord:
    """An engine at work on more and more turns, sampled every half a second, then idle."""
    samples: list[EngineSample] = []
    at_s, num_prefilled, num_generated = 0.0, 0, 0
    for number in range(num_samples):
        num_running, kv_share, num_steps = 2 + 5 * number % 13, 0.1 * (number % 7), 40
        samples.append(EngineSample(at_s, "a", 2, num_running, 0, kv_share, num_prefilled, num_generated))
        samples.append(EngineSample(at_s, "b", 0, 0, 0, 0.0, 0, 0))
        num_new = 100 * (number % 3)
        at_s += num_steps * (SPEEDS.step_s + num_running * SPEEDS.sequence_s + 8192 * kv_share * SPEEDS.cached_token_s)
        at_s += num_new * SPEEDS.prefill_token_s
        num_prefilled += num_new
        num_generated += num_steps * num_running
        samples.append(EngineSample(at_s, "a", 2, num_running, 0, kv_share, num_prefilled, num_generated))
        samples.append(EngineSample(at_s, "a", 0, 0, 0, 0.0, num_prefilled, num_generated))
        at_s += 5.0
    uses = [EngineUse(name, 8192, 0, at_s, at_s, 0, 1, 1, 0, 0, 0, num_prefilled, num_generated) for name in "ab"]
    return StepRecord(4, 0, at_s, 9, 0, 0, 0, 9, 0, 0, 0, 0, 0, tuple(uses), "", (), tuple(samples))


def test_what_an_engine_costs_is_found_in_a_record_and_idle_time_is_left_out() -> None:
    speeds = fit_speeds([record(30)])
    assert speeds.step_s == pytest.approx(SPEEDS.step_s, rel=0.01)
    assert speeds.sequence_s == pytest.approx(SPEEDS.sequence_s, rel=0.01)
    assert speeds.prefill_token_s == pytest.approx(SPEEDS.prefill_token_s, rel=0.01)
    assert speeds.cached_token_s == pytest.approx(SPEEDS.cached_token_s, rel=0.01)


def test_a_run_directory_gives_its_engines(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path / "run", verb="train", recipe_toml="") as run:
        with pytest.raises(UserError, match="no record of what its engines did"):
            fit_run(tmp_path / "run")
        run.write_step_record(record(30))
    model = fit_run(tmp_path / "run")
    assert (model.num_cache_tokens, model.block_size) == (8192, 16)
    assert model.overhead_s == pytest.approx(SPEEDS.step_s, rel=0.01)


def test_too_short_a_step_says_so() -> None:
    with pytest.raises(UserError, match="take a longer step"):
        fit_speeds([record(3)])
