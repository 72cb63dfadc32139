"""Families of problems that one line of a program answers, and mental arithmetic does not. Each gold is computed, never
written down."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProblemFamily:
    """A family of problems. `draw` returns the numbers of one problem, `solve` its answer; a wording puts the numbers
    into a question."""

    name: str
    wordings: tuple[str, ...]
    draw: Callable[[random.Random], tuple[int, ...]]
    solve: Callable[..., int]
    program: str
    """The program that solves a problem, with a, b and c for the numbers in their order."""

    def make(self, rng: random.Random) -> tuple[str, int]:
        numbers = self.draw(rng)
        return rng.choice(self.wordings).format(*numbers), self.solve(*numbers)


def _two_factors(rng: random.Random) -> tuple[int, int]:
    """Two even numbers, so that their least common multiple differs from their product."""
    return 2 * rng.randint(500, 4_999), 2 * rng.randint(500, 4_999)


def _two_multiples(rng: random.Random) -> tuple[int, int]:
    """Two multiples of one number, so that their greatest common divisor is seldom 1."""
    common = rng.randint(12, 99)
    first, second = rng.sample(range(20, 100), 2)
    return common * first, common * second


def _two_ends(rng: random.Random) -> tuple[int, int]:
    return rng.randint(10, 999), rng.randint(1_000, 9_999)


def _power(rng: random.Random) -> tuple[int, int, int]:
    return rng.randint(11, 99), rng.randint(100, 999), rng.randint(100, 999)


def _digits_and_base(rng: random.Random) -> tuple[int, int]:
    base = rng.randint(5, 9)
    digits = [rng.randint(1, base - 1)] + [rng.randint(0, base - 1) for _ in range(rng.randint(3, 5))]
    return int("".join(map(str, digits))), base


FAMILIES: dict[str, ProblemFamily] = {
    family.name: family
    for family in (
        ProblemFamily(
            "big_product",
            ("What is {} times {}?", "Multiply {} by {}.", "Find the product of {} and {}."),
            _two_factors,
            lambda a, b: a * b,
            "print({a} * {b})",
        ),
        ProblemFamily(
            "modular_power",
            (
                "What is {} to the power of {} modulo {}?",
                "Raise {} to the power {} and give the remainder after division by {}.",
            ),
            _power,
            lambda a, b, c: pow(a, b, c),
            "print(pow({a}, {b}, {c}))",
        ),
        ProblemFamily(
            "gcd",
            ("What is the greatest common divisor of {} and {}?", "Which is the largest number to divide {} and {}?"),
            _two_multiples,
            math.gcd,
            "import math\nprint(math.gcd({a}, {b}))",
        ),
        ProblemFamily(
            "lcm",
            (
                "What is the least common multiple of {} and {}?",
                "Which is the smallest number that {} and {} both divide?",
            ),
            _two_multiples,
            math.lcm,
            "import math\nprint(math.lcm({a}, {b}))",
        ),
        ProblemFamily(
            "range_sum",
            ("Add up all whole numbers from {} to {}.", "What is the sum of the integers from {} to {}?"),
            _two_ends,
            lambda a, b: (a + b) * (b - a + 1) // 2,
            "print(sum(range({a}, {b} + 1)))",
        ),
        ProblemFamily(
            "base_conversion",
            ("Which decimal number is {} in base {}?", "Convert {} from base {} to base ten."),
            _digits_and_base,
            lambda digits, base: int(str(digits), base),
            'print(int("{a}", {b}))',
        ),
    )
}
