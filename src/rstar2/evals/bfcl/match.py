"""Whether the calls that were made are those that are right, by BFCL's rules for each category. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rstar2.data import FunctionCallTask
from rstar2.evals.bfcl.values import OPTIONAL, Language, is_right_value

RELEVANCE = ("live_relevance",)
IRRELEVANCE = ("irrelevance", "live_irrelevance")


@dataclass(frozen=True, slots=True)
class Call:
    name: str
    arguments: Mapping[str, Any]


def matches(task: FunctionCallTask, calls: Sequence[Call]) -> bool:
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


def _is_right_call(task: FunctionCallTask, call: Call, right: Mapping[str, Any]) -> bool:
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
    """Where only one function is on offer it is meant, whatever the right call names it."""
    if len(task.functions) == 1 and "multiple" not in task.category and "parallel" not in task.category:
        return task.functions[0]
    return next((function for function in task.functions if function["name"] == name), None)


def is_answerable(task: FunctionCallTask) -> bool:
    """Whether any calls at all could be right. A few of BFCL's golds name an argument that the function does not have,
    or list no right value for one that must be given."""
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
