"""What is decided without computer algebra, by what, and what is left over."""

import time

import pytest

from rstar2.grading import Grade, Method, SymbolicComparison, choice_letter, decide
from rstar2.grading.latex import skeleton, split_unit, tidy
from rstar2.grading.screen import is_evaluated, why_refused
from rstar2.records import Verdict

pytestmark = pytest.mark.unit


def decided(answer: str, gold: str) -> tuple[Verdict, Method]:
    grade = decide(answer, gold)
    assert isinstance(grade, Grade), grade
    return grade.verdict, grade.method


@pytest.mark.parametrize(
    ("answer", "gold", "verdict", "method"),
    [
        ("073", "73", Verdict.RIGHT, Method.INTEGERS),
        ("17204", "204", Verdict.WRONG, Method.INTEGERS),
        (r"11\text{ cm}", "11", Verdict.RIGHT, Method.INTEGERS),
        ("18 dollars", "18", Verdict.RIGHT, Method.INTEGERS),
        ("5", r"\[\boxed{5}\]", Verdict.RIGHT, Method.INTEGERS),
        ("1e+06", "1000000", Verdict.RIGHT, Method.NUMBERS),
        (r"\frac{3}{4}\text{ cm}", "0.75", Verdict.RIGHT, Method.NUMBERS),
        ("71.99999999999999", "72", Verdict.RIGHT, Method.NUMBERS),
        ("72.001", "72", Verdict.WRONG, Method.NUMBERS),
        (r"\{ \}", "∅", Verdict.RIGHT, Method.TEXT),
        (r"\dfrac{1}{2}", r"$\frac{1}{2}$", Verdict.RIGHT, Method.TEXT),
        ("silent", "listen", Verdict.WRONG, Method.TEXT),
        ("B", r"\text{(B)}", Verdict.RIGHT, Method.CHOICE),
        ("11 cm", r"11\text{ m}", Verdict.WRONG, Method.UNITS),
        ("1011_2", "1011_3", Verdict.WRONG, Method.UNITS),
        ("9^{9^{9^9}}", "5", Verdict.WRONG, Method.SCREEN),
        ("1" * 10_000_000 + "x", "5", Verdict.WRONG, Method.SCREEN),
    ],
)
def test_pure_verdicts(answer: str, gold: str, verdict: Verdict, method: Method) -> None:
    assert decided(answer, gold) == (verdict, method)


def test_what_is_left_over_is_tidy_and_without_units() -> None:
    assert decide(r"$\frac{3}{4}\text{ cm}$.", r"\sqrt{2}") == SymbolicComparison(r"\frac{3}{4}", r"\sqrt{2}")
    assert decide(r"1 \pm 2e+02", "50 percent") == SymbolicComparison(
        r"1 + 2 \times 10^{2}, 1 - 2 \times 10^{2}", "50", gold_is_percent=True
    )


def test_a_policy_is_not_paid_for_copying_the_question() -> None:
    assert isinstance(decide(r"123 \cdot 456", "56088"), SymbolicComparison)
    grade = decide(r"123 \cdot 456", "56088", evaluated_only=True)
    assert isinstance(grade, Grade) and grade.verdict is Verdict.WRONG and grade.method is Method.SCREEN
    grade = decide("5.6088e4", "56088", evaluated_only=True)
    assert isinstance(grade, Grade) and grade.verdict is Verdict.RIGHT


@pytest.mark.parametrize(
    "answer", ["17", "x = 17", "17.0", "1.7e+01", r"\frac{34}{2}", "34/2", r"17\%", r"17^\circ", "-17"]
)
def test_evaluated(answer: str) -> None:
    assert is_evaluated(answer)


@pytest.mark.parametrize("answer", ["2^{4}", r"3 \cdot 4", "5!", r"\sqrt{16}", "3+4", "12(3)", r"\binom{4}{2}", "x"])
def test_not_evaluated(answer: str) -> None:
    assert not is_evaluated(answer)


@pytest.mark.parametrize(
    "answer",
    [
        "9^{9^{9^9}}",
        "9^9^9",
        "2^{123456}",
        "12345!",
        "(3!)!",
        "9!!",
        "5 6",
        r"\sum_{k=1}^{9} k",
        r"\boxed 5",
        "(" * 41 + "5" + ")" * 41,
        "7" * 1001,
        "x" * 4097,
        "\x00",
    ],
)
def test_refused_unless_the_gold_is_no_better(answer: str) -> None:
    assert why_refused(answer, "5") is not None
    assert why_refused(answer, answer) is None


@pytest.mark.parametrize(
    "answer",
    [
        r"e^{-x^{2}}",
        r"\log_2 3",
        r"\frac 1 2",
        r"2\ln^2 3",
        r"2^{25} \cdot 26!",
        r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}",
        r"1.39 \times 10^9",
        "x_1 + x_2",
    ],
)
def test_honest_answers_pass_the_screen(answer: str) -> None:
    assert why_refused(answer, "5") is None


@pytest.mark.parametrize(
    ("text", "value", "unit"),
    [
        (r"11\text{ cm}^2", "11", "cm2"),
        ("11 km", "11", "km"),
        (r"\frac{1}{2}\text{ hours}", r"\frac{1}{2}", "hr"),
        ("20 students", "20", ""),
        ("3t", "3t", ""),
        ("5 m", "5 m", ""),
        (r"2 \pi", r"2 \pi", ""),
        (r"x \text{ or } y", r"x \text{ or } y", ""),
        (r"5 \text{ and }", r"5 \text{ and }", ""),
        (r"\text{Evelyn}", r"\text{Evelyn}", ""),
    ],
)
def test_units_are_taken_off_only_where_they_are_units(text: str, value: str, unit: str) -> None:
    quantity = split_unit(tidy(text))
    assert (quantity.value, quantity.unit) == (value, unit)


def test_skeletons_never_join_numbers() -> None:
    assert skeleton(tidy("1 2")) != skeleton("12")
    assert skeleton(tidy(r"1\text{2}")) != skeleton("12")
    assert skeleton(tidy("1$2")) != skeleton("12")


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("B", "B"),
        ("(B)", "B"),
        ("B.", "B"),
        (r"\text{(B)}", "B"),
        (r"\textbf{(B) } 17", "B"),
        ("$C$", "C"),
        ("A cat", None),
        ("Ax+B", None),
        ("b", None),
        ("(A, B)", None),
        ("K", None),
        ("", None),
    ],
)
def test_choices(text: str, letter: str | None) -> None:
    assert choice_letter(text) == letter


@pytest.mark.timing
def test_integers_are_fast() -> None:
    num_verdicts = 5000
    started = time.process_time()
    for n in range(num_verdicts):
        decide(str(n), "073")
    assert num_verdicts / (time.process_time() - started) > 1000
