"""Computes the numbers of a benchmark from its samples. Pure.

Invariant: a sample that was lost through our fault or could not be decided is in no score. It is counted, every share
is over the decided samples, and a second score shows what the first would be if all undecided samples were wrong.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rstar2.evals.interval import clustered_interval
from rstar2.evals.sample import Sample
from rstar2.records import Outcome, Verdict


@dataclass(frozen=True, slots=True)
class BenchmarkResult:
    """The numbers of one benchmark. Scores are shares in 0 to 1. If nothing was decided, they are 0 and the interval is
    0 to 1."""

    num_problems: int
    num_samples: int
    """Samples requested of each problem: the k of avg@k. Trees with a budget of tokens may have fewer."""
    num_scored: int
    """Samples that have a score."""
    num_undecided: int
    num_faults: int
    """Samples that were still lost after every retry."""
    num_missing: int
    """Samples that were requested and are missing, because the evaluation was interrupted."""
    accuracy: float
    """avg@k: the mean score of all samples."""
    accuracy_low: float
    accuracy_high: float
    """The bounds of the 95% interval of `accuracy`, as `rstar2.evals.interval` computes it."""
    accuracy_undecided_wrong: float
    """`accuracy` if every undecided sample were wrong: no verdict on them could make it less."""
    pass_at_k: float
    majority_at_k: float | None
    """The share of problems whose most frequent answer is right. None if samples have no answers to vote with
    (instructions, function calls, judged responses), and in training also if only computer algebra could compare
    votes."""
    pass_at: dict[int, float]
    """Unbiased pass@n for n = 1, 2, 4, ... up to `num_samples`."""
    mean_response_tokens: float
    mean_generated_tokens: float
    """The mean number of tokens sampled for a problem; those that the leaves of a tree share count once."""
    mean_turns: float
    mean_tool_calls: float
    tool_error_share: float
    """The share of tool calls that failed through the model's own fault, among those that did not fail through ours."""
    truncated_share: float
    turn_limit_share: float
    no_answer_share: float
    seconds: float
    """Wall-clock time of this benchmark in this process, without that of an interrupted earlier one."""
    mean_rollout_seconds: float
    details: dict[str, float] = field(default_factory=dict)
    """Further scores of the benchmark itself, each the weighted mean over the samples that have it."""

    @property
    def is_complete(self) -> bool:
        return not (self.num_undecided or self.num_faults or self.num_missing)


def measure(
    samples: Iterable[Sample], num_problems: int, num_samples: int, seconds: float, majority_at_k: float | None = None
) -> BenchmarkResult:
    """The result of a benchmark. `samples` has at most one for each problem and index."""
    everything = list(samples)
    sampled = [sample for sample in everything if not sample.is_beyond_budget]
    ended = [sample for sample in sampled if not sample.is_fault]
    undecided = [sample for sample in ended if sample.is_undecided]
    groups = scored_groups(ended)
    scored = [sample for group in groups for sample in group]
    scores = [(_score(sample), sample.weight) for sample in scored]
    clusters = [[(_score(sample), sample.weight) for sample in group] for group in groups]
    low, high = clustered_interval(clusters)
    num_own_calls = sum(sample.num_own_calls for sample in ended)
    powers = [1 << exponent for exponent in range(num_samples.bit_length())]
    return BenchmarkResult(
        num_problems=num_problems,
        num_samples=num_samples,
        num_scored=len(scored),
        num_undecided=len(undecided),
        num_faults=len(sampled) - len(ended),
        num_missing=num_problems * num_samples - len(everything),
        accuracy=_weighted_mean(scores),
        accuracy_low=low,
        accuracy_high=high,
        accuracy_undecided_wrong=_weighted_mean([*scores, *((0.0, sample.weight) for sample in undecided)]),
        pass_at_k=_mean([_pass_at(group, num_samples) for group in groups]),
        majority_at_k=majority_at_k,
        pass_at={k: _mean([_pass_at(group, k) for group in groups]) for k in powers},
        mean_response_tokens=_mean([sample.num_response_tokens for sample in ended]),
        mean_generated_tokens=sum(sample.num_generated_tokens for sample in sampled) / max(1, num_problems),
        mean_turns=_mean([sample.num_turns for sample in ended]),
        mean_tool_calls=_mean([sample.num_tool_calls for sample in ended]),
        tool_error_share=sum(sample.num_tool_errors for sample in ended) / num_own_calls if num_own_calls else 0.0,
        truncated_share=_mean([sample.outcome is Outcome.TRUNCATED for sample in ended]),
        turn_limit_share=_mean([sample.outcome is Outcome.TURN_LIMIT for sample in ended]),
        no_answer_share=_mean([sample.verdict is Verdict.NO_ANSWER for sample in ended]),
        seconds=seconds,
        mean_rollout_seconds=_mean([sample.seconds for sample in ended]),
        details=_details(scored),
    )


def pass_at(num_samples: int, num_right: int, k: int) -> float:
    """The chance that at least one of k is right, drawn without replacement from the samples: unbiased."""
    assert 0 <= num_right <= num_samples >= k > 0
    return 1.0 - math.comb(num_samples - num_right, k) / math.comb(num_samples, k)


def _pass_at(group: Sequence[Sample], k: int) -> float:
    """pass@k of one problem. If it has fewer than k decided samples, k is their number."""
    num_right = sum(sample.is_success for sample in group)
    return pass_at(len(group), num_right, min(k, len(group)))


def _details(samples: Sequence[Sample]) -> dict[str, float]:
    found: dict[str, list[tuple[float, float]]] = {}
    for sample in samples:
        for name, weighted in sample.details.items():
            found.setdefault(name, []).append(weighted)
    return {name: _weighted_mean(values) for name, values in sorted(found.items())}


def scored_groups(samples: Iterable[Sample]) -> list[list[Sample]]:
    """The samples that have a score, problem by problem."""
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        if sample.score is not None and not sample.is_fault:
            groups.setdefault(sample.problem_id, []).append(sample)
    return list(groups.values())


def _score(sample: Sample) -> float:
    assert sample.score is not None
    return sample.score


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0


def _weighted_mean(values: Sequence[tuple[float, float]]) -> float:
    total = math.fsum(weight for _, weight in values)
    return math.fsum(value * weight for value, weight in values) / total if total else 0.0
