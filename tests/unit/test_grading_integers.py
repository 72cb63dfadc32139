"""Integers as texts: every notation of the same integer, and the notations that are none."""

import pytest

from rstar2.grading import parse_integer
from rstar2.grading.integers import read_integers, same_integers

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("text", "integer"),
    [
        ("73", "73"),
        ("073", "73"),
        ("000", "0"),
        ("-0", "0"),
        ("- 5", "-5"),
        ("−5", "-5"),
        ("+5", "5"),
        ("5.", "5"),
        ("5.00", "5"),
        ("1.000", "1"),
        ("1,234", "1234"),
        ("1{,}234", "1234"),
        (r"1\,234\,567", "1234567"),
        (r"10,\!000", "10000"),
        ("12 345", "12345"),
        (r"12\ 345", "12345"),
        ("$5$", "5"),
        ("$$5$$.", "5"),
        (r"\(5\)", "5"),
        (r"\text{5}", "5"),
        (r"\$18", "18"),
        ("{5}", "5"),
        (" 5\n", "5"),
        ("9" * 100_000, "9" * 100_000),
        *(
            (text, None)
            for text in ("", "-", ".", "1,2", "12,34", "1,23,456", "0,123", "1234,567", "1 23", "1,234 567")
        ),
        *((text, None) for text in ("5.5", "--5", "1e3", "5%", "x", "٣", "²", r"\frac{4}{2}", "5 6", "1$7", "{5}{6}")),
    ],
)
def test_what_is_an_integer(text: str, integer: str | None) -> None:
    assert parse_integer(text) == integer


@pytest.mark.parametrize(
    ("answer", "gold", "same"),
    [
        ("2, 1", "1,2", True),
        ("1,2", "12", False),
        ("1,234", "1, 234", True),
        ("1, 234", "1,234", True),
        ("1, 234", "1234", False),
        ("234,1", "1,234", False),
        ("5,6", "6,6,5", False),
        ("1;2", "1,2", True),
    ],
)
def test_lists_of_integers(answer: str, gold: str, same: bool) -> None:
    of_answer, of_gold = read_integers(answer), read_integers(gold)
    assert of_answer is not None and of_gold is not None
    assert same_integers(of_answer, of_gold) is same
