r"""Compares one answer with one gold by math-verify. It runs inside the sandbox and never in this process: `Grader`
sends its source text behind that of `numerals`.

stdin is a `SymbolicComparison` as JSON; stdout is one JSON object a line: `{"stage": …}` at each stage, so that the
output of a stopped run shows whose expression stopped it, and last `{"verdict": …}`. math-verify's own timeouts are
off: they use SIGALRM, and the sandbox's kill is more reliable.
"""

import json
import logging
import re
import sys
import zlib
from decimal import Decimal
from fractions import Fraction
from typing import Any

import mpmath
import sympy
from math_verify import LatexExtractionConfig, parse, verify
from math_verify.parser import NormalizationConfig
from sympy.logic.boolalg import And

if __name__ != "__main__":  # In the sandbox both are one file.
    from rstar2.grading.numerals import Number, percent_exponents, same_number

NUM_DIGITS = 40
"""The precision of computed values."""
EXACT_TOLERANCE = 1e-30
"""Relative tolerance if both values are exact. math-verify rounds at 15 digits."""
NUM_DECIMALS = 12
"""Decimals that math-verify rounds to. With its default of 6, 0.1 and 0.1000001 are equal."""
CHAIN_TOLERANCE = 1e-3
"""Relative tolerance between the links of `2\\pi = 6.283`."""

_EXTRACTION = LatexExtractionConfig(
    boxed_match_priority=0,
    normalization_config=NormalizationConfig(
        basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="last"
    ),
)

_EQUALS = re.compile(r"(?<![\\<>!:=])=(?!=)")


def _read(latex: str) -> Any | None:
    """The expression in `latex`, or None. Only the box is extracted: no prose, no bare numbers, no second match. A
    decimal inside an expression becomes exact; one that is the complete value stays as it was written."""
    parsed = parse(
        f"\\boxed{{{latex}}}",
        extraction_config=[_EXTRACTION],
        fallback_mode="no_fallback",
        extraction_mode="first_match",
        parsing_timeout=None,
    )
    if not parsed:
        return None
    items = _items(_value(parsed[0]))
    composed = (item for item in items if not isinstance(item, sympy.Float) and hasattr(item, "atoms"))
    exact = {item: item.xreplace({x: sympy.Rational(str(x)) for x in item.atoms(sympy.Float)}) for item in composed}
    return parsed[0].xreplace(exact) if any(item.has(sympy.Float) for item in exact) else parsed[0]


def _value(expression: Any) -> Any:
    """The last side of an equation or of a chain of equations; any other expression itself."""
    if isinstance(expression, And) and all(isinstance(link, sympy.Eq) for link in expression.args):
        expression = _links(expression)[-1]
    return expression.rhs if isinstance(expression, sympy.Eq) else expression


def _links(chain: Any) -> Any:
    return getattr(chain, "_unsorted_args", chain.args)


def _name(equation: Any) -> Any:
    """The left side of an equation or of a chain's first equation."""
    return (_links(equation)[0] if isinstance(equation, And) else equation).lhs


def _items(expression: Any) -> list[Any]:
    """The single values in an expression: itself, or those of a set, tuple, interval or matrix."""
    if isinstance(expression, sympy.MatrixBase):
        return list(expression)
    if isinstance(expression, (sympy.FiniteSet, sympy.Tuple, sympy.Union)):
        return [item for part in expression.args for item in _items(part)]
    if isinstance(expression, sympy.Interval):
        return [expression.start, expression.end]
    if isinstance(expression, sympy.Eq) and isinstance(expression.lhs, sympy.Symbol):
        return [expression.rhs]
    return [expression]


def _computed(expression: Any) -> mpmath.mpc:
    """The value of a scalar, where each variable has a fixed number drawn from its name."""
    if expression in (sympy.oo, -sympy.oo):
        return mpmath.mpc(mpmath.inf if expression is sympy.oo else -mpmath.inf)
    if expression.has(sympy.Sum, sympy.Product, sympy.Integral, sympy.Limit):
        raise ValueError("not to be computed numerically in a bounded time")
    variables = {s: sympy.Rational(zlib.crc32(s.name.encode()) % 9973 + 5000, 9973) for s in expression.free_symbols}
    parts = expression.evalf(NUM_DIGITS, subs=variables).as_real_imag()
    # A precision of one bit is sympy's sign of a complete cancellation: the value is zero.
    return mpmath.mpc(*(0 if getattr(part, "_prec", 0) == 1 else part._to_mpmath(200) for part in parts))


def _numbers(expression: Any) -> list[tuple[mpmath.mpc, Any]] | None:
    """The single values in an expression, computed and sorted, each with its expression; None if they cannot be
    computed."""
    try:
        computed = [(_computed(item), item) for item in _items(expression)]
    except Exception:
        return None
    return sorted(computed, key=lambda pair: tuple(mpmath.mpf(mpmath.nstr(x, 9)) for x in (pair[0].real, pair[0].imag)))


def _as_number(item: Any, computed: mpmath.mpc) -> Number | None:
    """The number as it was written, or else computed; None if it has no finite real value."""
    if isinstance(item, sympy.Float):
        return Number.of_decimal(Decimal(str(item)))
    exact = item.doit()
    if isinstance(exact, sympy.Rational):
        return Number(Fraction(int(exact.p), int(exact.q)))
    if computed.imag or not mpmath.isfinite(computed.real):
        return None
    return Number(Fraction(Decimal(mpmath.nstr(computed.real, NUM_DIGITS))), is_irrational=True)


def _is_name(expression: Any) -> bool:
    """Whether an expression is a letter or a product of letters, which may spell a word: names are compared by
    spelling."""
    return (
        isinstance(expression, sympy.Symbol)
        or expression is sympy.E
        or (isinstance(expression, sympy.Mul) and all(map(_is_name, expression.args)))
    )


def _close(x: mpmath.mpc, y: mpmath.mpc, tolerance: float) -> bool:
    return bool(x == y or abs(x - y) <= tolerance * max(abs(x), abs(y)))


def _agree(answer: tuple[mpmath.mpc, Any], gold: tuple[mpmath.mpc, Any]) -> bool:
    (x, item), (y, gold_item) = answer, gold
    if isinstance(item, sympy.Float) or isinstance(gold_item, sympy.Float):
        number, gold_number = _as_number(item, x), _as_number(gold_item, y)
        return number is not None and gold_number is not None and same_number(number, gold_number)
    return _close(x, y, EXACT_TOLERANCE)


def _decimals_replaced(answer: Any, gold: Any) -> Any | None:
    """The answer, with the gold's own values in place of decimals that approximate them; None if its numerical values
    show that it is not the gold. Equations of different things have no values to compare."""
    answer_value, gold_value = _value(answer), _value(gold)
    is_of_another = answer_value is not answer and gold_value is not gold and _name(answer) != _name(gold)
    if is_of_another or (_is_name(answer_value) and _is_name(gold_value)):
        return answer
    of_answer, of_gold = _numbers(answer_value), _numbers(gold_value)
    if of_answer is None or of_gold is None:
        return answer
    pairs = list(zip(of_answer, of_gold, strict=False))
    if len(of_answer) != len(of_gold) or not all(_agree(*pair) for pair in pairs):
        return None
    return answer.xreplace({item: gold_item for (_, item), (_, gold_item) in pairs if isinstance(item, sympy.Float)})


def _contradicts_itself(latex: str) -> bool:
    """Whether an answer equates different numbers, like `6 = 5`, of which math-verify would take the last."""
    if "," in latex or ";" in latex:
        return False
    *first, last = (_read(side) for side in _EQUALS.split(latex))
    return any(
        side is not None and last is not None and not getattr(side, "free_symbols", None) and _far(side, last)
        for side in first
    )


def _far(side: Any, last: Any) -> bool:
    of_side, of_last = _numbers(side), _numbers(last)
    if of_side is None or of_last is None:
        return False
    pairs = zip(of_side, of_last, strict=False)
    return len(of_side) != len(of_last) or not all(_close(x, y, CHAIN_TOLERANCE) for (x, _), (y, _) in pairs)


def _scales(gold: Any, *, answer_is_percent: bool, gold_is_percent: bool) -> list[Any]:
    """The factors by which the answer may be scaled to equal the gold."""
    numbers = _numbers(_value(gold))
    if answer_is_percent == gold_is_percent or numbers is None or len(numbers) != 1:
        return [1]
    number = _as_number(numbers[0][1], numbers[0][0])
    if number is None:
        return [1]
    exponents = percent_exponents(number, answer_is_percent=answer_is_percent, gold_is_percent=gold_is_percent)
    return [sympy.Rational(10) ** exponent for exponent in exponents]


def _say(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


def main() -> None:
    logging.disable(logging.CRITICAL)
    mpmath.mp.dps = NUM_DIGITS + 10
    request = json.load(sys.stdin)
    _say(stage="started")
    gold = _read(request["gold"])
    if gold is None:
        _say(verdict="gold_unreadable")
        return
    scales = _scales(gold, answer_is_percent=request["answer_is_percent"], gold_is_percent=request["gold_is_percent"])
    _say(stage="gold")
    answer = _read(request["answer"])
    if answer is None:
        _say(verdict="answer_unreadable")
        return
    if _contradicts_itself(request["answer"]):
        _say(verdict="wrong")
        return
    is_scalar = isinstance(answer, sympy.Expr)
    scaled = [answer if scale == 1 else answer * scale for scale in scales if scale == 1 or is_scalar]
    compared = [found for each in scaled if (found := _decimals_replaced(each, gold)) is not None]
    if not compared:
        _say(verdict="wrong")
        return
    _say(stage="answer")
    is_right = verify(
        [gold],
        compared,
        float_rounding=NUM_DECIMALS,
        numeric_precision=NUM_DIGITS,
        allow_set_relation_comp=True,
        timeout_seconds=None,
    )
    _say(verdict="right" if is_right else "wrong")
