"""Measures benchmarks: every problem is rolled out as often as the settings ask, and lost rollouts are retried.

Invariant: a sample that an earlier attempt finished is counted and not repeated; every trace is handed on before it is
counted; a rollout that was lost through our fault is retried and never scored.
"""

import time
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rstar2.evals.metrics import BenchmarkResult, measure, scored_groups
from rstar2.evals.sample import BENCHMARK_KEY, STAGE_KEY, Sample
from rstar2.evals.settings import EvalSettings
from rstar2.evals.votes import Same, majority_at_k
from rstar2.records import Problem, Trace
from rstar2.rollout.request import RolloutRequest, Rolls

NUM_FAULT_ROUNDS = 2
"""How often the rollouts of a benchmark that were lost through our fault are retried, all together."""


@dataclass(frozen=True, slots=True)
class SampleKey:
    """The problem and the number of the sample that a trace belongs to."""

    benchmark: str
    problem_id: str
    sample_index: int

    @classmethod
    def of(cls, trace: Trace) -> "SampleKey":
        return cls(trace.metadata[BENCHMARK_KEY], trace.problem_id, trace.sample_index)


async def evaluate(
    roller: Rolls,
    problems_by_benchmark: Mapping[str, Sequence[Problem]],
    settings: EvalSettings,
    *,
    step: int = 0,
    stage: str = "eval",
    seed: int = 0,
    on_trace: Callable[[Trace], None] = lambda _trace: None,
    history: "History | None" = None,
    same: Same | None = None,
) -> dict[str, BenchmarkResult]:
    """Measure one benchmark after the other. `on_trace` gets every trace that is made here, including those of rollouts
    that are retried. `history` has the samples of an interrupted evaluation, which count and are not repeated. `same`
    compares votes by computer algebra; without it there may be no majority."""
    history = History() if history is None else history
    if settings.tree is not None:
        history.forget_torn_trees(problems_by_benchmark, settings.num_samples)
    results = {}
    for name, problems in problems_by_benchmark.items():
        assert len({problem.id for problem in problems}) == len(problems), f"{name}: problem ids must be unique"
        started_s = time.monotonic()
        labels = {BENCHMARK_KEY: name, STAGE_KEY: stage}

        def hand_on(trace: Trace, labels: Mapping[str, str] = labels) -> None:
            labelled = replace(trace, metadata={**trace.metadata, **labels})
            on_trace(labelled)
            history.add(labelled)

        # The first sample of every problem, then the second: an interrupted evaluation has seen every problem.
        keys = [
            (SampleKey(name, problem.id, index), problem)
            for index in range(settings.num_samples)
            for problem in problems
        ]
        for _ in range(NUM_FAULT_ROUNDS + 1):
            open_keys = [(key, problem) for key, problem in keys if history.is_open(key)]
            if open_keys:
                requests = [
                    replace(_request(key, problem, step, stage, seed, history.num_attempts[key]), tree=settings.tree)
                    for key, problem in open_keys
                ]
                await roller.run(requests, settings.limits, settings.sampling, hand_on)
        seconds = time.monotonic() - started_s
        results[name] = await history.measure(name, problems, settings.num_samples, same, seconds)
    return results


def _request(key: SampleKey, problem: Problem, step: int, stage: str, seed: int, num_attempts: int) -> RolloutRequest:
    group_id = f"{stage}/{step}/{key.benchmark}/{problem.id}"
    return RolloutRequest(
        problem=problem,
        trace_id=f"{group_id}/{key.sample_index}" + (f"/retry-{num_attempts}" if num_attempts else ""),
        group_id=group_id,
        sample_index=key.sample_index,
        step=step,
        stage=stage,
        seed=zlib.crc32(f"{seed}/eval/{key.benchmark}/{problem.id}/{key.sample_index}".encode()),
    )


@dataclass(frozen=True, slots=True)
class History:
    """The history of each sample: its result, and how often it was tried."""

    samples: dict[SampleKey, Sample] = field(default_factory=dict)
    num_attempts: Counter[SampleKey] = field(default_factory=Counter)

    def add(self, trace: Trace) -> None:
        """Adds a trace. The last trace of a sample counts, but one that was lost through our fault replaces no
        other."""
        key, sample = SampleKey.of(trace), Sample.of(trace)
        self.num_attempts[key] += 1
        if key not in self.samples or not sample.is_fault:
            self.samples[key] = sample

    def is_open(self, key: SampleKey) -> bool:
        sample = self.samples.get(key)
        return sample is None or sample.is_fault

    def forget_torn_trees(self, problems_by_benchmark: Mapping[str, Sequence[Problem]], num_samples: int) -> None:
        """Forgets incomplete trees. A tree's fork points depend on its other leaves, so it is complete or sampled
        again."""
        for name, problems in problems_by_benchmark.items():
            for problem in problems:
                keys = [SampleKey(name, problem.id, index) for index in range(num_samples)]
                if any(key not in self.samples for key in keys):
                    for key in keys:
                        self.samples.pop(key, None)

    def of_benchmark(self, name: str, problems: Sequence[Problem], num_samples: int) -> list[Sample]:
        """The samples of a benchmark that exist so far."""
        keys = (SampleKey(name, problem.id, index) for problem in problems for index in range(num_samples))
        return [self.samples[key] for key in keys if key in self.samples]

    async def measure(
        self, name: str, problems: Sequence[Problem], num_samples: int, same: Same | None, seconds: float = 0.0
    ) -> BenchmarkResult:
        samples = self.of_benchmark(name, problems, num_samples)
        voted = await majority_at_k(scored_groups(samples), same)
        return measure(samples, len(problems), num_samples, seconds, voted)
