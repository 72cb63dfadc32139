"""Where a dotted path leads in the models of a recipe, and what types and values are called in plain English.

The reference (`explain`) and the error messages both speak through here, so they cannot disagree.
"""

import datetime
import json
import re
import types
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic.fields import FieldInfo

from rstar2.config.checks import Path
from rstar2.config.recipe import Recipe
from rstar2.config.section import Section
from rstar2.extensions import Table

_PLAIN = {int: "integer", float: "number", str: "text", bool: "true or false"}
_MAX_SHOWN_CHARS = 60
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class Place:
    """What the models say about a path: the innermost field on it, the path of that field, and the type at its end."""

    path: Path
    field: FieldInfo | None
    type: Any
    """The type of the field; None if there is no such field."""


def place_of(path: Path) -> Place:
    at: Path = ()
    field: FieldInfo | None = None
    kind: Any = Recipe
    for depth, part in enumerate(path, start=1):
        if is_section(kind):
            inner = kind.model_fields.get(part)
            if inner is None:
                return Place(at, field, None)
            at, field, kind = path[:depth], inner, without_none(inner.annotation)
        elif get_origin(kind) is tuple:
            kind = get_args(kind)[0]
        elif get_origin(kind) is dict:
            kind = get_args(kind)[1]
        else:
            return Place(at, field, None)
    return Place(at, field, kind)


def is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Section)


def without_none(kind: Any) -> Any:
    """`X` for `X | None`: a value that may be left out is never written as null, so users need not know of it."""
    if get_origin(kind) in (Union, types.UnionType):
        (kind,) = (option for option in get_args(kind) if option is not type(None))
    return kind


def type_words(kind: Any, field: FieldInfo | None = None) -> str:
    """A type with its bounds, as `integer, at least 1`."""
    for item in [] if field is None else field.metadata:
        if isinstance(item, Table):
            return f"{', '.join(map(json.dumps, item))} or package.module:name"
    bounds = [] if field is None else [text for item in field.metadata if (text := _bound_text(item))]
    return ", ".join([_kind_name(without_none(kind)), *bounds])


def _kind_name(kind: Any) -> str:
    if kind in _PLAIN:
        return _PLAIN[kind]
    if is_section(kind):
        return "table"
    origin, args = get_origin(kind), get_args(kind)
    if origin is Literal:
        *others, last = (json.dumps(choice) for choice in args)
        return f"{', '.join(others)} or {last}"
    if origin is tuple:
        return "list of tables" if is_section(args[0]) else f"list of {_plural(args[0])}"
    assert origin is dict, f"a field of type {kind} has no name yet"
    return "tables by name" if is_section(args[1]) else "table"


def _plural(kind: Any) -> str:
    name = _kind_name(kind)
    return f"{name}s" if kind in _PLAIN else name


def _bound_text(item: Any) -> str:
    match item:
        case annotated_types.Ge(ge=low):
            return f"at least {low}"
        case annotated_types.Gt(gt=low):
            return f"more than {low}"
        case annotated_types.Le(le=high):
            return f"at most {high}"
        case annotated_types.Lt(lt=high):
            return f"less than {high}" if high != 1 << 63 else "less than 2^63"
        case annotated_types.MinLen(min_length=least):
            return f"at least {least} long" if least > 1 else "not empty"
    return ""


def value_words(value: Any) -> str:
    """A value as its author would recognize it, cut to a line."""
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return f"the integer {value}" if abs(value) < 10**19 else "an integer of 20 digits or more"
        case float():
            return f"the number {value!r}"
        case str():
            return f"the text {_shortened(json.dumps(value, ensure_ascii=False))}"
        case list() | tuple():
            return "a list"
        case dict():
            return "a table"
        case datetime.datetime() | datetime.date() | datetime.time():
            return f"the date or time {value.isoformat()}"
    return _shortened(repr(value))


def key_words(path: Path) -> str:
    """A path as it would be written in TOML: `train.lr`, `data."my set".source`."""
    return ".".join(
        part if _BARE_KEY.fullmatch(part) else _shortened(json.dumps(part)) for part in (str(part) for part in path)
    )


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN_CHARS else text[: _MAX_SHOWN_CHARS - 1] + "…"
