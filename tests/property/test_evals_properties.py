"""What holds for every set of samples."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rstar2.evals.interval import clustered_interval
from rstar2.evals.metrics import BenchmarkResult, measure, pass_at, scored_groups
from rstar2.evals.sample import Sample
from rstar2.evals.votes import majority_at_k
from rstar2.records import Outcome, Verdict

pytestmark = pytest.mark.property

NUM_PROBLEMS, NUM_SAMPLES = 5, 4


@st.composite
def samples(draw: st.DrawFn) -> list[Sample]:
    keys = draw(st.sets(st.tuples(st.integers(0, NUM_PROBLEMS - 1), st.integers(0, NUM_SAMPLES - 1)), max_size=20))
    return [_sample(str(problem), index, draw(st.sampled_from(("right", "wrong", "cut")))) for problem, index in keys]


def _sample(problem_id: str, index: int, kind: str) -> Sample:
    return Sample(
        problem_id=problem_id,
        sample_index=index,
        outcome=Outcome.TRUNCATED if kind == "cut" else Outcome.ANSWERED,
        verdict={"right": Verdict.RIGHT, "wrong": Verdict.WRONG, "cut": None}[kind],
        answer=None if kind == "cut" else str(index if kind == "wrong" else 77),
        score=float(kind == "right"),
        weight=1.0,
        details={},
        num_response_tokens=10,
        num_generated_tokens=10,
        num_turns=1,
        num_tool_calls=0,
        num_own_calls=0,
        num_tool_errors=0,
        seconds=0.0,
    )


def scores(result: BenchmarkResult) -> tuple[float | None, ...]:
    return result.accuracy, result.accuracy_low, result.accuracy_high, result.pass_at_k


@given(samples())
async def test_scores_are_shares_in_their_order(found: list[Sample]) -> None:
    voted = await majority_at_k(scored_groups(found), None)
    result = measure(found, NUM_PROBLEMS, NUM_SAMPLES, 0.0, voted)

    assert 0.0 <= result.accuracy_low <= result.accuracy <= result.accuracy_high <= 1.0
    assert list(result.pass_at.values()) == sorted(result.pass_at.values())
    assert result.majority_at_k is not None
    assert result.majority_at_k <= result.pass_at_k + 1e-12
    assert result.num_missing + len(found) == NUM_PROBLEMS * NUM_SAMPLES


@given(samples(), st.lists(st.booleans(), max_size=5))
def test_what_was_not_judged_changes_no_score(found: list[Sample], extra: list[bool]) -> None:
    unjudged = [
        replace(
            _sample(str(number), 99, "right"),
            outcome=Outcome.INFRASTRUCTURE_FAULT if is_lost else Outcome.ANSWERED,
            verdict=None if is_lost else Verdict.UNDECIDED,
            score=None,
        )
        for number, is_lost in enumerate(extra)
    ]
    judged, both = (measure(each, NUM_PROBLEMS, NUM_SAMPLES, 0.0) for each in (found, found + unjudged))
    assert scores(judged) == scores(both)
    assert both.accuracy_undecided_wrong <= both.accuracy
    assert (both.num_faults, both.num_undecided) == (sum(extra), len(extra) - sum(extra))


@given(st.integers(1, 64), st.data())
def test_more_draws_never_hurt(num_samples: int, data: st.DataObject) -> None:
    num_right = data.draw(st.integers(0, num_samples))
    values = [pass_at(num_samples, num_right, k) for k in range(1, num_samples + 1)]
    assert values == sorted(values)
    assert values[0] == pytest.approx(num_right / num_samples)
    assert values[-1] == float(num_right > 0)


@given(
    st.lists(st.lists(st.tuples(st.floats(0, 1), st.floats(0.5, 6)), min_size=1, max_size=4), min_size=1, max_size=8)
)
def test_an_interval_holds_its_mean(clusters: list[list[tuple[float, float]]]) -> None:
    low, high = clustered_interval(clusters)
    total = sum(weight for cluster in clusters for _, weight in cluster)
    mean = sum(score * weight for cluster in clusters for score, weight in cluster) / total
    assert 0.0 <= low <= mean + 1e-9
    assert mean - 1e-9 <= high <= 1.0
