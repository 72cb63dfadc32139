r"""Reads the value of a written number, and tells which numbers are the same. Pure and exact: fractions, never floats.

Invariant: a number has exactly the value that is written. There are three exceptions, for what computers print:

- *Printed float*: a decimal of 12 to 17 significant digits means the value that it agrees with to twelve digits, if it
  can mean nothing else: a decimal a millionth away from an integer, or nearer to another fraction of that size, is not
  the gold.
- *Rounding*: a decimal of at least six digits and six decimals means a value that has no finite decimals (1/3,
  √2, π), if it is that value correctly rounded.
- *Gold that is a printed float*: it means the value that rounds to it, if that value is no short number itself.

This module imports nothing else of rstar2: its source goes into the sandbox together with that of `program`.
"""

import re
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction

FLOAT_DIGITS = range(12, 18)
"""The numbers of significant digits of a printed float. Fewer may be an intended rounding; no float has more, so those
are intended too."""
FLOAT_NOISE = Fraction(1, 10**11)
"""Relative tolerance: one unit of the twelfth digit."""
MOST_NOISE = Fraction(1, 10**6)
"""Absolute tolerance: a number farther from a large integer has an intended fractional part."""
MIN_ROUNDED_DIGITS = 6
"""The least significant digits, and decimals, of a rounding."""

_INTEGER = r"\d+|[1-9]\d{0,2}(?:,\d{3})+"
_NUMERAL = re.compile(
    rf"(?P<sign>[-+]?) ?(?P<whole>{_INTEGER})?(?:\.(?P<decimals>\d*))?"
    r"(?: ?\\(?:times|cdot) ?10 ?\^ ?(?:\{ ?(?P<exponent>[-+]?\d{1,4}) ?\}|(?P<digit>\d)))?",
    re.ASCII,
)
_SIGNED = rf" ?([-+]?) ?({_INTEGER}) ?"
_FRACTION = re.compile(
    rf"([-+]?) ?(?:\\[dtc]?frac ?\{{{_SIGNED}\}} ?\{{{_SIGNED}\}}|({_INTEGER}) ?/ ?({_INTEGER}))", re.ASCII
)
MAX_CHARS = 1100
"""The longest number that is read: longer ones are refused as answers, and fractions of them would cost too much."""


@dataclass(frozen=True, slots=True)
class Number:
    value: Fraction
    num_digits: int = 0
    """Significant digits of a decimal, without trailing zeros; 0 where the number is written exactly."""
    num_decimals: int = 0
    """Decimals without trailing zeros; below 0 where digits before the point are rounded, too."""
    is_irrational: bool = False
    """Whether the number is irrational; `value` is then exact to 40 digits."""

    @classmethod
    def of_decimal(cls, decimal: Decimal) -> "Number":
        exponent = decimal.as_tuple().exponent
        assert isinstance(exponent, int), "a finite number"
        digits = "".join(map(str, decimal.as_tuple().digits))
        kept = digits.rstrip("0")
        return cls(Fraction(decimal), len(kept.lstrip("0")), len(kept) - len(digits) - exponent)

    @property
    def is_float(self) -> bool:
        return self.num_digits in FLOAT_DIGITS and self.num_decimals > 0

    @property
    def is_terminating(self) -> bool:
        """Whether the number has finitely many decimals."""
        rest = self.value.denominator
        for prime in (2, 5):
            while rest % prime == 0:
                rest //= prime
        return rest == 1 and not self.is_irrational

    @property
    def half_unit(self) -> Fraction:
        """Half a unit of the last digit; 0 where the number is written exactly."""
        return Fraction(10) ** -self.num_decimals / 2 if self.num_digits else Fraction(0)

    def scaled(self, exponent: int) -> "Number":
        """The number multiplied by that power of ten."""
        return replace(self, value=self.value * Fraction(10) ** exponent, num_decimals=self.num_decimals - exponent)


def read_number(tidied: str) -> Number | None:
    """An integer, a decimal, either of them times a power of ten, or a fraction of integers; None for all else."""
    if len(tidied) > MAX_CHARS:
        return None
    if match := _FRACTION.fullmatch(tidied):
        sign, above_sign, above, below_sign, below, left, right = match.groups()
        top, bottom = (int((part or "").replace(",", "")) for part in (above or left, below or right))
        is_negative = [sign, above_sign, below_sign].count("-") % 2 == 1
        return Number(Fraction(-top if is_negative else top, bottom)) if bottom else None
    match = _NUMERAL.fullmatch(tidied)
    if match is None or not (match["whole"] or match["decimals"]):
        return None
    digits = f"{match['sign']}{match['whole'] or '0'}.{match['decimals'] or '0'}".replace(",", "")
    return Number.of_decimal(Decimal(f"{digits}e{match['exponent'] or match['digit'] or 0}"))


def same_number(answer: Number, gold: Number) -> bool:
    gap = abs(answer.value - gold.value)
    if gap == 0 or (answer.is_float and gap <= _noise(gold)):
        return True
    if not gold.is_terminating:
        is_rounding = min(answer.num_digits, answer.num_decimals) >= MIN_ROUNDED_DIGITS
        return is_rounding and gap <= answer.half_unit
    is_long = answer.is_float or not answer.is_terminating
    return gold.is_float and is_long and gap <= max(answer.half_unit, gold.half_unit)


def percent_exponents(gold: Number, *, answer_is_percent: bool, gold_is_percent: bool) -> tuple[int, ...]:
    """The powers of ten by which an answer may be scaled to equal the gold, if at most one of the two has a percent
    sign. A missing sign is accepted; a superfluous one counts against a gold of at most 1, which is a share."""
    if answer_is_percent == gold_is_percent:
        return (0,)
    if gold_is_percent:
        return 0, 2
    return (-2,) if abs(gold.value) <= 1 else (-2, 0)


def _noise(gold: Number) -> Fraction:
    noise = min(abs(gold.value) * FLOAT_NOISE, MOST_NOISE)
    return noise if gold.is_irrational else min(noise, Fraction(1, 2 * gold.value.denominator**2))
