"""Curation over random inputs: nothing is lost, nothing is invented, a planted leak is always found."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rstar2.data import BenchmarkGrams, curate
from rstar2.data.curate import text_key
from rstar2.data.decontaminate import NUM_GRAM_WORDS, grams_of
from rstar2.records import Problem

pytestmark = pytest.mark.property

WORDS = st.lists(st.text("abcdefgh", min_size=1, max_size=3), min_size=0, max_size=30)
PROBLEMS = st.lists(
    st.tuples(st.text("ab +-$ ", max_size=6), st.sampled_from(["1", "2", " 1 ", "1,2", "1/2", r"\boxed{1}", "x"])),
    max_size=30,
).map(lambda rows: [Problem(str(number), text, gold) for number, (text, gold) in enumerate(rows)])


@given(PROBLEMS)
def test_every_problem_is_kept_or_rejected_once_and_order_stays(problems: list[Problem]) -> None:
    curated = curate(problems)
    ids = [problem.id for problem in curated.kept] + [each.problem.id for each in curated.rejected]
    assert sorted(ids, key=int) == [problem.id for problem in problems]
    assert [problem.id for problem in curated.kept] == sorted((problem.id for problem in curated.kept), key=int)
    assert sum(curated.num_rejected.values()) == len(curated.rejected)


@given(PROBLEMS)
def test_what_is_kept_is_fit_and_curating_it_again_changes_nothing(problems: list[Problem]) -> None:
    kept = curate(problems).kept
    assert all(count == 1 for count in Counter(text_key(problem.problem) for problem in kept).values())
    assert curate(kept).kept == kept


@given(WORDS, st.lists(st.text("xyz", min_size=1, max_size=3), min_size=NUM_GRAM_WORDS, max_size=12), WORDS)
def test_a_run_of_eight_words_is_found_wherever_it_stands(before: list[str], leak: list[str], after: list[str]) -> None:
    benchmarks = BenchmarkGrams({"b": [Problem("leak", "  ".join(leak).upper() + "!", "1")]})
    overlap = benchmarks.find("\n".join([*before, "$" + "$ ".join(leak) + ".", *after]))
    assert overlap is not None and (overlap.benchmark, overlap.problem_id) == ("b", "leak")
    assert benchmarks.find(" ".join([*before, *after])) is None


@given(WORDS)
def test_grams_are_the_runs_of_words(words: list[str]) -> None:
    grams = grams_of(" ".join(words))
    if len(words) < NUM_GRAM_WORDS:
        assert grams == ({tuple(words)} if words else set())
    else:
        num_runs = len(words) - NUM_GRAM_WORDS + 1
        assert grams == {tuple(words[start : start + NUM_GRAM_WORDS]) for start in range(num_runs)}
