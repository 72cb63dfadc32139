"""Compares what a program printed or returned with what a test expects. Pure, linear in the texts."""

from decimal import Decimal, InvalidOperation
from typing import Any


def same_output(printed: str, expected: str) -> bool:
    """Whether the lines are equal, without white space at their ends and blank lines at the end. Two lines of numbers
    are equal if their numbers are: `1.50 2` and `1.5 2.0`."""
    lines, expected_lines = (_lines(text) for text in (printed, expected))
    return len(lines) == len(expected_lines) and all(map(_same_line, lines, expected_lines))


def same_value(returned: Any, expected: Any) -> bool:
    """Equality in which a tuple equals the list that JSON writes for it."""
    if isinstance(returned, tuple):
        returned = list(returned)
    if isinstance(returned, list) and isinstance(expected, list):
        return len(returned) == len(expected) and all(map(same_value, returned, expected))
    return bool(returned == expected)


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines()]


def _same_line(printed: str, expected: str) -> bool:
    if printed == expected:
        return True
    words, expected_words = printed.split(), expected.split()
    if len(words) != len(expected_words):
        return False
    numbers, expected_numbers = _numbers(words), _numbers(expected_words)
    return numbers is not None and numbers == expected_numbers


def _numbers(words: list[str]) -> list[Decimal] | None:
    try:
        numbers = [Decimal(word) for word in words]
    except InvalidOperation:
        return None
    return numbers if all(number.is_finite() for number in numbers) else None
