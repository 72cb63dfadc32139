"""The speeds of the engines of a real step, fitted to its record.

Two samples of a busy engine give the steps, decoded tokens, prefilled tokens and cached tokens read in between. The
cost of each is fitted to the time that passed, over all such intervals together. So the speeds are those of the run
itself, with whatever else the machine had to do.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

from rstar2.errors import UserError
from rstar2.records import EngineSample, RunView, StepRecord
from rstar2.rollout.simulator.hardware import EngineModel

MIN_INTERVAL_S = 0.25
"""Samples are some hundredths of a second old when they are taken, which would dominate shorter intervals."""
MIN_INTERVALS = 8
MAX_NUM_BATCHED_TOKENS = 8192
BLOCK_SIZE = 16
"""These two are not in the records: the defaults of vLLM under verl."""


@dataclass(frozen=True, slots=True)
class Speeds:
    """Costs in seconds."""

    step_s: float
    sequence_s: float
    """The cost of a decoded token."""
    prefill_token_s: float
    cached_token_s: float
    """The cost, in each step, of a token of a running turn's context."""


def engine_model(
    speeds: Speeds,
    num_cache_tokens: int,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    block_size: int,
    attention_pair_s: float = 0.0,
) -> EngineModel:
    """An engine whose steps cost the sum of these speeds."""
    return EngineModel(
        num_cache_tokens=num_cache_tokens,
        weights_s=0.0,
        linear_token_s=speeds.prefill_token_s,
        cached_token_s=speeds.cached_token_s,
        attention_pair_s=attention_pair_s,
        overhead_s=speeds.step_s,
        sampled_token_s=speeds.sequence_s - speeds.prefill_token_s,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        block_size=block_size,
    )


def fit_run(run: Path, step: int | None = None) -> EngineModel:
    """The engine model fitted to one recorded step of a run directory, by default to the last."""
    view = RunView(run)
    steps = view.schedule_steps()
    if not steps:
        raise UserError(f"{run} has no record of what its engines did")
    record = list(view.step_records(steps[-1] if step is None else step))[-1]
    num_cache_tokens = min((use.num_cache_tokens for use in record.engines), default=0)
    if not num_cache_tokens:
        raise UserError(f"{run} does not say what its engines' caches hold")
    num_turns = max(sample.num_running for sample in record.samples)
    return engine_model(fit_speeds([record]), num_cache_tokens, max(num_turns, 1), MAX_NUM_BATCHED_TOKENS, BLOCK_SIZE)


def fit_speeds(records: Iterable[StepRecord]) -> Speeds:
    """The speeds of the engines, which are assumed to be equal."""
    rows: list[tuple[float, float, float, float]] = []
    times_s: list[float] = []
    for record in records:
        for use in record.engines:
            samples = [sample for sample in record.samples if sample.engine == use.engine]
            for interval in _busy_intervals(samples):
                rows.append(_work(interval, use.num_cache_tokens))
                times_s.append(interval[-1].at_s - interval[0].at_s)
    if len(times_s) < MIN_INTERVALS:
        raise UserError(
            f"the record shows engines at work in {len(times_s)} intervals of {MIN_INTERVAL_S} s, and {MIN_INTERVALS} "
            f"are needed to tell how fast they are: take a longer step"
        )
    work, time_s = np.array(rows), np.array(times_s)
    scale = np.maximum(work.max(axis=0), 1e-12)
    solution, _ = nnls(work / scale, time_s)
    costs = solution / scale
    costs *= time_s.sum() / (work @ costs).sum()
    return Speeds(*(float(cost) for cost in costs))


def _busy_intervals(samples: Sequence[EngineSample]) -> Iterator[list[EngineSample]]:
    """Runs of samples that span `MIN_INTERVAL_S`, at each of which the engine has running turns."""
    interval: list[EngineSample] = []
    for sample in samples:
        interval = [*interval, sample] if sample.num_running else []
        if interval and sample.at_s - interval[0].at_s >= MIN_INTERVAL_S:
            yield interval
            interval = [sample]


def _work(interval: Sequence[EngineSample], num_cache_tokens: int) -> tuple[float, float, float, float]:
    """Steps, decoded tokens, prefilled tokens, and cached tokens read. Each running sequence gets a token a step."""
    num_steps = num_read = 0.0
    for earlier, later in pairwise(interval):
        steps = (
            2 * (later.num_generated_tokens - earlier.num_generated_tokens) / (earlier.num_running + later.num_running)
        )
        num_steps += steps
        num_read += steps * num_cache_tokens * (earlier.kv_share + later.kv_share) / 2
    first, last = interval[0], interval[-1]
    num_decoded = last.num_generated_tokens - first.num_generated_tokens
    return num_steps, num_decoded, last.num_prefill_tokens - first.num_prefill_tokens, num_read
