r"""Records to and from one line of JSON.

Invariant: `decode(type(record), encode(record)) == record`, floats bit for bit. Every field is written, so null is a
value and never an omission. On the way in each value is held against its declared type and nothing is coerced, except
that a JSON integer is taken for a float; unknown fields and unknown schema versions are refused.

The line is UTF-8. A lone surrogate, which a model can write into a tool call as `"\ud83d"`, has no UTF-8 form and is
written as that escape. Read by Python's own parser: the one inside pydantic refuses such
escapes, and a trace must not become unreadable by what a policy wrote. A high and a low surrogate side by side are
the character they stand for: JSON cannot tell the two apart.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from rstar2.errors import UserError

Record = TypeVar("Record")


class RecordError(UserError):
    """A text that is not a record which this build can read."""


def encode(record: object) -> bytes:
    """One line of JSON, without its newline. ValueError names the field whose value JSON cannot hold."""
    try:
        text = json.dumps(record, default=_fields_of, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    except (ValueError, TypeError, RecursionError) as error:
        where = _first_non_finite(record)
        reason = f"{where} is not a finite number" if where else str(error)
        raise ValueError(f"cannot store {_name_of(record)}: {reason}") from error
    return text.encode("utf-8", errors="backslashreplace")


def decode(kind: type[Record], line: bytes) -> Record:
    """The record that `line` holds; RecordError names the field that is not as `kind` declares it."""
    name = kind.__name__.lower()
    try:
        value = json.loads(line.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"not JSON: {error}") from error
    if isinstance(value, dict):
        _check_version(kind, name, value.get("schema_version"))
    hint: Any = kind
    try:
        record: Record = _reader(hint)(value)
    except _MismatchError as mismatch:
        raise RecordError(f"not a valid {name}: {mismatch.sentence()}") from mismatch
    return record


def _check_version(kind: type[object], name: str, version: object) -> None:
    """A newer version is told apart from a damaged record, because what to do about it differs."""
    readable = getattr(kind, "__dataclass_fields__", {}).get("schema_version")
    if readable is None or version is None or version == readable.default:
        return
    raise RecordError(
        f"{name} has schema version {version}, but this build reads version {readable.default}; "
        f"use the rstar2 release that wrote it, or a later one"
    )


def _fields_of(value: object) -> dict[str, Any]:
    if not is_dataclass(value) or isinstance(value, type):
        raise TypeError(f"a value of type {type(value).__name__} has no JSON form")
    return {field.name: getattr(value, field.name) for field in fields(value)}


def _name_of(record: object) -> str:
    identity = getattr(record, "id", None)
    return type(record).__name__.lower() + (f" {identity}" if identity is not None else "")


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not a JSON number")


def _first_non_finite(value: object, path: str = "", depth: int = 0) -> str | None:
    """The path of the first NaN or infinity in `value`, as `turns[2].log_probs[17]`."""
    if isinstance(value, float):
        return None if math.isfinite(value) else path or "the value"
    if depth > 100:
        return None
    items: list[tuple[str, object]] = []
    if is_dataclass(value) and not isinstance(value, type):
        items = [(f"{path}.{name}" if path else name, item) for name, item in _fields_of(value).items()]
    elif isinstance(value, Mapping):
        items = [(f"{path}[{key!r}]", item) for key, item in value.items()]
    elif isinstance(value, (list, tuple)):
        items = [(f"{path}[{index}]", item) for index, item in enumerate(value)]
    found = (_first_non_finite(item, where, depth + 1) for where, item in items)
    return next((where for where in found if where), None)


class _MismatchError(Exception):
    """A value that is not of its declared type; the path to it grows while the exception leaves the nested readers."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path: list[str] = []

    def inside(self, step: str) -> "_MismatchError":
        self.path.insert(0, step)
        return self

    def sentence(self) -> str:
        path = "".join(self.path).removeprefix(".")
        return f"{path}: {self.reason}" if path else self.reason


Reader = Callable[[Any], Any]


@cache
def _reader(hint: Any) -> Reader:
    """The function that turns parsed JSON into a value of type `hint`, or raises `_MismatchError`."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        (inner,) = (argument for argument in arguments if argument is not NoneType)
        return _optional_reader(_reader(inner))
    if origin is tuple:
        return _tuple_reader(_reader(arguments[0]))
    if origin is dict:
        return _dict_reader(_reader(arguments[1]))
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return _enum_reader(hint)
    if is_dataclass(hint):
        return _dataclass_reader(hint)
    return {int: _read_int, float: _read_float, str: _read_str, Any: _read_any}[hint]


def _expected(what: str, value: object) -> _MismatchError:
    shown = json.dumps(value)
    return _MismatchError(f"expected {what}, found {shown if len(shown) <= 60 else shown[:57] + '...'}")


def _read_int(value: Any) -> int:
    if type(value) is not int:
        raise _expected("an integer", value)
    return value


def _read_float(value: Any) -> float:
    if type(value) is int:
        try:
            return float(value)
        except OverflowError:
            raise _expected("a finite number", value) from None
    if type(value) is not float or not math.isfinite(value):
        raise _expected("a finite number", value)
    return value


def _read_str(value: Any) -> str:
    if type(value) is not str:
        raise _expected("a string", value)
    return value


def _read_any(value: Any) -> Any:
    where = _first_non_finite(value)
    if where:
        raise _MismatchError(f"{where} is not a finite number")
    return value


def _optional_reader(inner: Reader) -> Reader:
    return lambda value: None if value is None else inner(value)


def _tuple_reader(inner: Reader) -> Reader:
    def read(value: Any) -> tuple[Any, ...]:
        if type(value) is not list:
            raise _expected("an array", value)
        try:
            return tuple(map(inner, value))
        except _MismatchError:
            return tuple(_read_at(inner, f"[{index}]", item) for index, item in enumerate(value))

    return read


def _dict_reader(inner: Reader) -> Reader:
    def read(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise _expected("an object", value)
        return {key: _read_at(inner, f"[{key!r}]", item) for key, item in value.items()}

    return read


def _enum_reader(kind: type[StrEnum]) -> Reader:
    members = {member.value: member for member in kind}

    def read(value: Any) -> StrEnum:
        member = members.get(value) if type(value) is str else None
        if member is None:
            raise _expected(f"one of {', '.join(members)}", value)
        return member

    return read


def _dataclass_reader(kind: Any) -> Reader:
    hints = get_type_hints(kind)
    readers = {field.name: _reader(hints[field.name]) for field in fields(kind)}
    required = {field.name for field in fields(kind) if field.default is MISSING and field.default_factory is MISSING}

    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise _expected("an object", value)
        for problem, names in ("unknown", value.keys() - readers.keys()), ("missing", required - value.keys()):
            if names:
                raise _MismatchError(f"{problem} field {', '.join(sorted(names))}")
        arguments = {name: _read_at(readers[name], f".{name}", item) for name, item in value.items()}
        try:
            return kind(**arguments)
        except ValueError as error:
            # A rule of the record itself: lengths that must agree.
            raise _MismatchError(str(error)) from error

    return read


def _read_at(inner: Reader, step: str, value: Any) -> Any:
    try:
        return inner(value)
    except _MismatchError as mismatch:
        raise mismatch.inside(step) from None
