"""Curation: each reason on rows made for it, and the order in which reasons are asked."""

from dataclasses import replace
from pathlib import Path

import pytest

from rstar2.config import DataSet
from rstar2.data import BenchmarkGrams, CurationRules, PassRate, Reason, curate, load_problems, read_pass_rates
from rstar2.data.unsuitable import asks_several, is_composite, is_integer, needs_figure
from rstar2.data.write import rejects_path, write_problems, write_rejects
from rstar2.errors import UserError
from rstar2.records import Group, Outcome, Problem, RunDirectory, Selection, Trace

pytestmark = pytest.mark.unit


def problem(text: str, answer: str = "1", problem_id: str | None = None) -> Problem:
    return Problem(problem_id or text, text, answer)


@pytest.mark.parametrize("gold", ["7", "-7", r"\boxed{7}", "1,000", "$7$", r"10,\!010", "007"])
def test_integers(gold: str) -> None:
    assert is_integer(gold) and not is_composite(gold)


@pytest.mark.parametrize("gold", ["1,2", "(1,2)", r"3 \text{ or } 4", r"\pm 3", "2 and 3", "x=1, y=2"])
def test_composite_golds(gold: str) -> None:
    assert is_composite(gold) and not is_integer(gold)


@pytest.mark.parametrize("gold", [r"\frac12", "0.5", "x^2", "yes"])
def test_other_golds_are_neither(gold: str) -> None:
    assert not is_composite(gold) and not is_integer(gold)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("As shown in the figure, AB = 3. Find BC.", True),
        ("In the diagram below, find x.", True),
        ("[asy] draw((0,0)--(1,1)); [/asy] Find the area.", True),
        ("![](image.png) What is the area?", True),
        ("Two rooks are placed as shown. How many squares are free?", True),
        ("The graph of f passes through the point \\left(1, 2\\right). Find f(1).", False),
        ("A figure skater turns 3 times a second. How often in a minute?", False),
        ("It can be shown that n is prime. Find n.", False),
    ],
)
def test_figures(text: str, expected: bool) -> None:
    assert needs_figure(text) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Let f(x) = x. (1) Find f(1). (2) Find f(2).", True),
        ("a) How many ways? b) What is the sum?", True),
        ("Numbers satisfy (1) a is even; (2) b is odd. Find a + b.", False),
        ("What is the value? (A) 1 (B) 2 (C) 3", False),
    ],
)
def test_several_questions(text: str, expected: bool) -> None:
    assert asks_several(text) is expected


BENCHMARK = "Jen enters a lottery by picking four distinct numbers from the set of the first ten positive integers"


def test_every_row_is_kept_or_rejected_for_its_reason() -> None:
    rows = [
        problem("good", "5"),
        problem("composite", "1, 2"),
        problem("fraction", r"\frac12"),
        problem("In the figure below, find x."),
        problem("求所有正整数的和"),
        problem("What is $3+4$?", "7", "d1"),
        problem("what is 3+4 ?", "8", "d2"),
        problem("What is 3-4?", "-1", "minus"),
        problem("Twice the same.", "2", "first"),
        problem("twice  the same.", "2", "again"),
        problem(f"So: {BENCHMARK.upper()}, now what?", "9", "leak"),
        problem("easy"),
        problem("half"),
        problem("hopeless"),
        problem("rarely tried"),
    ]
    rates = {
        "easy": PassRate(8, 8),
        "half": PassRate(4, 8),
        "hopeless": PassRate(0, 8),
        "rarely tried": PassRate(2, 2),
    }
    benchmarks = BenchmarkGrams({"aime24": [problem(BENCHMARK)]})
    curated = curate(rows, benchmarks, rates, CurationRules(drops_unsolved=True))
    assert [row.id for row in curated.kept] == ["good", "minus", "first", "half", "rarely tried"]
    assert {each.problem.id: each.reason for each in curated.rejected} == {
        "composite": Reason.COMPOSITE,
        "fraction": Reason.NOT_INTEGER,
        "In the figure below, find x.": Reason.FIGURE,
        "求所有正整数的和": Reason.NOT_ENGLISH,
        "d1": Reason.DISPUTED,
        "d2": Reason.DISPUTED,
        "again": Reason.DUPLICATE,
        "leak": Reason.CONTAMINATED,
        "easy": Reason.SOLVED,
        "hopeless": Reason.UNSOLVED,
    }
    assert curated.num_rejected[Reason.DISPUTED] == 2
    assert "hopeless" in [row.id for row in curate(rows, benchmarks, rates).kept]


def test_a_stock_phrase_counts_unless_more_is_asked_for() -> None:
    grams = BenchmarkGrams(
        {"b": [problem("Find the greatest integer less than or equal to the sum of all roots of f.")]}
    )
    text = "Let [x] be the greatest integer less than or equal to x. Compute [9/2]."
    assert grams.find(text) is not None
    assert grams.find(text, min_share=0.5) is None
    assert grams.find("An entirely different text with no more than eight words shared") is None


def test_short_benchmark_problems_match_as_a_whole() -> None:
    grams = BenchmarkGrams({"b": [problem("Compute $\\sin 60^\\circ$.", "1", "short")]})
    overlap = grams.find("compute \\( \\sin 60^{\\circ} \\)")
    assert overlap is not None and (overlap.problem_id, overlap.share) == ("short", 1.0)
    assert grams.find("Compute $\\cos 60^\\circ$.") is None


def group(problem_id: str, step: int, *rewards: float | None) -> Group:
    num = len(rewards)
    nothing = (None,) * num
    return Group(
        f"{problem_id}@{step}",
        problem_id,
        step,
        tuple(map(str, range(num))),
        rewards,
        nothing,
        nothing,
        nothing,
        (Selection.KEPT,) * num,
    )


def test_pass_rates_are_those_of_the_last_try(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path / "run", verb="train", argv=(), seed=0, recipe_toml="") as run:
        run.write_group(group("a", 1, 1.0, 1.0, 1.0))
        run.write_group(group("b", 1, 0.0, None, 1.0))
        run.write_group(group("a", 2, 1.0, 0.0, None))
    assert read_pass_rates(tmp_path / "run") == {"a": PassRate(1, 2), "b": PassRate(1, 2)}
    with pytest.raises(UserError, match="is not a run directory"):
        read_pass_rates(tmp_path)


def test_pass_rates_count_full_rewards_where_there_is_no_verdict(tmp_path: Path) -> None:
    graded = replace(group("graded", 1, 0.5, 1.0), is_right=(True, False))
    with RunDirectory.create(tmp_path / "train", verb="train", argv=(), seed=0, recipe_toml="") as run:
        run.write_group(group("scored", 1, 0.5, 1.0, None))
        run.write_group(graded)
    assert read_pass_rates(tmp_path / "train") == {"scored": PassRate(1, 2), "graded": PassRate(1, 2)}
    with RunDirectory.create(tmp_path / "eval", verb="eval", argv=(), seed=0, recipe_toml="") as run:
        for number, reward in enumerate((0.5, 1.0, None)):
            run.write_trace(Trace(f"t{number}", "a", (1,), "a", (), Outcome.ANSWERED, reward=reward))
    assert read_pass_rates(tmp_path / "eval") == {"a": PassRate(1, 2)}


@pytest.mark.parametrize("name", ["rl.jsonl", "rl.jsonl.gz"])
def test_what_is_written_is_read_back_and_the_same_bytes_twice(tmp_path: Path, name: str) -> None:
    rows = (Problem("a", "p\u2028q", "1", "s", "3", "algebra", {"k": "v"}), Problem("b", "q", "2", "s"))
    write_problems(tmp_path / name, rows)
    content = (tmp_path / name).read_bytes()
    write_problems(tmp_path / name, rows)
    assert (tmp_path / name).read_bytes() == content
    assert load_problems("x", DataSet(source=f"file:{tmp_path / name}"), seed=0) == rows
    rejected = curate([problem("fraction", "1/2")]).rejected
    write_rejects(rejects_path(tmp_path / name), rejected)
    (back,) = load_problems("x", DataSet(source=f"file:{rejects_path(tmp_path / name)}"), seed=0)
    assert back.id == "fraction"
    assert rejects_path(tmp_path / name).name == f"rl.rejects{name.removeprefix('rl')}"
