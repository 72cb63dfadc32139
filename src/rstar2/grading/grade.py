"""What grading returns."""

from dataclasses import dataclass
from enum import StrEnum

from rstar2.records import Verdict


class Method(StrEnum):
    """What decided."""

    EXTRACTION = "extraction"
    """There was no answer to compare."""
    INTEGERS = "integers"
    NUMBERS = "numbers"
    """Decimals and fractions of integers, by the rules of `rstar2.grading.numerals`."""
    TEXT = "text"
    """Equal up to LaTeX noise; or words, which are compared as words alone."""
    CHOICE = "choice"
    UNITS = "units"
    """Both carry a unit or a numeral base, and not the same."""
    SCREEN = "screen"
    """The answer was refused before any computer algebra saw it."""
    MATH_VERIFY = "math_verify"


@dataclass(frozen=True, slots=True)
class Grade:
    """A verdict, the answer it is about (None if there was none), what decided, and why where that is not plain."""

    verdict: Verdict
    answer: str | None
    method: Method
    message: str = ""
