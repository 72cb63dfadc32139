"""Scores, votes and intervals on samples whose numbers are known."""

import random
from dataclasses import replace
from itertools import combinations
from statistics import fmean

import pytest
from eval_samples import BEYOND_BUDGET, LOST, RIGHT, TRUNCATED, UNDECIDED, of_problem, wrong

from rstar2.evals.interval import clustered_interval, wilson
from rstar2.evals.metrics import measure, pass_at
from rstar2.evals.session import result_as_json
from rstar2.evals.settings import REPORT, EvalSettings
from rstar2.evals.tables import remarks, score_table

pytestmark = pytest.mark.unit


def test_unbiased_pass_at_k_is_the_mean_over_all_subsets() -> None:
    for num_right in range(6):
        is_right = [True] * num_right + [False] * (5 - num_right)
        for k in range(1, 6):
            expected = fmean(any(subset) for subset in combinations(is_right, k))
            assert pass_at(5, num_right, k) == pytest.approx(expected)


def test_pass_at_k_counts_what_the_environment_calls_a_success() -> None:
    praised = replace(RIGHT, score=0.7)
    half, full, more = (replace(RIGHT, verdict=None, score=score) for score in (0.5, 1.0, 3.0))
    not_right = replace(wrong("8"), score=1.0)
    samples = [sample for name, each in zip("abcde", (praised, half, full, more, not_right), strict=True)
               for sample in of_problem(name, each)]  # fmt: skip
    assert measure(samples, num_problems=5, num_samples=1, seconds=1.0).pass_at_k == pytest.approx(3 / 5)


def test_every_number_of_a_result() -> None:
    erring = replace(
        wrong("8"),
        num_tool_calls=4,
        num_own_calls=3,
        num_tool_errors=2,
        num_response_tokens=300,
        num_turns=4,
        seconds=3.0,
    )
    samples = of_problem("a", RIGHT, erring) + of_problem("b", TRUNCATED, RIGHT)

    result = measure(samples, num_problems=2, num_samples=2, seconds=9.0, majority_at_k=0.75)

    assert (result.num_scored, result.num_undecided, result.num_faults, result.num_missing) == (4, 0, 0, 0)
    assert (result.accuracy, result.pass_at_k, result.majority_at_k) == (0.5, 1.0, 0.75)
    assert result.accuracy_undecided_wrong == result.accuracy
    assert result.pass_at == {1: 0.5, 2: 1.0}
    assert (result.mean_response_tokens, result.mean_turns, result.mean_tool_calls) == (150, 2.5, 1.75)
    assert (result.tool_error_share, result.truncated_share) == (2 / 6, 0.25)
    assert (result.mean_rollout_seconds, result.seconds) == (1.5, 9.0)
    assert result.is_complete


def test_what_could_not_be_judged_is_counted_and_in_no_score() -> None:
    samples = of_problem("a", RIGHT, UNDECIDED, LOST) + of_problem("b", wrong("1"))

    result = measure(samples, num_problems=3, num_samples=3, seconds=0.0)

    assert (result.num_undecided, result.num_faults, result.num_missing) == (1, 1, 5)
    assert (result.accuracy, result.num_scored) == (0.5, 2)
    assert result.accuracy_undecided_wrong == 1 / 3, "the undecided one is wrong; what was lost is nobody's answer"
    assert result.mean_response_tokens == 100, "a lost rollout says nothing of a response's length"
    assert not result.is_complete


def test_a_leaf_beyond_the_budget_is_no_sample_and_shared_tokens_count_once() -> None:
    branch = replace(RIGHT, num_generated_tokens=20)
    samples = of_problem("a", RIGHT, branch, BEYOND_BUDGET) + of_problem("b", wrong("1"), LOST, branch)

    result = measure(samples, num_problems=2, num_samples=3, seconds=0.0)

    assert (result.num_scored, result.num_undecided, result.num_faults, result.num_missing) == (4, 0, 1, 0)
    assert (result.accuracy, result.mean_response_tokens) == (0.75, 100)
    assert result.mean_generated_tokens == (80 + 20 + 80 + 80 + 20) / 2, "what was lost had been generated, too"


def test_what_was_left_out_stands_beside_the_score() -> None:
    heavy = replace(UNDECIDED, weight=2.0)
    samples = of_problem("a", RIGHT, heavy) + of_problem("b", RIGHT, wrong("1"))
    results = {"set": measure(samples, 2, 2, 0.0), "clear": measure(of_problem("a", RIGHT, RIGHT), 1, 2, 0.0)}

    assert results["set"].accuracy_undecided_wrong == 2 / 5
    row, clear = (dict(zip(score_table(results).columns, row, strict=True)) for row in score_table(results).rows)
    assert (row["avg@k"], row["undecided"], row["avg@k if wrong"]) == ("66.7", "1", "40.0")
    assert (clear["undecided"], clear["avg@k if wrong"]) == ("0", "100.0")
    assert "if the 1 undecided were wrong: 40.0%" in "".join(remarks(results, ()))
    assert result_as_json(results["set"])["accuracy_undecided_wrong"] == 0.4


def test_nothing_scored_is_no_claim() -> None:
    result = measure([LOST], num_problems=1, num_samples=1, seconds=0.0)

    assert (result.accuracy_low, result.accuracy_high, result.num_scored) == (0.0, 1.0, 0)


def test_details_are_means_of_their_own() -> None:
    two = {"simple": (1.0, 1.0), "instructions": (1.0, 1.0)}
    samples = [replace(RIGHT, details=two), replace(RIGHT, problem_id="q", details={"instructions": (0.5, 3.0)})]
    assert measure(samples, 2, 1, 0.0).details == {"instructions": 2.5 / 4, "simple": 1.0}


def test_wilson_at_the_ends_and_in_the_middle() -> None:
    assert wilson(1.0, 30) == (pytest.approx(0.88649, abs=1e-5), 1.0)
    assert wilson(0.5, 100) == (pytest.approx(0.40383, abs=1e-5), pytest.approx(0.59617, abs=1e-5))


def test_samples_of_one_problem_are_no_independent_evidence() -> None:
    alike = [[(float(number % 2), 1.0)] * 16 for number in range(30)]
    mixed = [[(float(index % 2), 1.0) for index in range(16)] for _ in range(30)]
    single = [[(float(number % 2), 1.0)] for number in range(30)]

    assert clustered_interval(alike) == pytest.approx(clustered_interval(single))
    (low, high), (low_alike, high_alike) = clustered_interval(mixed), clustered_interval(alike)
    assert low_alike < low < 0.5 < high < high_alike


def test_every_deviation_from_the_report_is_named() -> None:
    assert REPORT.deviations == ()
    changed = EvalSettings(num_samples=4, temperature=1.0, max_response_tokens=1024, max_turns=5, has_tools=False)
    assert changed.deviations == (
        "samples 4 (report: 16)",
        "temperature 1.0 (report: 0.6)",
        "response tokens 1,024 (report: 30,720)",
        "turns 5 (report: 30)",
        "no tools",
    )


def test_the_interval_covers_the_true_score_about_as_often_as_it_says() -> None:
    """Problems of very different difficulty, 30 of them with 16 samples each, as in AIME."""
    rng = random.Random(0)
    num_covered, num_trials, true_score = 0, 1000, 0.5 / (0.5 + 0.8)
    for _ in range(num_trials):
        chances = [rng.betavariate(0.5, 0.8) for _ in range(30)]
        low, high = clustered_interval([[(float(rng.random() < p), 1.0) for _ in range(16)] for p in chances])
        num_covered += low <= true_score <= high
    assert 0.93 <= num_covered / num_trials <= 0.98
