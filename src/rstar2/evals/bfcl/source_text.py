"""Reads the values of Java and JavaScript arguments, which models write as source text, as BFCL does. Pure.

A text that is no literal of the expected type stays a text, because it may name a variable. The literals are those that
BFCL's own converters accept, with their quirks (an `Array` of strings keeps the quotes of its elements, a comma inside
a string separates elements), since the golds were written for them.
"""

import re
from collections.abc import Callable
from typing import Any

MAX_CHARS = 4096
"""The longest literal that is read. A longer text stays a text: no gold is that long, and reading can take quadratic
time."""

_BOOLEANS = {"true": True, "false": False}
_DECIMAL = r"-?\d+(\.\d+)?([eE][+-]?\d+)?"
_WHOLE = re.compile(r"-?\d+$")
_JAVA_NUMBERS: dict[str, tuple[re.Pattern[str], Callable[[str], Any]]] = {
    **dict.fromkeys(("byte", "short", "integer"), (_WHOLE, int)),
    "long": (re.compile(r"-?\d+[lL]$"), lambda text: int(text.rstrip("lL"))),
    "float": (re.compile(rf"{_DECIMAL}[fF]$"), lambda text: float(text.rstrip("fF"))),
    "double": (re.compile(rf"{_DECIMAL}$"), float),
}
_JS_NUMBERS: dict[str, tuple[re.Pattern[str], Callable[[str], Any]]] = {
    "integer": (_WHOLE, int),
    "float": (re.compile(r"-?\d+(\.\d+)?$"), float),
    "Bigint": (re.compile(r"-?\d+n$"), lambda text: int(text.rstrip("n"))),
}

_LIST_OF = re.compile(r"new\s+ArrayList<\w*>\(Arrays\.asList\((.+?)\)\)")
_LIST_WITH_ADDS = re.compile(r"new\s+ArrayList<\w*>\(\)\s*\{\{(.+?)\}\}", re.DOTALL)
_ADD = re.compile(r"add\((.+?)\)")
_EMPTY_LIST = re.compile(r"new\s+ArrayList<\w*>\(\)")
_ARRAY = re.compile(r"new\s+\w+\[\]\s*\{(.*?)\}")
_MAP_WITH_PUTS = re.compile(r"new\s+HashMap<.*?>\s*\(\)\s*\{(.*?)\}", re.DOTALL)
_PUT = re.compile(r"put\(\"(.*?)\",\s*(.*?)\)")
_EMPTY_MAP = re.compile(r"new\s+HashMap<.*?>\s*\(\)")

_ROWS_START = re.compile(r"\[\s*\[|(new\s+Array)\(\s*\[")
_ROW = re.compile(r"\[(.*?)\]")
_NEXT_ROW = re.compile(r"\s*,\s*\[")
_JS_LIST = re.compile(r"\[(.*?)\]|new\s+Array\((.*?)\)")
_JS_OBJECT = re.compile(r"\{(.*?)\}")
_JS_FIELD = re.compile(r"([^:]+):\s*(.*?)(?:,\s*(?=[^,]+:)|$)")


def java_value(text: str, type_name: str, item_type: str | None = None) -> Any:
    """The value of `text` if a `type_name` is expected; `item_type` is the type of a list's elements."""
    if len(text) > MAX_CHARS:
        return text
    match type_name:
        case "boolean":
            return _BOOLEANS.get(text, text)
        case "ArrayList":
            return _java_list(text, item_type)
        case "Array":
            found = _ARRAY.search(text)
            return text if found is None else [_java_item(item, item_type) for item in _filled(found[1])]
        case "HashMap":
            return _java_map(text)
    return _number(text, _JAVA_NUMBERS.get(type_name))


def js_value(text: str, type_name: str, item_type: str | None = None) -> Any:
    if len(text) > MAX_CHARS:
        return text
    match type_name:
        case "String":
            return text[1:-1] if _is_quoted(text, "\"'") else text
        case "Boolean":
            return _BOOLEANS.get(text, text)
        case "array":
            return _js_list(text.strip(), item_type)
        case "dict":
            return _js_object(text.strip())
    return _number(text, _JS_NUMBERS.get(type_name))


def _number(text: str, form: tuple[re.Pattern[str], Callable[[str], Any]] | None) -> Any:
    if form is None or not form[0].match(text):
        return text
    try:
        return form[1](text.strip())
    except ValueError:
        # Python reads no number of more than 4,300 digits.
        return text


def _filled(items: str) -> list[str]:
    return [item.strip() for item in items.split(",") if item.strip()]


def _java_list(text: str, item_type: str | None) -> Any:
    if found := _LIST_OF.search(text):
        items = [item.strip() for item in found[1].split(",")]
    elif found := _LIST_WITH_ADDS.search(text):
        items = [item.strip() for item in _ADD.findall(found[1])]
    else:
        return [] if _EMPTY_LIST.search(text) else text
    return [item[1:-1] if item_type in ("char", "String") else _java_item(item, item_type) for item in items]


def _java_item(text: str, item_type: str | None) -> Any:
    return java_value(text, item_type) if item_type else _untyped(text, '"')


def _java_map(text: str) -> Any:
    if found := _MAP_WITH_PUTS.search(text):
        return {key: _untyped(value.strip(), '"') for key, value in _PUT.findall(found[1])}
    return {} if _EMPTY_MAP.search(text) else text


def _untyped(text: str, quotes: str) -> Any:
    """A value of unknown type: a boolean, a string, a number, or else a name."""
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if _is_quoted(text, quotes):
        return text[1:-1]
    if quotes == '"':
        for kind in ("long", "float"):
            if (value := _number(text, _JAVA_NUMBERS[kind])) != text:
                return value
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return text


def _is_quoted(text: str, quotes: str) -> bool:
    return any(text.startswith(quote) and text.endswith(quote) for quote in quotes)


def _js_list(text: str, item_type: str | None) -> Any:
    if (end := _end_of_rows(text)) is not None:
        rows = _ROW.findall(text[:end])
        rows[0] = rows[0].strip().removeprefix("[")
        return [[_untyped(item.strip(), "\"'") for item in row.strip().split(",")] for row in rows]
    found = _JS_LIST.match(text)
    if found is None:
        return text
    inside = (found[1] if found[1] is not None else found[2]).strip()
    items = [item.strip() for item in inside.split(",")] if inside else []
    return [js_value(item, item_type) if item_type else _untyped(item, "\"'") for item in items]


def _end_of_rows(text: str) -> int | None:
    """The end of the list of lists with which the text starts; None if it starts with none.

    A row ends at the nearest `]` that another row or the end of the list follows. BFCL's single regular expression for
    this takes exponential time if the list is not closed."""
    start = _ROWS_START.match(text)
    if start is None:
        return None
    close = ")" if start[1] else "]"
    ends: dict[int, int] = {}
    """For each `]` after which the list can continue to its end, that end; filled from the right."""
    for position in range(len(text) - 1, start.end() - 1, -1):
        if text[position] != "]":
            continue
        row, rest = _NEXT_ROW.match(text, position + 1), text[position + 1 :].lstrip()
        if row is not None and (closing := _closing(text, row.end(), ends)) is not None:
            ends[position] = ends[closing]
        elif rest.startswith(close):
            ends[position] = len(text) - len(rest) + 1
    first = _closing(text, start.end(), ends)
    return None if first is None else ends[first]


def _closing(text: str, start: int, ends: dict[int, int]) -> int | None:
    """The first `]` from `start` on that can end a row, which holds no line break."""
    line_end = text.find("\n", start)
    found = min((position for position in ends if position >= start), default=None)
    return None if found is None or 0 <= line_end < found else found


def _js_object(text: str) -> Any:
    found = _JS_OBJECT.match(text)
    if found is None:
        return text
    value: dict[str, Any] = {}
    for name, written in _JS_FIELD.findall(found[1]):
        value[name.strip().strip("'\"")] = _js_field(written.strip())
    return value


def _js_field(text: str) -> Any:
    if text.startswith("[") and text.endswith("]"):
        return _js_list(text, None)
    if text.startswith("{") and text.endswith("}"):
        return _js_object(text)
    return _untyped(text.strip("'\"").strip(), "\"'")
