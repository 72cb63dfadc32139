"""Generated programming tasks: solutions pass their tests, other programs do not, and the warm-up tells nothing."""

import random
import re

import pytest

from rstar2.config import DataSet, EnvironmentSection
from rstar2.data import load_conversations, load_problems
from rstar2.data.procedural.programs import EXPRESSIONS, FAMILIES, program_row
from rstar2.errors import UserError

pytestmark = pytest.mark.unit


CODE = EnvironmentSection(source="code")


def passes(program: str, tests: list[str]) -> bool:
    """The programs are our own, so they may run here."""
    namespace: dict[str, object] = {}
    exec(program, namespace)
    try:
        for test in tests:
            exec(test, namespace)
    except Exception:
        return False
    return True


def test_solutions_pass_and_other_programs_seldom_do() -> None:
    rng = random.Random(0)
    num_lucky = num_others = 0
    seen = set()
    for _ in range(200):
        row = program_row(rng)
        (k,) = re.findall(r"\d+", row["prompt"])
        assert passes(row["solution"], row["tests"]), row
        others = {f"def f(x):\n    return {text.format(k=k)}" for text in EXPRESSIONS} - {row["solution"]}
        num_lucky += sum(passes(other, row["tests"]) for other in others)
        num_others += len(others)
        seen.add(row["solution"].replace(k, "{k}"))
    assert len(seen) == len(FAMILIES)
    assert num_lucky / num_others < 0.02


def test_rows_are_tasks_of_the_environment() -> None:
    spec = DataSet(source="procedural:small_programs", num_problems=60)
    problems = load_problems("train", spec, 0, CODE)
    assert problems == load_problems("train", spec, 0, CODE)
    assert len({problem.problem for problem in problems}) == 60
    assert all(problem.problem.startswith(problem.row["prompt"]) for problem in problems)
    assert not any(test in problem.problem for problem in problems for test in problem.row["tests"])


def test_mathematics_has_no_use_for_tests() -> None:
    with pytest.raises(UserError, match=r"data.train.source: procedural:small_programs .* needs the environment code"):
        load_problems("train", DataSet(source="procedural:small_programs", num_problems=3), 0)


def test_conversations_show_a_right_program_as_often_as_chance() -> None:
    talks = load_conversations("format", DataSet(source="procedural:program_format", num_problems=1400), 0)
    problems = load_problems("x", DataSet(source="procedural:small_programs", num_problems=1), 0, CODE)
    note = problems[0].problem.partition("\n")[2]
    num_right = 0
    for talk in talks:
        question, answer = (message["content"] for message in talk.messages)
        assert question.endswith(note)
        (program,) = re.findall(r"<answer>\n```python\n(.*)\n```\n</answer>", answer, re.DOTALL)
        (k,) = re.findall(r"\d+", question)
        wanted = question.partition("returns ")[2].partition(".\n")[0]
        family = next(each for each in FAMILIES if wanted in [wording.format(k=k) for wording in each.wordings])
        num_right += program == f"def f(x):\n    return {family.expression.format(k=k)}"
    assert 60 < num_right < 140, "one in fourteen is right"
