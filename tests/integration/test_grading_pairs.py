"""The whole grader with a real executor: every tricky pair has its verdict within the deadline."""

import os
import re
import time
from collections.abc import AsyncIterator
from itertools import product
from pathlib import Path

import pytest
import pytest_asyncio
from grading_pairs import HOSTILE, PAIRS

from rstar2 import sandbox
from rstar2.grading import GRADING_DEADLINE_S, AnswerPlace, Grader, Method
from rstar2.records import Verdict
from rstar2.sandbox.unsafe.executor import UnsafeExecutor

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

SLACK_S = 60.0
"""For starting and ending processes on a machine that runs other tests too."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def grader() -> AsyncIterator[Grader]:
    async with getattr(sandbox, "LocalExecutor", UnsafeExecutor)() as executor:
        yield Grader(executor)


async def test_the_table_is_large_enough() -> None:
    assert sum(map(len, PAIRS.values())) >= 100


@pytest.mark.parametrize(
    ("answer", "gold", "verdict"),
    [
        pytest.param(*pair, id=f"{kind}-{pair[0][:40]}-{pair[1][:30]}".encode("unicode_escape").decode())
        for kind, pairs in PAIRS.items()
        for pair in pairs
    ],
)
async def test_tricky_pairs(grader: Grader, answer: str, gold: str, verdict: Verdict) -> None:
    grade = await grader.grade(f"<answer>\\boxed{{{answer}}}</answer>", gold=gold)
    assert grade.verdict is verdict, grade


def documented_pairs() -> list[tuple[str, str, Verdict]]:
    """The rows of docs/grading.md: every answer with every gold, or where there are as many, each with its own."""
    pairs = []
    for line in (Path(__file__).parents[2] / "docs" / "grading.md").read_text().splitlines():
        if (row := re.fullmatch(r"\| (.*) \| (.*) \| (right|wrong) \| .* \|", line)) is not None:
            answers, golds = ([a or b for a, b in re.findall(r"`([^`]+)`|([-\d]+)", cell)] for cell in row.groups()[:2])
            in_pairs = zip(answers, golds, strict=True) if len(answers) == len(golds) else product(answers, golds)
            pairs += [(answer, gold, Verdict(row[3])) for answer, gold in in_pairs]
    return pairs


async def test_the_documented_policy_holds(grader: Grader) -> None:
    pairs = documented_pairs()
    assert len(pairs) > 40
    found = [(answer, gold, (await grader.grade_answer(answer, gold)).verdict) for answer, gold, _ in pairs]
    assert found == pairs


@pytest.mark.parametrize(
    ("answer", "gold"),
    [pytest.param(*pair, id=pair[0][:40].encode("unicode_escape").decode()) for pair in HOSTILE],
)
@pytest.mark.timing
async def test_hostile_answers_are_wrong_within_the_deadline(grader: Grader, answer: str, gold: str) -> None:
    started = time.monotonic()
    grade = await grader.grade_answer(answer, gold)
    assert grade.verdict is Verdict.WRONG, grade
    # A program that the machine starves of CPU gets its time later: the deadline is that of an idle machine.
    num_waiting_each = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    assert time.monotonic() - started < (GRADING_DEADLINE_S + SLACK_S) * num_waiting_each


async def test_an_answer_may_go_as_far_as_its_gold(grader: Grader) -> None:
    grade = await grader.grade_answer(r"\sum_{k=1}^{n} \frac{2}{k}", r"2 \sum_{k=1}^{n} \frac{1}{k}")
    assert grade.method is Method.MATH_VERIFY
    assert grade.verdict is Verdict.RIGHT


async def test_a_gold_that_exhausts_the_grader_is_undecided(grader: Grader) -> None:
    grade = await Grader(grader.executor, deadline_s=6.0).grade_answer(r"\frac{1}{2}", r"\frac{(9^{9^{9}})!}{2}")
    assert grade.verdict is Verdict.UNDECIDED
    assert grade.message


async def test_plain_benchmarks_take_the_last_box_of_the_text(grader: Grader) -> None:
    text = r"First \boxed{17}. Wait, \boxed{\frac{1}{4}}"
    assert (await grader.grade(text, gold="0.25", place=AnswerPlace.ANYWHERE)).verdict is Verdict.RIGHT
    assert (await grader.grade(text, gold="17", place=AnswerPlace.ANYWHERE)).verdict is Verdict.WRONG
    assert (await grader.grade(text, gold="0.25")).verdict is Verdict.NO_ANSWER
