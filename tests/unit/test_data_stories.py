"""Every story is whole: its program works out what its text asks, from the numbers that its text gives, and evenly."""

import random
import re
from fractions import Fraction

import pytest

from rstar2.data.procedural import PROBLEM_TASKS, generate
from rstar2.data.procedural.stories import Story, all_stories

pytestmark = pytest.mark.unit

NUM_DRAWS = 5
NUM_WORDS_IN_COMMON = 10


def test_there_are_many_and_no_two_alike() -> None:
    stories = all_stories()
    assert len({story.text for story in stories}) == len(stories) > 800
    assert len({" ".join(story.text.split()[:6]) for story in stories}) > 0.95 * len(stories)


@pytest.mark.parametrize("part", range(8))
def test_each_comes_out_as_a_positive_whole_number_in_every_step(part: int) -> None:
    for story in all_stories()[part::8]:
        assert all(re.search(rf"\{{{name}(:w)?\}}", story.text) for name in story.numbers), story.text
        for seed in range(NUM_DRAWS):
            filled = story.fill(random.Random(seed))
            values: dict[str, int] = {}
            exec(filled.program, {}, values)
            assert all(type(value) is int and value > 0 for value in values.values()), filled
            assert values == exact_values(filled.program), f"it is rounded somewhere: {filled}"
            assert list(values)[-1] == filled.asked
            assert filled.question.endswith("?") and "{" not in filled.question, filled


def exact_values(program: str) -> dict[str, Fraction]:
    lines = [line for line in program.splitlines() if not line.startswith("#")]
    values: dict[str, Fraction] = {}
    exec(re.sub(r"\b(\d+)\b", r"Fraction(\1)", "\n".join(lines).replace("//", "/")), {"Fraction": Fraction}, values)
    return values


def test_a_program_quotes_each_sentence_once_and_before_its_numbers_are_used() -> None:
    story = Story(
        "{who} has {a:w} hens. Each lays {b} eggs, and Mr. Lee takes 3 of all. How many are left?",
        {"a": "2..2", "b": "4..4"},
        ("eggs = a * b", "left = eggs - 3"),
    )
    filled = story.fill(random.Random(1))
    who = filled.question.split()[0]
    assert filled.program.splitlines() == [
        f"# {who} has two hens.",
        "# Each lays 4 eggs, and Mr. Lee takes 3 of all.",
        "eggs = 2 * 4",
        "# How many are left?",
        "left = eggs - 3",
    ]


def test_none_is_told_like_a_problem_that_is_trained_on() -> None:
    tasks = [task for task in PROBLEM_TASKS if "word_problems" in task]
    known = {part for problem in generate(tasks, 2000, "s") for part in parts(problem.problem)}
    for index, story in enumerate(all_stories()):
        shared = parts(story.fill(random.Random(index)).question) & known
        assert not shared, f"{story.text} has {shared.pop()!r}"


def parts(text: str) -> set[str]:
    words = re.findall(r"[a-z]+|#", re.sub(r"\d+", "#", text.lower()))
    return {" ".join(words[at : at + NUM_WORDS_IN_COMMON]) for at in range(len(words) - NUM_WORDS_IN_COMMON + 1)}
