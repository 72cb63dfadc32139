"""How fast a real engine is, measured through its public interface: for any `Engine`, the embedded one or a server's.

Decoding: the time of a step at several numbers of sequences n and context tokens c is fitted as `base + n * sequence_s
+ c * cached_token_s`. Prefill: the time of several prompts at once at several lengths is fitted as `fixed + tokens *
token_s + pairs * attention_pair_s`. The measurement is from a client's view, so it includes the engine's own scheduling
and the transport of tokens.
"""

import asyncio
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from rstar2.engine import Engine, Sampling
from rstar2.errors import UserError
from rstar2.rollout.simulator.fit import Speeds, engine_model
from rstar2.rollout.simulator.hardware import EngineModel

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class MeasurePlan:
    """The trials. Contexts that the cache cannot hold are left out."""

    max_num_seqs: int
    """How many turns the engine decodes at a time."""
    max_num_batched_tokens: int
    """How many prompt tokens the engine computes between two decode steps."""
    max_context_tokens: int
    vocab_size: int
    num_decode_steps: int = 64
    num_repeats: int = 3
    """Repeats of each trial; the median counts, since a busy machine is sometimes slower and never faster."""
    num_prefills: int = 4
    """How many prompts are prefilled at once."""


async def measure(engine: Engine, plan: MeasurePlan, clock: Clock = time.monotonic) -> EngineModel:
    """Measures an engine, which must have nothing else to do."""
    load = engine.load()
    num_cache_tokens = load.num_blocks * load.block_size
    if not num_cache_tokens:
        raise UserError("this engine does not say what its cache holds, so it cannot be measured")
    trials = _Trials(engine, plan, clock)
    await trials.decode(1, load.block_size)  # warms up what is made at first use
    base_s, sequence_s, cached_token_s = await _fit_decoding(trials, num_cache_tokens)
    token_s, attention_pair_s = await _fit_prefill(trials, num_cache_tokens)
    speeds = Speeds(base_s, sequence_s, token_s, cached_token_s)
    return engine_model(
        speeds,
        num_cache_tokens,
        plan.max_num_seqs,
        plan.max_num_batched_tokens,
        load.block_size,
        attention_pair_s,
    )


async def _fit_decoding(trials: "_Trials", num_cache_tokens: int) -> tuple[float, float, float]:
    plan = trials.plan
    counts = sorted({1, plan.max_num_seqs // 8, plan.max_num_seqs // 2, plan.max_num_seqs} - {0})
    rows: list[tuple[float, float, float]] = []
    times_s: list[float] = []
    for num_seqs in counts:
        longest = min(plan.max_context_tokens, num_cache_tokens // num_seqs) - plan.num_decode_steps - 32
        for num_prompt_tokens in sorted({16, longest // 2} if longest >= 64 else {16} if longest >= 16 else set()):
            times_s.append(await trials.decode(num_seqs, num_prompt_tokens))
            rows.append((1.0, num_seqs, num_seqs * (num_prompt_tokens + plan.num_decode_steps / 2)))
    base_s, sequence_s, cached_token_s = _fit(rows, times_s)
    return base_s, sequence_s, cached_token_s


async def _fit_prefill(trials: "_Trials", num_cache_tokens: int) -> tuple[float, float]:
    plan = trials.plan
    longest = min(plan.max_context_tokens - 1, num_cache_tokens // plan.num_prefills - 32)
    rows: list[tuple[float, float, float]] = []
    times_s: list[float] = []
    for num_prompt_tokens in sorted({max(2, longest // 8), max(3, longest // 2), max(4, longest)}):
        times_s.append(await trials.prefill(num_prompt_tokens))
        rows.append((1.0, plan.num_prefills * num_prompt_tokens, plan.num_prefills * num_prompt_tokens**2 / 2))
    _, token_s, attention_pair_s = _fit(rows, times_s)
    return token_s, attention_pair_s


def _fit(rows: list[tuple[float, float, float]], times_s: list[float]) -> tuple[float, float, float]:
    """Non-negative least squares of relative errors, so that short times count as much as long ones."""
    weights = 1 / np.array(times_s)
    solution, _ = nnls(np.array(rows) * weights[:, None], np.ones(len(rows)))
    return float(solution[0]), float(solution[1]), float(solution[2])


class _Trials:
    def __init__(self, engine: Engine, plan: MeasurePlan, clock: Clock) -> None:
        self.plan = plan
        self._engine = engine
        self._clock = clock
        self._rng = random.Random(0)
        self._num_turns = 0

    async def decode(self, num_seqs: int, num_prompt_tokens: int) -> float:
        """Seconds of one step, while this many sequences decode."""
        return statistics.median(
            [await self._decode(num_seqs, num_prompt_tokens) for _ in range(self.plan.num_repeats)]
        )

    async def prefill(self, num_prompt_tokens: int) -> float:
        """Seconds until several prompts, of which nothing is cached, have each brought one token."""
        times_s: list[float] = []
        for _ in range(self.plan.num_repeats):
            begin_s = self._clock()
            await asyncio.gather(*(self._turn(num_prompt_tokens, 1) for _ in range(self.plan.num_prefills)))
            times_s.append(self._clock() - begin_s)
        return statistics.median(times_s)

    async def _decode(self, num_seqs: int, num_prompt_tokens: int) -> float:
        """Seconds of one step, from the moment when every sequence has a token to the last token of all."""
        begin_s, num_begun, num_tokens, num_tokens_at_begin = 0.0, 0, 0, 0

        def see(num_new: int, is_first: bool) -> None:
            nonlocal begin_s, num_begun, num_tokens, num_tokens_at_begin
            num_begun += is_first
            num_tokens += num_new
            if is_first and num_begun == num_seqs:
                begin_s, num_tokens_at_begin = self._clock(), num_tokens

        num_steps = self.plan.num_decode_steps
        await asyncio.gather(*(self._turn(num_prompt_tokens, num_steps, see) for _ in range(num_seqs)))
        num_left = num_seqs * num_steps - num_tokens_at_begin
        return (self._clock() - begin_s) / (num_left / num_seqs)

    async def _turn(
        self, num_prompt_tokens: int, num_tokens: int, see: Callable[[int, bool], None] = lambda *_: None
    ) -> None:
        self._num_turns += 1
        session, is_first = f"measure-{self._num_turns}", True
        prompt = self._rng.choices(range(self.plan.vocab_size), k=num_prompt_tokens)
        async for chunk in self._engine.generate(session, prompt, Sampling(seed=self._num_turns), num_tokens):
            if chunk.token_ids:
                see(len(chunk.token_ids), is_first)
                is_first = False
        await self._engine.release(session)
