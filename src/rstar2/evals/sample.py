"""The few numbers of one trace that the metrics need, so that the trace itself need not stay in memory."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from rstar2.records import Outcome, Trace, Verdict
from rstar2.records.trace import FULL_REWARD, is_success
from rstar2.rollout.judge import DETAIL_WEIGHT_PREFIX, WEIGHT_KEY

BENCHMARK_KEY = "benchmark"
STAGE_KEY = "stage"
"""Keys of `Trace.metadata` that evaluation writes."""


@dataclass(frozen=True, slots=True)
class Sample:
    problem_id: str
    sample_index: int
    outcome: Outcome
    verdict: Verdict | None
    answer: str | None
    score: float | None
    """The reward. None for a sample that was lost through our fault or left undecided, which is left out and counted,
    and for one beyond its tree's budget, which does not count as a sample."""
    weight: float
    details: Mapping[str, tuple[float, float]]
    """Further scores by name, each with its weight in their mean."""
    num_response_tokens: int
    num_generated_tokens: int
    """Tokens sampled for this rollout, without those that it shares with its parent."""
    num_turns: int
    num_tool_calls: int
    """Calls that the model wrote."""
    num_own_calls: int
    """Calls that returned and did not fail through our fault. `num_tool_errors` counts among these."""
    num_tool_errors: int
    seconds: float
    success_threshold: float = FULL_REWARD

    @classmethod
    def of(cls, trace: Trace) -> Self:
        stored = trace.metadata
        num_own_calls, num_tool_errors = trace.own_calls
        return cls(
            problem_id=trace.problem_id,
            sample_index=trace.sample_index,
            outcome=trace.outcome,
            verdict=trace.verdict,
            answer=trace.answer,
            score=trace.reward,
            weight=float(stored.get(WEIGHT_KEY, 1.0)),
            details={
                name: (value, float(stored.get(f"{DETAIL_WEIGHT_PREFIX}{name}", 1.0)))
                for name, value in trace.score_parts.items()
            },
            num_response_tokens=trace.num_response_tokens,
            num_generated_tokens=trace.num_generated_tokens,
            num_turns=len(trace.turns),
            num_tool_calls=trace.num_tool_calls,
            num_own_calls=num_own_calls,
            num_tool_errors=num_tool_errors,
            seconds=sum(turn.queue_s + turn.generate_s + turn.tool_s for turn in trace.turns),
            success_threshold=trace.success_threshold,
        )

    @property
    def is_success(self) -> bool:
        """Whether selection counts the sample as a success; one without a score never is."""
        return self.score is not None and bool(is_success(self.verdict, self.score, self.success_threshold))

    @property
    def is_fault(self) -> bool:
        return self.outcome is Outcome.INFRASTRUCTURE_FAULT

    @property
    def is_beyond_budget(self) -> bool:
        return self.outcome is Outcome.BEYOND_BUDGET

    @property
    def is_undecided(self) -> bool:
        return self.score is None and self.outcome.is_scored
