"""Extraction and the pure deciders over random input: they never raise, and integers are exact."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rstar2.grading import (
    AnswerPlace,
    Grade,
    choice_letter,
    count_answer_blocks,
    decide,
    extract_answer,
    last_box,
    parse_integer,
)
from rstar2.grading.extract import MAX_SEARCHED_CHARS
from rstar2.records import Verdict

pytestmark = pytest.mark.property

PIECES = ["<answer>", "</answer>", r"\boxed{", r"\boxed", "{", "}", "\\", r"\{", "5", " ", "^", "!", "$", ",", "(", ")"]
latex_soup = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=60).map("".join)
integers = st.integers(-(10**30), 10**30)


@st.composite
def notations(draw: st.DrawFn, n: int) -> str:
    """Some way to write `n`."""
    digits = draw(
        st.sampled_from(
            [
                str(abs(n)),
                f"{abs(n):,}",
                f"{abs(n):,}".replace(",", "{,}"),
                f"{abs(n):,}".replace(",", r"\,"),
                f"{abs(n):,}".replace(",", " "),
                f"000{abs(n)}",
                f"{abs(n)}.0",
                f"{abs(n)}.",
            ]
        )
    )
    signed = (draw(st.sampled_from(["-", "−", "- "])) if n < 0 else draw(st.sampled_from(["", "+"]))) + digits
    wrap = draw(st.sampled_from(["{}", "${}$", r"\({}\)", r"\text{{{}}}", " {} ", "{}.", r"{}\ "]))
    return wrap.format(signed) if not (signed.endswith(".") and wrap == "{}.") else signed


@given(latex_soup)
def test_extraction_never_raises_and_returns_what_stands_there(text: str) -> None:
    for place in AnswerPlace:
        answer = extract_answer(text, place=place)
        assert answer is None or answer in text
    assert count_answer_blocks(text) <= min(text.count("<answer>"), text.count("</answer>"))
    assert (extract_answer(text) is None) or count_answer_blocks(text) > 0


@given(st.text(alphabet="ab15+-^ \\,.", max_size=30).filter(lambda s: not s.endswith("\\")), latex_soup)
def test_a_last_box_is_found_whatever_came_before(content: str, before: str) -> None:
    text = f"{before.rstrip(chr(92))} \\boxed{{{content}}}"
    assert last_box(text) == content


@given(st.integers(0, 3))
def test_the_search_window_ends_at_the_end(num_extra: int) -> None:
    text = r"\boxed{5}" + "x" * (MAX_SEARCHED_CHARS - len(r"\boxed{5}") + num_extra)
    assert last_box(text) == (None if num_extra else "5")


@given(latex_soup, latex_soup)
def test_deciding_never_raises(answer: str, gold: str) -> None:
    decide(answer, gold)
    choice_letter(answer)


@given(latex_soup.filter(lambda text: not text.isspace() and last_box(text) is None))
def test_an_answer_that_is_the_gold_is_right(gold: str) -> None:
    grade = decide(gold, gold)
    assert isinstance(grade, Grade) and grade.verdict is Verdict.RIGHT


@given(st.data(), integers, integers)
def test_notations_of_the_same_integer_agree_and_of_others_never(data: st.DataObject, n: int, m: int) -> None:
    answer, gold = data.draw(notations(n)), data.draw(notations(m))
    assert parse_integer(answer) == str(n)
    grade = decide(answer, gold)
    assert isinstance(grade, Grade)
    assert (grade.verdict is Verdict.RIGHT) == (n == m)


@given(st.text(alphabet="0123456789,. -+{}\\!$", max_size=12))
def test_whatever_is_read_as_an_integer_has_its_digits(text: str) -> None:
    integer = parse_integer(text)
    if integer is not None:
        assert integer == str(int(integer))
        whole = text.rstrip("$} .\\").split(".")[0] if "." in text else text
        assert "".join(filter(str.isdigit, whole)).lstrip("0") == integer.lstrip("-").lstrip("0")


@given(st.integers(-(10**5), 10**5).filter(bool), st.floats(-9e-12, 9e-12))
def test_a_float_of_an_integer_with_the_noise_of_computing_is_that_integer(n: int, noise: float) -> None:
    grade = decide(repr(n * (1 + noise)), str(n))
    assert isinstance(grade, Grade)
    printed = repr(n * (1 + noise)).rstrip("0").replace(".", "").lstrip("-0")
    assert (grade.verdict is Verdict.RIGHT) == (float(n) == n * (1 + noise) or len(printed) >= 12)


@given(st.decimals(allow_nan=False, allow_infinity=False, places=4, min_value=-(10**6), max_value=10**6), st.data())
def test_short_decimals_are_the_same_only_if_their_values_are(first: Decimal, data: st.DataObject) -> None:
    second = data.draw(st.sampled_from([first, first + Decimal("0.0001"), first * 10, -first]))
    grade = decide(f"{first:.4f}", f"{second:.5f}")
    assert isinstance(grade, Grade)
    assert (grade.verdict is Verdict.RIGHT) == (first == second)


@given(st.integers(-(10**30), 10**30), st.integers(-2, 2))
def test_a_float_never_stands_for_an_integer_beside_its_own(n: int, offset: int) -> None:
    """Floats cannot tell integers above 2**53 apart, so what one prints is read as what is written."""
    printed = repr(float(n))
    grade = decide(printed, str(n + offset))
    assert isinstance(grade, Grade)
    assert (grade.verdict is Verdict.RIGHT) == (Decimal(printed) == n + offset)
