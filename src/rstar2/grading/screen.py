r"""Refuses answers before any computer algebra sees them. Pure, linear.

An honest final answer is short, flat and evaluated. An answer that breaks one of these limits is wrong at once, not
undecided: undecided rollouts are left out of training, so hanging the grader would be a way to avoid a zero. An answer
may be as large as the gold: if the gold breaks the limits, they do not apply.
"""

import re

MAX_CHARS = 4096
"""The longest answer: golds of the public sets (MATH, OlympiadBench, DeepScaleR, Omni-MATH) are under 1,500
characters."""
MAX_DEPTH = 40
"""How deep braces and brackets may nest. Honest answers stay below 10, and the parser recurses several frames a
level."""
MAX_NUMERAL_DIGITS = 1000
MAX_POWER_DEPTH = 2
r"""How deep powers may nest: `e^{-x^2}` is 2; `9^{9^{9^9}}` is 3."""
MAX_EXPONENT_DIGITS = 5
MAX_FACTORIAL_DIGITS = 4

_LONG_NUMERAL = re.compile(rf"\d{{{MAX_NUMERAL_DIGITS + 1}}}")
_LONG_EXPONENT = re.compile(rf"\^\s*(?:\{{\s*-?\s*)?\d{{{MAX_EXPONENT_DIGITS + 1}}}")
_LONG_FACTORIAL = re.compile(rf"\d{{{MAX_FACTORIAL_DIGITS + 1}}}\s*[)}}\]]*\s*!")
_FACTORIAL_TOWER = re.compile(r"!\s*[)}\]]*\s*!")
_SIDE_BY_SIDE = re.compile(r"(?<![\d/.,_^])(?<!frac )(?<!binom )\d+(?:\.\d+)? +\d+(?:\.\d+)?(?! *[\d/.])")
_TASK = re.compile(r"\\(?:sum|prod|coprod|i{0,3}int|oint|lim|bigcup|bigcap|gcd|lcm|det|[bp]?mod)(?![a-zA-Z])")
_FORBIDDEN = re.compile(r"\\f?box(?:ed)?(?![a-zA-Z])|\^\s*\w\s*\^|[\x00-\x08\x0b\x0c\x0e-\x1f]")
_BRACKETS = re.compile(r"\\.|\^\s*[{(\[]?|[{}()\[\]]")

_NUMBER = r"[-+]?\s*\d[\d,]*(?:\.\d*)?(?:[eE][-+]?\d+)?"
_EVALUATED = re.compile(
    rf"(?:[a-zA-Z]\w*(?:\([a-zA-Z0-9]\))?\s*=\s*)?"
    rf"(?:{_NUMBER}|[-+]?\s*\\[dt]?frac\s*\{{{_NUMBER}\}}\s*\{{{_NUMBER}\}}|{_NUMBER}\s*/\s*\d+)"
    r"\s*(?:\\?%|\^\s*\{?\\circ\}?)?"
)


def why_refused(answer: str, gold: str) -> str | None:
    """Why `answer` is refused without parsing; None if it is not. Both are tidied LaTeX."""
    reason = _beyond_limits(answer)
    if reason is not None and _beyond_limits(gold) is None:
        return reason
    for task in _TASK.finditer(answer):
        if task[0] not in gold:
            return f"it states a task ({task[0]}), not a value"
    return None


def is_evaluated(answer: str) -> bool:
    r"""Whether `answer` is a plain number, not like `123 \cdot 456`, which restates a question instead of answering it.
    A name before it (`x =`), a percent sign and a degree sign are allowed."""
    return _EVALUATED.fullmatch(answer) is not None


def _beyond_limits(text: str) -> str | None:
    if len(text) > MAX_CHARS:
        return f"it is longer than {MAX_CHARS} characters"
    if _FORBIDDEN.search(text):
        return "it holds commands or characters that no value has"
    if _LONG_NUMERAL.search(text):
        return f"it holds a numeral of more than {MAX_NUMERAL_DIGITS} digits"
    if _LONG_EXPONENT.search(text):
        return f"it holds an exponent of more than {MAX_EXPONENT_DIGITS} digits"
    if _LONG_FACTORIAL.search(text) or _FACTORIAL_TOWER.search(text):
        return "it holds a factorial too large to compute"
    if _SIDE_BY_SIDE.search(text):
        return "it holds two numbers side by side, which could be their list, product or sum"
    depth, power_depth = _depths(text)
    if depth > MAX_DEPTH:
        return f"it is nested deeper than {MAX_DEPTH} levels"
    if power_depth > MAX_POWER_DEPTH:
        return f"it holds a tower of more than {MAX_POWER_DEPTH} powers"
    return None


def _depths(text: str) -> tuple[int, int]:
    """How deep brackets are nested, and how deep exponents are."""
    deepest = num_powers = deepest_power = 0
    is_power = list[bool]()
    for match in _BRACKETS.finditer(text):
        token = match[0]
        if token[0] == "^":
            deepest_power = max(deepest_power, num_powers + 1)
        if token[-1] in "{([" and token[0] != "\\":
            is_power.append(token[0] == "^")
            num_powers += is_power[-1]
            deepest = max(deepest, len(is_power))
        elif token in "})]" and is_power:
            num_powers -= is_power.pop()
    return deepest, deepest_power
