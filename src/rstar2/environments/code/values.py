"""Encodes values that cross between a program and its tests as JSON. It runs on both sides, inside and outside the
sandbox, so it uses only the standard library.

Invariant: decoded values are plain data of exact types, so an object of the program can never equal a hidden value. Any
other object stays in its process, and only a reference crosses.
"""

import builtins
import datetime
import decimal
import fractions
import importlib
import json
from collections.abc import Callable
from typing import Any

_CONTAINERS: tuple[type, ...] = (tuple, set, frozenset)
_BYTES: tuple[type, ...] = (bytes, bytearray)
_BASES: tuple[type, ...] = (int, float, complex, str, *_BYTES, list, *_CONTAINERS, dict)
_MADE: dict[str, Callable[[Any], list[Any]]] = {
    "decimal.Decimal": lambda value: [str(value)],
    "fractions.Fraction": lambda value: [value.numerator, value.denominator],
    "datetime.date": lambda value: [value.year, value.month, value.day],
    "datetime.datetime": lambda value: [*value.timetuple()[:6], value.microsecond],
    "datetime.timedelta": lambda value: [value.days, value.seconds, value.microseconds],
    "numpy.array": lambda value: [value.tolist(), value.dtype.str],
}
"""Types of data, and for each the constructor arguments that make an equal value."""
_MADE_TYPES: dict[type, str] = {
    decimal.Decimal: "decimal.Decimal",
    fractions.Fraction: "fractions.Fraction",
    datetime.date: "datetime.date",
    datetime.datetime: "datetime.datetime",
    datetime.timedelta: "datetime.timedelta",
}


def encode(value: Any, refer: Callable[[Any], Any]) -> Any:
    """`refer` returns the JSON of a reference to an object that is not plain data, or raises."""
    kind = type(value)
    if value is None or kind in (bool, float, str):
        return value
    if kind is int:
        return value if abs(value) < 1 << 63 else {"int": hex(value)}  # a long decimal text is slow to read
    if kind is list:
        return [encode(item, refer) for item in value]
    if kind in _CONTAINERS:
        items = [encode(item, refer) for item in value]
        return {kind.__name__: items if kind is tuple else sorted(items, key=json.dumps)}
    if kind is dict:
        return {"dict": [[encode(key, refer), encode(item, refer)] for key, item in value.items()]}
    if kind in _BYTES:
        return {kind.__name__: value.hex()}
    if kind is complex:
        return {"complex": [value.real, value.imag]}
    if kind in _MADE_TYPES and getattr(value, "tzinfo", None) is None:
        return _made(_MADE_TYPES[kind], value, refer)
    if kind.__module__ == "numpy":
        if kind.__name__ == "ndarray" and value.dtype.kind != "O":
            return _made("numpy.array", value, refer)
        if hasattr(value, "item") and not hasattr(value, "__len__"):
            return encode(value.item(), refer)
    for base in _BASES:  # an OrderedDict, named tuple or IntEnum equals its plain value
        if isinstance(value, base):
            return encode(base(value), refer)
    return refer(value)


def _made(name: str, value: Any, refer: Callable[[Any], Any]) -> Any:
    return {"make": [name, *(encode(argument, refer) for argument in _MADE[name](value))]}


def decode(document: Any, resolve: Callable[[str], Any], makes_objects: bool = True) -> Any:
    """`resolve` returns the object of a reference. ValueError, or a constructor's error, if the document is invalid."""

    def read(part: Any) -> Any:
        if isinstance(part, list):
            return [read(item) for item in part]
        if not isinstance(part, dict):
            return part
        ((tag, content),) = part.items()
        match tag:
            case "int":
                return int(content, 16)
            case "tuple" | "set" | "frozenset":
                return getattr(builtins, tag)(read(item) for item in content)
            case "dict":
                return {read(key): read(item) for key, item in content}
            case "bytes" | "bytearray":
                return getattr(builtins, tag).fromhex(content)
            case "complex":
                return complex(*content)
            case "make" if makes_objects and content[0] in _MADE:
                module, _, attribute = content[0].partition(".")
                return getattr(importlib.import_module(module), attribute)(*(read(item) for item in content[1:]))
            case "ref":
                return resolve(content)
        raise ValueError(f"{tag!r} is no kind of value")

    return read(document)
