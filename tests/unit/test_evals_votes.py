"""Votes: which answers are one, and what is asked of the grader to find out."""

from dataclasses import replace

import pytest
from eval_samples import RIGHT, TRUNCATED, of_problem, wrong

from rstar2.evals.sample import Sample
from rstar2.evals.votes import majority, majority_at_k

pytestmark = pytest.mark.unit

HALF, ROOT = r"\frac{1}{\sqrt{2}}", r"\frac{\sqrt{2}}{2}"


class Algebra:
    """Stands in for the sandbox: knows one pair, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    async def __call__(self, answer: str, gold: str) -> bool:
        self.asked.append((answer, gold))
        return {answer, gold} == {HALF, ROOT}


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([RIGHT, RIGHT, wrong("8")], 1.0),
        ([RIGHT, wrong("8"), wrong("8.0"), wrong("8")], 0.0),
        ([RIGHT, wrong("8")], 0.5),
        ([RIGHT, wrong("8"), wrong("9")], 1 / 3),
        ([RIGHT, TRUNCATED, TRUNCATED], 1.0),
        ([TRUNCATED, TRUNCATED], 0.0),
        ([replace(RIGHT, answer=r"\frac{14}{2}"), RIGHT, wrong("8"), wrong("8"), wrong("9")], 0.5),
        ([RIGHT, wrong("0.5"), wrong(r"\frac{1}{2}")], 0.0),
        ([RIGHT, wrong("8.000000000000002"), wrong("8")], 0.0),
        ([RIGHT, wrong("8"), wrong("8.000000000000002")], 0.0),
        ([RIGHT, wrong("1e3"), wrong("1000")], 0.0),
    ],
)
async def test_a_majority_is_of_equal_answers_and_ties_are_shared(samples: list[Sample], expected: float) -> None:
    assert await majority(samples, None) == pytest.approx(expected)


async def test_wrong_answers_are_pooled_by_the_graders_equality() -> None:
    algebra = Algebra()
    samples = [RIGHT, wrong(HALF), wrong(ROOT), wrong("x+1")]
    assert await majority(samples, algebra) == 0.0
    assert {frozenset(pair) for pair in algebra.asked} == {frozenset({HALF, ROOT}), frozenset({HALF, "x+1"})}


@pytest.mark.parametrize(
    "samples",
    [
        [wrong(HALF), wrong(ROOT)],
        [RIGHT, RIGHT, wrong(HALF)],
        [RIGHT, RIGHT, RIGHT, wrong(HALF), wrong(ROOT)],
        [RIGHT, wrong(HALF), wrong(HALF)],
    ],
)
async def test_nothing_is_asked_where_nothing_hangs_on_it(samples: list[Sample]) -> None:
    algebra = Algebra()
    without = await majority(samples, None)
    assert without is not None and without == await majority(samples, algebra)
    assert algebra.asked == []


async def test_without_algebra_there_is_no_majority_that_hangs_on_it() -> None:
    assert await majority([RIGHT, wrong(HALF), wrong(ROOT)], None) is None
    easy, hard = of_problem("a", RIGHT), of_problem("b", RIGHT, wrong(HALF), wrong(ROOT))
    assert await majority_at_k([easy], None) == 1.0
    assert await majority_at_k([easy, hard], None) is None
    assert await majority_at_k([easy, hard], Algebra()) == 0.5


async def test_responses_without_answers_have_no_majority() -> None:
    followed = replace(RIGHT, answer=None)
    assert await majority_at_k([of_problem("a", followed, followed)], None) is None
