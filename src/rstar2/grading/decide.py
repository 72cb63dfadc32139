"""Decides answers that need no computer algebra: numbers, equal texts, words, choices, units, hostile answers.

Pure and linear, so it runs in the caller's process at any load; other answers are returned as a `SymbolicComparison`.
"""

import re
from dataclasses import dataclass
from enum import StrEnum

from rstar2.grading.extract import last_box
from rstar2.grading.integers import read_integers, same_integers
from rstar2.grading.latex import (
    bases_conflict,
    is_prose,
    skeleton,
    split_percent,
    split_unit,
    tidy,
    units_conflict,
    with_both_signs,
    with_powers_of_ten,
)
from rstar2.grading.numerals import percent_exponents, read_number, same_number
from rstar2.grading.screen import MAX_CHARS, is_evaluated, why_refused
from rstar2.records import Verdict

_CHOICE = re.compile(
    r"(?:\\(?:text|textbf|mathrm|mathbf|rm)\s*\{\s*)*"
    r"(?:\(\s*(?P<bracketed>[A-J])\s*\)|(?P<bare>[A-J])\s*(?P<mark>[).:])?)"
    r"\s*\}*\s*(?P<rest>.*)",
    re.DOTALL,
)


class Method(StrEnum):
    """The method that decided a grade."""

    EXTRACTION = "extraction"
    """There was no answer to compare."""
    INTEGERS = "integers"
    NUMBERS = "numbers"
    """Decimals and fractions of integers, by the rules of `rstar2.grading.numerals`."""
    TEXT = "text"
    """The texts are equal up to LaTeX noise, or were compared as words."""
    CHOICE = "choice"
    UNITS = "units"
    """Both carry a unit or a numeral base, and these differ."""
    SCREEN = "screen"
    """The answer was refused before any computer algebra."""
    MATH_VERIFY = "math_verify"


@dataclass(frozen=True, slots=True)
class Grade:
    """A verdict, the graded answer (None if there was none), the method that decided, and the reason if it is not
    obvious."""

    verdict: Verdict
    answer: str | None
    method: Method
    message: str = ""


@dataclass(frozen=True, slots=True)
class SymbolicComparison:
    """Two values, tidied and without units and percent signs, that only computer algebra can compare."""

    answer: str
    gold: str
    answer_is_percent: bool = False
    gold_is_percent: bool = False
    """Whether each had a percent sign, which is removed from both texts."""


def decide(answer: str, gold: str, *, evaluated_only: bool = False) -> Grade | SymbolicComparison:
    r"""Grade `answer`, or return the comparison to make. With `evaluated_only`, an answer to an integer gold must be a
    plain number: `123 \cdot 456` is then wrong without being computed. A gold may be in a box, as some sets have it."""

    def graded(is_right: bool, method: Method, message: str = "") -> Grade:
        return Grade(Verdict.RIGHT if is_right else Verdict.WRONG, answer, method, message)

    if len(answer) > MAX_CHARS + 4 * len(gold):
        return graded(False, Method.SCREEN, "it is far longer than the gold")
    answer_integers, gold_integers = read_integers(answer), read_integers(gold)
    if answer_integers and gold_integers:
        return graded(same_integers(answer_integers, gold_integers), Method.INTEGERS)
    if (boxed := last_box(gold)) is not None:
        return decide(answer, boxed, evaluated_only=evaluated_only)
    if answer.strip() == gold.strip():
        return graded(True, Method.TEXT)

    tidy_answer, tidy_gold = tidy(answer), tidy(gold)
    bones, gold_bones = skeleton(tidy_answer), skeleton(tidy_gold)
    if bones == gold_bones:
        return graded(True, Method.TEXT)

    of_answer, of_gold = split_unit(tidy_answer), split_unit(tidy_gold)
    if units_conflict(of_answer, of_gold) or bases_conflict(bones, gold_bones):
        return graded(False, Method.UNITS, "units or numeral bases differ")
    answer_integers, gold_integers = read_integers(of_answer.value), read_integers(of_gold.value)
    if answer_integers and gold_integers:
        return graded(same_integers(answer_integers, gold_integers), Method.INTEGERS)
    if of_answer.value == of_gold.value:
        return graded(True, Method.TEXT)

    letter, gold_letter = choice_letter(tidy_answer), choice_letter(tidy_gold)
    if letter and gold_letter:
        return graded(letter == gold_letter, Method.CHOICE)
    if is_prose(skeleton(of_gold.value)):
        return graded(bones.casefold() == gold_bones.casefold(), Method.TEXT)

    if reason := why_refused(of_answer.value, of_gold.value):
        return graded(False, Method.SCREEN, reason)
    if evaluated_only and gold_integers and not is_evaluated(of_answer.value):
        return graded(False, Method.SCREEN, "it leaves a computation to the grader")
    comparison = _comparison(of_answer.value, of_gold.value)
    is_same = _same_numbers(comparison)
    return comparison if is_same is None else graded(is_same, Method.NUMBERS)


def _comparison(answer: str, gold: str) -> SymbolicComparison:
    answer, answer_is_percent = split_percent(answer)
    gold, gold_is_percent = split_percent(gold)
    answer, gold = (with_both_signs(with_powers_of_ten(text)) for text in (answer, gold))
    return SymbolicComparison(answer, gold, answer_is_percent, gold_is_percent)


def _same_numbers(comparison: SymbolicComparison) -> bool | None:
    """Whether both are the same numbers; None if one of them is not a plain number."""
    answer, gold = read_number(comparison.answer), read_number(comparison.gold)
    if answer is None or gold is None:
        return None
    exponents = percent_exponents(
        gold, answer_is_percent=comparison.answer_is_percent, gold_is_percent=comparison.gold_is_percent
    )
    return any(same_number(answer.scaled(exponent), gold) for exponent in exponents)


def choice_letter(text: str) -> str | None:
    r"""The letter of `B`, `(B)`, `B.`, `\text{(B)}`, `\textbf{(B) } 17`; None if `text` is anything else. Words may
    follow the letter only behind a bracket or a mark, so that `A cat` and `Ax+B` are no choices."""
    match = _CHOICE.fullmatch(text.strip().strip("$").strip())
    if match is None:
        return None
    if match["rest"] and not (match["bracketed"] or match["mark"]):
        return None
    return match["bracketed"] or match["bare"]
