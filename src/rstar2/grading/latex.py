r"""Normalizes LaTeX answers before they are compared: removes everything that does not change their meaning. Pure.

Invariant: nothing here joins two numbers into one (a blank between digits stays unless it separates thousands), and
nothing drops a letter that could be a variable: math-verify's own unit list turns `3t` into 3, so it is not used.
"""

import re
from dataclasses import dataclass

_SIGNS = str.maketrans(
    {
        **dict.fromkeys("−–", "-"),
        **dict.fromkeys("\u00a0\u2009\u202f\n\r\t", " "),
        "×": r"\times ",
        "·": r"\cdot ",
        "÷": "/",
        "π": r"\pi ",
        "∞": r"\infty ",
        "√": r"\sqrt ",
        "°": r"^\circ ",
        "±": r"\pm ",
        "≤": r"\le ",
        "≥": r"\ge ",
        "∪": r"\cup ",
        "∈": r"\in ",
        "∅": r"\emptyset ",
    }
)
_DELIMITER = re.compile(r"\\?\$|(?<!\\)\\[()\[\]]")
_SPACE = re.compile(r"(?<!\\)\\[;: ]|(?<!\\)\\,|\\(?:q?quad|thinspace|displaystyle)(?![a-zA-Z])|~")
_THOUSANDS = re.compile(r"(?<![\d.,])(?<!\d )[1-9]\d{0,2}(?: \d{3})+(?! ?\d)")
_PERCENT = re.compile(r"\s*\\(?:text|mathrm|mbox)\s*\{\s*(?:percent|\\?%)\s*\}|\s*\bpercent\b")
_PERCENT_SIGN = re.compile(r" *\\?%$")
_MIXED = re.compile(r"(?<![\d/.,_^])(\d+) (\d+) ?/ ?(\d+)(?![\d.])")
_IMAGINARY = re.compile(r"(?<=[\d})]) *i(?![a-zA-Z])")
_BLANKS = re.compile(r" {2,}")
_EMPTY_SET = re.compile(r"\\varnothing(?![a-zA-Z])|^(?:\\left ?)?\\\{ ?(?:\\right ?)?\\\}$")
_POWER_OF_TEN = re.compile(r"(?<![\w.\\}])(\d+\.?\d*|\.\d+)[eE]([-+]?\d{1,3})(?![\w.]| *\^)", re.ASCII)
_PLUS_MINUS = re.compile(r"\\pm(?![a-zA-Z])")
_LONE_PLUS = re.compile(r"(^|[=({\[,]) *\+")
_SET = re.compile(r"(?P<open>(?:\\left ?)?\\\{)(?P<inner>.*?)(?P<close>(?:\\right ?)?\\\})")
_NESTING = re.compile(r"\\.|[{}()\[\],]")

_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}")
_SIZED = re.compile(r"\\(?:left|right|m?left|m?right)(?![a-zA-Z])")
_FRACTION = re.compile(r"\\[dtc]frac(?![a-zA-Z])")
_NEEDLESS_BLANK = re.compile(r" (?![0-9a-zA-Z])|(?<![0-9a-zA-Z]) ")
_WORD = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{4,}|^(?:yes|no|odd|even)$", re.IGNORECASE)

_TEXT_UNIT = re.compile(
    r"(?P<value>.*[\w})\]!%])\s*/?\s*\\(?:text|textrm|mathrm|mbox)\s*\{(?P<unit>[^{}\d\\]*)\}"
    r"(?P<power>\s*\^\s*(?:\d|\{\s*\d\s*\}))?"
)
_WORD_UNIT = re.compile(r"(?P<value>.*[\d})])\s*(?P<unit>\b[a-zA-Z]{2,}(?: [a-zA-Z]{2,}){0,2})(?P<power>\^\{?\d\}?)?")
_CONNECTIVES = frozenset({"and", "or", "if", "for", "where", "when", "mod", "to"})
_UNIT_NAMES = (
    "mm millimeter millimetre", "cm centimeter centimetre", "m meter metre", "km kilometer kilometre", "inch inche",
    "ft feet foot", "yd yard", "mile", "g gram", "kg kilogram", "s sec second", "min minute", "hr hour", "day", "week",
    "month", "yr year", "dollar usd", "cent", "degree deg", "mph",
)  # fmt: skip
_UNITS = {name: names.split()[0] for names in _UNIT_NAMES for name in names.split()}
"""Maps every name of a unit, without its plural s, to the unit's first name."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """A value, and the unit written behind it (empty if none)."""

    value: str
    unit: str


def tidy(text: str) -> str:
    """The text as one line of LaTeX without dollars, odd blanks or a final full stop, and with ASCII or commands for
    signs."""
    text = text.translate(_SIGNS).replace("{,}", ",").replace(r"\!", "")
    text = _SPACE.sub(" ", _DELIMITER.sub(" ", text))
    text = _PERCENT.sub(r"\\%", text)
    text = _BLANKS.sub(" ", text).strip()
    text = _IMAGINARY.sub(" i", text)
    text = _MIXED.sub(r"\1\\frac{\2}{\3}", text)
    text = _THOUSANDS.sub(lambda number: number[0].replace(" ", ""), text)
    text = _EMPTY_SET.sub(r"\\emptyset", text)
    return text if text.endswith(r"\right.") else text.rstrip(" .,;")


def skeleton(tidied: str) -> str:
    """The text without sizes, fonts and needless blanks. Equal skeletons are equal answers."""
    text = _FRACTION.sub(r"\\frac", _SIZED.sub("", tidied))
    text = _TEXT.sub(r" \1 ", text)
    return _NEEDLESS_BLANK.sub("", _BLANKS.sub(" ", text).strip()).rstrip(".")


def with_powers_of_ten(tidied: str) -> str:
    r"""The text with `1e+06`, as computers print it, written as `1 \times 10^{6}`: a parser of mathematics would read
    Euler's number."""
    return _POWER_OF_TEN.sub(lambda number: rf"{number[1]} \times 10^{{{int(number[2])}}}", tidied)


def with_both_signs(tidied: str) -> str:
    r"""The text with `\frac{-1 \pm \sqrt{17}}{2}` written as the two values that it denotes. A value with more than one
    sign is left as it is: whether the signs belong together is unknown."""
    if not _PLUS_MINUS.search(tidied):
        return tidied
    braces = _SET.fullmatch(tidied)
    values = list[str]()
    for value in _split(braces["inner"] if braces else tidied):
        if len(_PLUS_MINUS.findall(value)) == 1 and r"\mp" not in value:
            values += (_LONE_PLUS.sub(r"\1", _PLUS_MINUS.sub(sign, value)).strip() for sign in "+-")
        else:
            values.append(value)
    joined = ", ".join(values)
    return f"{braces['open']}{joined}{braces['close']}" if braces else joined


def _split(text: str) -> list[str]:
    """Split at the commas outside brackets."""
    pieces, start, depth = list[str](), 0, 0
    for token in _NESTING.finditer(text):
        if token[0] == "," and depth == 0:
            pieces.append(text[start : token.start()])
            start = token.end()
        depth += (token[0] in "{([") - (token[0] in "})]")
    return [piece.strip() for piece in (*pieces, text[start:])]


def split_percent(tidied: str) -> tuple[str, bool]:
    """The text without a trailing percent sign, and whether there was one."""
    bare = _PERCENT_SIGN.sub("", tidied)
    return bare, bare != tidied


def is_prose(bones: str) -> bool:
    """Whether a skeleton is words and not mathematics. It is then compared only as words, because to a parser of
    mathematics `listen` and `silent` are the same product of six variables."""
    return "\\" not in bones and _WORD.search(bones) is not None


def split_unit(tidied: str) -> Quantity:
    r"""Splits off a unit: a trailing `\text{ cm}^2`, or a plain word in which no formula would end."""
    match = _TEXT_UNIT.fullmatch(tidied) or _WORD_UNIT.fullmatch(tidied)
    if match is None:
        return Quantity(tidied, "")
    words = match["unit"].lower().replace(".", " ").split()
    if _CONNECTIVES.intersection(words):
        return Quantity(tidied, "")
    known = [_UNITS.get(word, _UNITS.get(word.removesuffix("s"), "")) for word in words]
    is_plain_word = match.re is _WORD_UNIT
    if is_plain_word and not all(name or len(word) >= 4 for name, word in zip(known, words, strict=True)):
        return Quantity(tidied, "")
    power = (match["power"] or "").strip("^{} ")
    unit = known[0] + power if len(known) == 1 and known[0] else ""
    return Quantity(match["value"].rstrip(" /\\"), unit)


def units_conflict(answer: Quantity, gold: Quantity) -> bool:
    """Whether both carry a known unit, and these differ. A missing or unknown unit is no conflict."""
    return bool(answer.unit and gold.unit) and answer.unit != gold.unit


_BASE = re.compile(r"[0-9a-zA-Z]+_\{?(\d+)\}?")


def bases_conflict(answer: str, gold: str) -> bool:
    """Whether two numerals have different bases, like `1011_2` and `1011_3`: math-verify drops the base."""
    of_answer, of_gold = _BASE.fullmatch(answer), _BASE.fullmatch(gold)
    return of_answer is not None and of_gold is not None and of_answer[1] != of_gold[1]
