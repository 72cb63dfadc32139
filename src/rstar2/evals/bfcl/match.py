"""Compares the calls that a model made with the right ones, by BFCL's rules for each category. Pure.

Types are exact: an int is no bool, and an int is accepted for a float. Strings are compared without case, spaces and
the signs `,./-_*^`. An empty string among the right values means that the argument may be left out. Java and JavaScript
arguments are source text from which values are read.
"""

import re
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

from rstar2.data import FunctionCallTask
from rstar2.evals.bfcl.source_text import java_value, js_value
from rstar2.records import ToolCall

RELEVANCE = ("live_relevance",)
IRRELEVANCE = ("irrelevance", "live_irrelevance")
_PYTHON_TYPES: dict[str, type] = {
    "string": str,
    "any": str,
    "integer": int,
    "float": float,
    "boolean": bool,
    "array": list,
    "tuple": list,
    "dict": dict,
}
_JAVA_TYPES: dict[str, type] = {
    "String": str,
    "char": str,
    "any": str,
    "byte": int,
    "short": int,
    "integer": int,
    "long": int,
    "float": float,
    "double": float,
    "boolean": bool,
    "Array": list,
    "ArrayList": list,
    "HashMap": dict,
}
_JS_TYPES: dict[str, type] = {
    "String": str,
    "any": str,
    "integer": int,
    "Bigint": int,
    "float": float,
    "Boolean": bool,
    "array": list,
    "dict": dict,
}
_IGNORED_SIGNS = re.compile(r"[ ,./\-_*^]")
OPTIONAL = ""


class Language(Enum):
    """The programming language of a problem's functions."""

    PYTHON = "Python"
    JAVA = "Java"
    JAVASCRIPT = "JavaScript"

    @classmethod
    def of(cls, category: str) -> "Language":
        return {"java": cls.JAVA, "javascript": cls.JAVASCRIPT}.get(category, cls.PYTHON)

    @property
    def types(self) -> dict[str, type]:
        return {Language.PYTHON: _PYTHON_TYPES, Language.JAVA: _JAVA_TYPES, Language.JAVASCRIPT: _JS_TYPES}[self]


def matches(task: FunctionCallTask, calls: Sequence[ToolCall]) -> bool:
    if task.category in IRRELEVANCE:
        return not calls
    if task.category in RELEVANCE:
        return bool(calls)
    if len(calls) != len(task.ground_truth):
        return False
    unmatched = list(calls)
    for right in task.ground_truth:
        found = next((call for call in unmatched if _is_right_call(task, call, right)), None)
        if found is None:
            return False
        unmatched.remove(found)
    return True


def _is_right_call(task: FunctionCallTask, call: ToolCall, right: Mapping[str, Any]) -> bool:
    (right_name, right_arguments), *_ = right.items()
    function = _function(task, right_name)
    if function is None or call.name != function["name"]:
        return False
    schema = function.get("parameters") or {}
    properties = schema.get("properties") or {}
    if any(name not in call.arguments for name in schema.get("required") or ()):
        return False
    for name, value in call.arguments.items():
        if name not in properties or name not in right_arguments:
            return False
        if not is_right_value(value, right_arguments[name], properties[name], Language.of(task.category)):
            return False
    return all(name in call.arguments or OPTIONAL in values for name, values in right_arguments.items())


def _function(task: FunctionCallTask, name: str) -> Mapping[str, Any] | None:
    """The function of this name. If only one function is offered, it is that one, whatever the name."""
    if len(task.functions) == 1 and "multiple" not in task.category and "parallel" not in task.category:
        return task.functions[0]
    return next((function for function in task.functions if function["name"] == name), None)


def is_answerable(task: FunctionCallTask) -> bool:
    """Whether any calls could be right. A few of BFCL's golds name an argument that the function does not have, or list
    no right value for a required one."""
    return all(_is_answerable_call(task, right) for right in task.ground_truth)


def _is_answerable_call(task: FunctionCallTask, right: Mapping[str, Any]) -> bool:
    (right_name, right_arguments), *_ = right.items()
    function = _function(task, right_name)
    if function is None:
        return False
    schema = function.get("parameters") or {}
    needed = {
        *(schema.get("required") or ()),
        *(name for name, values in right_arguments.items() if OPTIONAL not in values),
    }
    return all(name in (schema.get("properties") or {}) and right_arguments.get(name) for name in needed)


def is_right_value(
    value: Any, right_values: Sequence[Any], details: Mapping[str, Any], language: Language = Language.PYTHON
) -> bool:
    """Whether an argument's value is right. `details` is the argument's part of the function's schema."""
    name = str(details.get("type"))
    expected, item_name = language.types.get(name), _item_type(details)
    if language is not Language.PYTHON:
        if type(value) is not str:
            return False
        read = java_value if language is Language.JAVA else js_value
        value = read(value, name, item_name if expected is list else None)
    inner = language.types.get(item_name) if expected is list and item_name else None
    if language is Language.PYTHON and name == "float" and type(value) is int:
        value = float(value)
    is_typed, is_variable = _has_type(value, right_values, expected, inner)
    if not is_typed:
        return False
    if not is_variable:
        if expected is dict:
            return any(_is_right_dict(value, right) for right in right_values if right != OPTIONAL)
        if expected is list and inner is dict:
            return any(_is_right_dict_list(value, right) for right in right_values)
        if expected is str:
            return plain(value) in [plain(right) for right in right_values if type(right) is str]
        if expected is list:
            return [plain(item) for item in value] in [[plain(item) for item in right] for right in right_values]
    return value in right_values


def plain(value: Any) -> Any:
    """A string as BFCL compares it; any other value unchanged."""
    if type(value) is not str:
        return value
    return _IGNORED_SIGNS.sub("", value).lower().replace("'", '"')


def _item_type(details: Mapping[str, Any]) -> str | None:
    items = details.get("items")
    return str(items["type"]) if isinstance(items, Mapping) and "type" in items else None


def _has_type(value: Any, right_values: Sequence[Any], expected: type | None, inner: type | None) -> tuple[bool, bool]:
    """Whether the type is right, and whether the right values have another type than the schema says, as when a
    variable's name stands for a value."""
    example = next((type(right) for right in right_values if right != OPTIONAL), None)
    is_variable = example is not None and example is not expected
    if type(value) is expected:
        return inner is None or any(_items_have_type(value, right, inner) for right in right_values), is_variable
    return (True, True) if example is not None and type(value) is example else (False, False)


def _items_have_type(items: Any, right: Any, inner: type) -> bool:
    if type(right) is not list:
        return True
    return all(_has_type(item, right, inner, None)[0] for item in items)


def _is_right_dict(value: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    for key, item in value.items():
        if key not in right or plain(item) not in [plain(possible) for possible in right[key]]:
            return False
    return all(key in value or OPTIONAL in possible for key, possible in right.items())


def _is_right_dict_list(values: Sequence[Any], rights: Sequence[Any]) -> bool:
    if len(values) != len(rights):
        return False
    return all(
        isinstance(value, dict) and _is_right_dict(value, right) for value, right in zip(values, rights, strict=True)
    )
