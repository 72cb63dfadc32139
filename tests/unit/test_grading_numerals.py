"""What written numbers stand for."""

from fractions import Fraction

import pytest

from rstar2.grading.numerals import MAX_CHARS, Number, percent_exponents, read_number, same_number

pytestmark = pytest.mark.unit


def number(text: str) -> Number:
    found = read_number(text)
    assert found is not None, text
    return found


@pytest.mark.parametrize(
    ("text", "value", "num_digits", "num_decimals"),
    [
        ("72", 72, 2, 0),
        ("100", 100, 1, -2),
        ("-1,234.50", Fraction(-2469, 2), 5, 1),
        (".5", Fraction(1, 2), 1, 1),
        ("0.000120", Fraction(12, 100_000), 2, 5),
        (r"1.5 \times 10^{-3}", Fraction(15, 10_000), 2, 4),
        (r"1 \cdot 10^6", 10**6, 1, -6),
        (r"\frac{-1}{2}", Fraction(-1, 2), 0, 0),
        (r"-\dfrac{ -1 }{ -2 }", Fraction(-1, 2), 0, 0),
        ("1,000/3", Fraction(1000, 3), 0, 0),
        ("0.0", 0, 0, 0),
    ],
)
def test_what_is_a_number(text: str, value: Fraction, num_digits: int, num_decimals: int) -> None:
    found = number(text)
    assert (found.value, found.num_digits) == (value, num_digits)
    assert not value or found.num_decimals == num_decimals


@pytest.mark.parametrize(
    "text",
    [
        *("", "-", ".", "x", "1,2", "1/0", r"\frac{1}{0}", "1e6", "٣", "10^{6}", r"2 \times 10^12", "1.2.3", "5%"),
        "9" * (MAX_CHARS + 1),
    ],
)
def test_what_is_none(text: str) -> None:
    assert read_number(text) is None


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("1.00000000001", "1"),
        ("0.999999999990", "0.99999999999"),
        ("123456.78900000001", "123456.789"),
        ("3.8476929233231754", "3.84769292332317540"),
        (r"3.8476929233231754 \times 10^{-7}", r"\frac{1}{2598960}"),
    ],
)
def test_a_printed_float_stands_for_what_it_agrees_with_to_twelve_digits(answer: str, gold: str) -> None:
    assert same_number(number(answer), number(gold))


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("1.0000000001", "1"),  # eleven digits
        ("1.00000000002", "1"),  # two units of the twelfth
        ("1.000000000000000001", "1"),  # more digits than a float has
        ("1000000.00001", "1000000"),  # farther than a millionth
        ("0.0000000000001", "0"),
        ("100000000000", "100000000000.1"),  # a short number is taken at its word
        ("100000000000.1", "100000000000"),
    ],
)
def test_and_for_nothing_else(answer: str, gold: str) -> None:
    assert not same_number(number(answer), number(gold))


def test_a_percent_sign_that_is_there_counts_against_a_share() -> None:
    def exponents(gold: str, *, answer: bool, of_gold: bool) -> tuple[int, ...]:
        return percent_exponents(number(gold), answer_is_percent=answer, gold_is_percent=of_gold)

    assert exponents("75", answer=True, of_gold=True) == exponents("75", answer=False, of_gold=False) == (0,)
    assert exponents("75", answer=True, of_gold=False) == (-2, 0)
    assert exponents("0.75", answer=True, of_gold=False) == (-2,)
    assert exponents("75", answer=False, of_gold=True) == (0, 2)
