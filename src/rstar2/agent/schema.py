"""The part of JSON Schema that tools describe their arguments with, and the check of a value against it.

An unknown rule is refused when the tool is defined, so that every rule of a schema is checked at a call.
"""

from collections.abc import Mapping
from typing import Any

from rstar2.errors import UserError

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}
_RULES = {"type", "enum", "properties", "required", "additionalProperties", "items", "minimum", "maximum"}
_REMARKS = {"title", "description", "default", "examples"}


def check_schema(schema: Mapping[str, Any], path: str = "parameters") -> None:
    """UserError names the first rule that `mismatch` would not hold a value against."""
    for key in schema:
        if key not in _RULES | _REMARKS:
            raise UserError(f"{path}.{key} is not understood; a tool's schema may use {', '.join(sorted(_RULES))}")
    for name in _type_names(schema):
        if name not in _TYPES:
            raise UserError(f"{path}.type is {name!r}; it must be one of {', '.join(_TYPES)}")
    if not isinstance(schema.get("additionalProperties", False), bool):
        raise UserError(f"{path}.additionalProperties must be true or false")
    for name, inner in schema.get("properties", {}).items():
        check_schema(inner, f"{path}.properties.{name}")
    if "items" in schema:
        check_schema(schema["items"], f"{path}.items")


def mismatch(value: Any, schema: Mapping[str, Any], path: str = "arguments") -> str | None:
    """What is wrong with `value`, as a clause that starts with its path; None if nothing is."""
    names = _type_names(schema)
    if names and not any(_is_a(value, name) for name in names):
        return f"{path} must be of type {' or '.join(names)}, not {_type_of(value)}"
    if "enum" in schema and value not in schema["enum"]:
        return f"{path} must be one of {', '.join(map(repr, schema['enum']))}"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if value < schema.get("minimum", value):
            return f"{path} must be at least {schema['minimum']}"
        if value > schema.get("maximum", value):
            return f"{path} must be at most {schema['maximum']}"
    if isinstance(value, dict):
        return _object_mismatch(value, schema, path)
    if isinstance(value, list) and "items" in schema:
        found = (mismatch(item, schema["items"], f"{path}[{index}]") for index, item in enumerate(value))
        return next((problem for problem in found if problem), None)
    return None


def _object_mismatch(value: dict[str, Any], schema: Mapping[str, Any], path: str) -> str | None:
    properties = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            return f"{path} lacks {name!r}"
    for name, item in value.items():
        if name in properties:
            problem = mismatch(item, properties[name], f"{path}.{name}")
            if problem:
                return problem
        elif not schema.get("additionalProperties", False):
            known = ", ".join(map(repr, properties)) or "nothing"
            return f"{path} holds {name[:40]!r}, which is unknown; it may hold {known}"
    return None


def _type_names(schema: Mapping[str, Any]) -> list[str]:
    names = schema.get("type", [])
    return [names] if isinstance(names, str) else list(names)


def _is_a(value: Any, name: str) -> bool:
    # In Python a bool is an int; in JSON it is not.
    return isinstance(value, _TYPES[name]) and (not isinstance(value, bool) or name == "boolean")


def _type_of(value: Any) -> str:
    return next(name for name in _TYPES if _is_a(value, name))
