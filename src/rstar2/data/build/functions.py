"""Converts lists of functions, as data sets write them, to tools in OpenAI's form. Pure."""

import json
from typing import Any

from rstar2.data.build.source import LeftOut, LeftOutError

_TYPES = {
    "dict": "object",
    "float": "number",
    "int": "integer",
    "list": "array",
    "tuple": "array",
    "str": "string",
    "bool": "boolean",
}
"""Python's names for JSON Schema's types, as ToolACE has them."""


def tool_of(function: Any) -> dict[str, Any]:
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise LeftOutError(LeftOut.BAD_TOOLS, "a function has no name")
    parameters = function.get("parameters")
    schema = _schema(parameters) if isinstance(parameters, dict) and parameters else {"type": "object"}
    schema.setdefault("properties", {})
    described = {"name": function["name"], "description": function.get("description") or "", "parameters": schema}
    return {"type": "function", "function": described}


def first_list(text: str) -> list[Any]:
    """The first JSON list of objects in a text."""
    decoder = json.JSONDecoder()
    start = text.find("[")
    while start >= 0:
        try:
            found, _ = decoder.raw_decode(text, start)
        except ValueError:
            found = None
        if isinstance(found, list) and all(isinstance(each, dict) for each in found):
            return found
        start = text.find("[", start + 1)
    raise LeftOutError(LeftOut.BAD_TOOLS, "the system text has no list of functions")


def objects_in_a_row(text: str) -> list[Any]:
    """JSON objects one after the other, with nothing but white space between them."""
    decoder, found, at = json.JSONDecoder(), [], 0
    while (at := _behind_space(text, at)) < len(text):
        try:
            value, at = decoder.raw_decode(text, at)
        except ValueError as error:
            raise LeftOutError(LeftOut.BAD_TOOLS, str(error)) from error
        found.append(value)
    return found


def _behind_space(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _schema(value: Any) -> Any:
    """The schema with JSON Schema's names of types, at every depth."""
    if isinstance(value, list):
        return [_schema(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _TYPES.get(each, each) if key == "type" and isinstance(each, str) else _schema(each)
        for key, each in value.items()
        if each is not None
    }
