r"""Compares one answer with one gold by math-verify. It runs inside the sandbox and never in this process:
`Grader` sends its source text, so it imports nothing of ours.

stdin is `{"answer": …, "gold": …}`, both tidied LaTeX without units; stdout is one JSON object a line: `{"stage": …}`
each time a stage is passed, so that a run that was stopped says whose expression stopped it, and last
`{"verdict": …}`. math-verify's own timeouts are off: they use SIGALRM, and the sandbox kills more surely.
"""

import json
import logging
import re
import sys
import zlib
from typing import Any

import mpmath
from math_verify import LatexExtractionConfig, parse, verify
from math_verify.parser import NormalizationConfig
from sympy import (
    E,
    Eq,
    FiniteSet,
    Float,
    Integral,
    Interval,
    Limit,
    MatrixBase,
    Mul,
    Product,
    Rational,
    Sum,
    Symbol,
    Tuple,
)
from sympy.logic.boolalg import And

ROUNDED_TOLERANCE = 1e-3
"""Relative, where a decimal takes part. math-verify rounds to 6 places, which calls 0.0000012 and 0.000001 equal."""
EXACT_TOLERANCE = 1e-9
"""Relative, where both are exact. math-verify chops, which calls every two numbers below 1e-15 equal."""

_EXTRACTION = LatexExtractionConfig(
    boxed_match_priority=0,
    normalization_config=NormalizationConfig(
        basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="last"
    ),
)

_EQUALS = re.compile(r"(?<![\\<>!:=])=(?!=)")


def _read(latex: str) -> Any | None:
    """The expression in `latex`, or None. Only the box is extracted: no prose, no bare numbers, no second match."""
    parsed = parse(
        f"\\boxed{{{latex}}}",
        extraction_config=[_EXTRACTION],
        fallback_mode="no_fallback",
        extraction_mode="first_match",
        parsing_timeout=None,
    )
    return parsed[0] if parsed else None


def _value(expression: Any) -> Any:
    """The last side of an equation or of a chain of them; the expression itself if it is none."""
    if isinstance(expression, And) and all(isinstance(link, Eq) for link in expression.args):
        expression = getattr(expression, "_unsorted_args", expression.args)[-1]
    return expression.rhs if isinstance(expression, Eq) else expression


def _number(expression: Any) -> mpmath.mpc:
    """The value of a scalar, where each variable stands for a fixed number drawn from its name."""
    if expression.has(Sum, Product, Integral, Limit):
        raise ValueError("not to be computed numerically in a bounded time")
    variables = {s: Rational(zlib.crc32(s.name.encode()) % 9973 + 5000, 9973) for s in expression.free_symbols}
    real, imaginary = expression.evalf(20, subs=variables).as_real_imag()
    return mpmath.mpc(real._to_mpmath(60), imaginary._to_mpmath(60))


def _numbers(expression: Any) -> list[mpmath.mpc] | None:
    """The numbers in a value, sorted: one for a scalar, many for a set, tuple, interval or matrix. None where that
    cannot be done."""
    if isinstance(expression, MatrixBase):
        items = list(expression)
    elif isinstance(expression, (FiniteSet, Tuple)):
        items = list(expression.args)
    elif isinstance(expression, Interval):
        items = [expression.start, expression.end]
    else:
        items = [expression]
    try:
        numbers = [_number(item) for item in items]
    except Exception:
        return None
    return sorted(numbers, key=lambda z: (mpmath.mpf(mpmath.nstr(z.real, 9)), mpmath.mpf(mpmath.nstr(z.imag, 9))))


def _is_name(expression: Any) -> bool:
    """Whether this is a letter or a product of letters, which may spell a word: names are equal by spelling."""
    return (
        isinstance(expression, Symbol)
        or expression is E
        or (isinstance(expression, Mul) and all(map(_is_name, expression.args)))
    )


def _differ(a: Any, b: Any, tolerance: float, factors: tuple[float, ...] = (1.0,)) -> bool | None:
    """Whether two values are far from each other numerically; None if that cannot be told."""
    if _is_name(a) and _is_name(b):
        return None
    of_a, of_b = _numbers(a), _numbers(b)
    if of_a is None or of_b is None:
        return None
    if len(of_a) != len(of_b):
        return True
    pairs = list(zip(of_a, of_b, strict=True))
    return not any(all(_close(x * factor, y, tolerance) for x, y in pairs) for factor in factors)


def _close(x: mpmath.mpc, y: mpmath.mpc, tolerance: float) -> bool:
    return bool(x == y or abs(x - y) <= tolerance * max(abs(x), abs(y)))


def _has_float(expression: Any) -> bool:
    return any(entry.has(Float) for entry in (expression if isinstance(expression, MatrixBase) else [expression]))


def _contradicts_itself(latex: str) -> bool:
    """Whether an answer equates different numbers, as `6 = 5` does, of which math-verify would take the last."""
    if "," in latex or ";" in latex:
        return False
    *first, last = (_read(side) for side in _EQUALS.split(latex))
    return any(
        side is not None
        and last is not None
        and not getattr(side, "free_symbols", None)
        and _differ(side, last, ROUNDED_TOLERANCE)
        for side in first
    )


def _values_differ(answer: Any, gold: Any, *, has_percent: bool) -> bool:
    """Whether the two surely differ, by their numerical values. Two equations have no values to compare."""
    answer_value, gold_value = _value(answer), _value(gold)
    if answer_value is not answer and gold_value is not gold:
        return False
    tolerance = ROUNDED_TOLERANCE if _has_float(gold_value) or _has_float(answer_value) else EXACT_TOLERANCE
    return bool(_differ(answer_value, gold_value, tolerance, (1.0, 100.0, 0.01) if has_percent else (1.0,)))


def _say(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


def main() -> None:
    logging.disable(logging.CRITICAL)
    request = json.load(sys.stdin)
    _say(stage="started")
    gold = _read(request["gold"])
    if gold is None:
        _say(verdict="gold_unreadable")
        return
    _numbers(_value(gold))
    _say(stage="gold")
    answer = _read(request["answer"])
    if answer is None:
        _say(verdict="answer_unreadable")
        return
    if _contradicts_itself(request["answer"]):
        _say(verdict="wrong")
        return
    if _values_differ(answer, gold, has_percent="%" in request["answer"] + request["gold"]):
        _say(verdict="wrong")
        return
    _say(stage="answer")
    is_right = verify([gold], [answer], allow_set_relation_comp=True, timeout_seconds=None)
    _say(verdict="right" if is_right else "wrong")
