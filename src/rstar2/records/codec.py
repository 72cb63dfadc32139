r"""Encodes records as one line of JSON each, and decodes them, by pydantic's `TypeAdapter`.

Invariant: `decode(type(record), encode(record)) == record`, floats bit for bit. Every field is written, so null is a
value and never an omission. `decode` checks each value against its declared type and converts nothing, except that a
JSON integer is accepted for a float. Unknown fields and unknown schema versions are refused.

The line is UTF-8. A model can write a lone surrogate into a tool call as `"\ud83d"`. It has no UTF-8 form, is stored as
that escape, and is refused by pydantic's parser, so such lines go the slower way through Python's own `json`. A high
and a low surrogate side by side are read as the character that they encode: JSON cannot tell the two apart.

`python benchmarks/records.py` on one core: 200 MB/s encoded and 300 decoded. Python's `json`, which checks no types,
came to 55 and 79 in the same run.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from types import GenericAlias
from typing import TYPE_CHECKING, Any, TypeVar

from rstar2.errors import UserError

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

Record = TypeVar("Record")

_ADAPTERS: dict[type[object], "TypeAdapter[Any]"] = {}
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}".encode()
"""The character that pydantic writes for a lone surrogate in a key, without an error."""


class RecordError(UserError):
    """A text that is not a record which this build can read."""


def encode(record: object) -> bytes:
    """One line of JSON, without its newline. ValueError names the field whose value JSON cannot hold."""
    try:
        for path, value in _free_values(record):
            _require_json(value, path)
        line = _encode(record)
        if b"NaN" in line or b"Infinity" in line:
            _require_json(record, "")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"cannot store {_name_of(record)}: {error}") from error
    return line


def decode(kind: type[Record], line: bytes) -> Record:
    """The record in `line`; RecordError names the field that is not as `kind` declares it."""
    from pydantic import ValidationError

    name = kind.__name__.lower()
    record: Record
    try:
        try:
            (record,) = _adapter(kind).validate_json(b"[" + line + b"]", strict=True)
        except ValidationError as error:
            tree = _parse(line)
            if isinstance(tree, dict):
                _check_version(kind, name, tree.get("schema_version"))
            if error.errors(include_url=False)[0]["type"] != "json_invalid":
                raise
            record = _decode_tree(kind, tree)
    except ValidationError as error:
        raise RecordError(f"not a valid {name}: {_sentence(error)}") from error
    _check_version(kind, name, getattr(record, "schema_version", None))
    for path, value in _free_values(record):
        try:
            _require_json(value, path)
        except ValueError as error:
            raise RecordError(f"not a valid {name}: {error}") from error
    return record


def _adapter(kind: type[object]) -> "TypeAdapter[Any]":
    """The adapter for a tuple of one record, because a dataclass alone takes no configuration from outside. It is made
    at first use: importing pydantic takes longer than many programs that only need the classes."""
    if kind not in _ADAPTERS:
        from pydantic import ConfigDict, TypeAdapter

        config = ConfigDict(extra="forbid", allow_inf_nan=False, ser_json_inf_nan="constants")
        one_record: Any = GenericAlias(tuple, kind)
        _ADAPTERS[kind] = TypeAdapter(one_record, config=config)
    return _ADAPTERS[kind]


def _encode(record: object) -> bytes:
    try:
        line = _adapter(type(record)).dump_json((record,), warnings="error")[1:-1]
        if _REPLACEMENT not in line:
            return line
    except ValueError:  # a lone surrogate, or a value that is not as its class declares it
        pass
    text = json.dumps(record, default=_fields_of, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", errors="backslashreplace")


def _parse(line: bytes) -> Any:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not a JSON number")

    try:
        return json.loads(line.decode("utf-8"), parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"not JSON: {error}") from error


def _decode_tree(kind: type[Record], tree: Any) -> Record:
    """Decodes a record with lone surrogates. Types are checked on a copy without them: only when pydantic reads JSON
    itself does it convert nothing."""
    without = json.dumps([tree], ensure_ascii=False).encode("utf-8", errors="replace")
    _adapter(kind).validate_json(without, strict=True)
    record: Record = _adapter(kind).validate_python([tree])[0]
    return record


def _check_version(kind: type[object], name: str, version: object) -> None:
    """Raises an error for another schema version: its fix differs from that of a damaged record."""
    readable = getattr(kind, "__dataclass_fields__", {}).get("schema_version")
    if readable is None or version is None or version == readable.default:
        return
    raise RecordError(
        f"{name} has schema version {version}, but this build reads version {readable.default}; "
        f"use the rstar2 release that wrote it, or a later one"
    )


def _sentence(error: "ValidationError") -> str:
    """The first mistake, such as `turns[2].step: input should be a valid integer, found "x"`."""
    first = error.errors(include_url=False)[0]
    steps = [f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"][1:]]
    mistake = {"unexpected_keyword_argument": "unknown field", "missing": "missing field"}.get(first["type"])
    if mistake:
        sentence = f"{mistake} {steps.pop().removeprefix('.')}" if steps else mistake
    elif first["type"] == "value_error":  # a rule of the record itself, such as lengths that must agree
        sentence = str(first["ctx"]["error"])
    else:
        shown = json.dumps(first["input"])
        shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
        sentence = f"{first['msg'][:1].lower()}{first['msg'][1:]}, found {shown}"
    path = "".join(steps).removeprefix(".")
    return f"{path}: {sentence}" if path else sentence


def _name_of(record: object) -> str:
    identity = getattr(record, "id", None)
    return type(record).__name__.lower() + (f" {identity}" if identity is not None else "")


def _fields_of(record: Any) -> dict[str, Any]:
    if not is_dataclass(record):
        raise ValueError(f"a value of type {type(record).__name__} has no JSON form")
    return {field.name: getattr(record, field.name) for field in fields(record)}


def _free_values(record: object, path: str = "") -> Iterator[tuple[str, dict[Any, Any]]]:
    """The dicts inside a record, with their paths: pydantic writes and reads any value in them, even one that is not
    JSON."""
    for name, value in _fields_of(record).items():
        inside = f"{path}.{name}" if path else name
        if isinstance(value, dict):
            yield inside, value
        elif isinstance(value, tuple) and value and is_dataclass(value[0]):
            for index, item in enumerate(value):
                yield from _free_values(item, f"{inside}[{index}]")


def _require_json(value: object, path: str) -> None:
    """Raises ValueError for the first value inside that JSON cannot hold, named like `turns[2].log_probs[17]`."""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{path} is not a finite number")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _require_json(item, f"{path}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            _require_json(item, f"{path}[{index}]")
    elif value is not None and not isinstance(value, (str, int)):
        for name, item in _fields_of(value).items():
            _require_json(item, f"{path}.{name}" if path else name)
