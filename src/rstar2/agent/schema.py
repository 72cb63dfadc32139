"""Checks the arguments of a call against the JSON Schema (draft 2020-12) with which the tool describes them.

`jsonschema` does the checking. Schemas come from servers that we did not write and arguments from a model, so four
things are added. No `$ref` leaves the schema. A check never raises. Its time is linear in the arguments: a `$ref` is
checked once for each value, and regular expressions never backtrack. And a name that no `properties` lists is refused
unless the schema allows it.
"""

import functools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Self

from jsonschema import Draft202012Validator, SchemaError, ValidationError
from jsonschema.exceptions import best_match
from jsonschema.protocols import Validator
from jsonschema.validators import extend
from pydantic_core import SchemaError as PatternError
from pydantic_core import SchemaValidator, core_schema
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from rstar2.errors import UserError

MAX_CLAUSE_CHARS = 300
_NAME_CHARS = 40
_VALUE_CHARS = 100
_PLAIN_VALUES = {"enum", "const", "default", "examples"}
"""Keywords that hold values and no schemas."""
_IN_PLACE = ("allOf", "anyOf", "oneOf", "if", "then", "else", "$ref")
"""Keywords whose schemas describe the same value as the schema around them."""

_TYPES = {"string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,), "array": (list,)}
"""For each type of JSON Schema, Python types all of whose values have it. Values of other types may have it too: 1.0 is
an integer."""
_NO_RULE = {"type", "title", "description", "default"}
"""The type, which is checked apart, and keywords that refuse nothing."""

_Errors = Iterator[ValidationError]
_checked: ContextVar[dict[tuple[str, int], bool]] = ContextVar("checked")
"""Whether a reference holds for a value, in the present check."""


class ArgumentsCheck:
    """The check of a tool's arguments, compiled once. UserError if the schema cannot be used."""

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        try:
            schema = _without_names(parameters)
            _CHECKER.check_schema(schema)
            _require_usable(schema)
            self._known = _known_names(schema)
        except SchemaError as error:
            raise UserError(f"{_path('parameters', error)}: {error.message[:_VALUE_CHARS]}") from None
        except RecursionError:
            raise UserError("parameters: the schema is nested too deep") from None
        self._validator: Validator = _CHECKER(schema, registry=Registry())
        self._plain = _PlainSchema.of(schema)

    def mismatch(self, arguments: dict[str, Any]) -> str | None:
        """What is wrong with the arguments, as a clause that starts with the path; None if nothing is."""
        if self._plain is not None and self._plain.surely_allows(arguments):
            return None
        token = _checked.set({})
        try:
            error = next(iter(self._validator.iter_errors(arguments)), None)
            if error is not None:
                return _clause(error)[:MAX_CLAUSE_CHARS]
        except (RecursionError, ArithmeticError) as problem:
            return f"arguments cannot be checked: {type(problem).__name__}"
        finally:
            _checked.reset(token)
        unknown = [] if self._known is None else [name for name in arguments if name not in self._known]
        return _unknown("arguments", unknown[0], self._known or ())[:MAX_CLAUSE_CHARS] if unknown else None


@dataclass(frozen=True, slots=True)
class _PlainSchema:
    """A schema that names arguments and their types, and nothing else, as most tools have it. Right arguments, which
    each call of each rollout has to check, need no validator."""

    types: dict[str, tuple[type, ...]]
    required: frozenset[str]

    @classmethod
    def of(cls, schema: Any) -> Self | None:
        """The plain form of a schema that was checked already; None if it has other rules."""
        if not isinstance(schema, dict) or schema.keys() - _NO_RULE - {"properties", "required"}:
            return None
        properties = schema.get("properties", {})
        kinds = {name: inner.get("type") for name, inner in properties.items() if _has_only_a_type(inner)}
        if schema.get("type") != "object" or kinds.keys() != properties.keys():
            return None
        return cls({name: _TYPES[kind] for name, kind in kinds.items()}, frozenset(schema.get("required", ())))

    def surely_allows(self, arguments: dict[str, Any]) -> bool:
        has_types = all(type(value) in self.types.get(name, ()) for name, value in arguments.items())
        return has_types and self.required <= arguments.keys()


def _has_only_a_type(schema: Any) -> bool:
    if not isinstance(schema, dict) or schema.keys() - _NO_RULE:
        return False
    kind = schema.get("type")
    return isinstance(kind, str) and kind in _TYPES


def _ref(validator: Any, ref: str, instance: Any, schema: Any) -> _Errors:
    """`$ref`. A recursive schema asks about the same value again and again, twice as often at each level of nesting; so
    the first answer is kept. Until there is one the value counts as right, which ends references in a circle."""
    answers, key = _checked.get(), (ref, id(instance))
    if key in answers:
        if not answers[key]:
            yield ValidationError(f"does not match {ref}")
        return
    answers[key] = True
    for error in Draft202012Validator.VALIDATORS["$ref"](validator, ref, instance, schema):
        answers[key] = False
        yield error


def _pattern(_validator: Any, pattern: str, instance: Any, _schema: Any) -> _Errors:
    if isinstance(instance, str) and not _found(pattern, instance):
        yield ValidationError("does not match the pattern")


def _pattern_properties(validator: Any, schemas: dict[str, Any], instance: Any, _schema: Any) -> _Errors:
    if isinstance(instance, dict):
        for pattern, inner in schemas.items():
            for name in instance:
                if _found(pattern, name):
                    yield from validator.descend(instance[name], inner, path=name, schema_path=pattern)


def _additional_properties(validator: Any, additional: Any, instance: Any, schema: dict[str, Any]) -> _Errors:
    if not isinstance(instance, dict):
        return
    listed, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    for name in instance:
        if name in listed or any(_found(pattern, name) for pattern in patterns):
            continue
        if additional is False:
            yield ValidationError(_unknown("", name, listed))
        else:
            yield from validator.descend(instance[name], additional, path=name)


def _unique_items(_validator: Any, unique: bool, instance: Any, _schema: Any) -> _Errors:
    if unique and isinstance(instance, list):
        texts = {json.dumps(_with_integers(item), sort_keys=True) for item in instance}
        if len(texts) < len(instance):
            yield ValidationError("holds an item twice")


def _with_integers(value: Any) -> Any:
    """The value with 1.0 as 1, which JSON Schema calls equal."""
    if isinstance(value, dict):
        return {name: _with_integers(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_with_integers(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


@functools.lru_cache(maxsize=4096)
def _finder(pattern: str) -> SchemaValidator | None:
    """Compiles a pattern to Rust's regular expressions, which take linear time. None if they cannot express it
    (look-around, back references): such a pattern is shown to the model, and left to the tool to check."""
    try:
        return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
    except PatternError:
        return None


def _found(pattern: str, text: str) -> bool:
    finder = _finder(pattern)
    return finder is None or finder.isinstance_python(text)


_CHECKER: Any = extend(
    Draft202012Validator,
    {
        "$ref": _ref,
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
        "uniqueItems": _unique_items,
    },
)


def _without_names(schema: Any) -> Any:
    """A copy of the schema in which `$ref` can only mean the schema itself, and `$schema` asks for no other draft."""
    if isinstance(schema, Mapping):
        return {
            key: value if key in _PLAIN_VALUES else _without_names(value)
            for key, value in schema.items()
            if key not in ("$schema", "$id") or not isinstance(value, str)
        }
    return [_without_names(item) for item in schema] if isinstance(schema, (list, tuple)) else schema


def _require_usable(schema: Any) -> None:
    """Raises UserError for a reference that leads nowhere, and for rules whose check could take too long."""
    resolver = Registry().resolver_with_root(DRAFT202012.create_resource(schema))
    keys: set[str] = set()
    for inner in _schemas_in(schema):
        keys.update(inner)
        try:
            if "$ref" in inner:
                resolver.lookup(inner["$ref"])
        except Unresolvable:
            raise UserError(f"parameters: $ref {inner['$ref']!r} is not in the schema, and none is fetched") from None
    if "$dynamicRef" in keys:
        raise UserError("parameters: $dynamicRef is not supported; use $ref")
    if keys >= {"patternProperties", "unevaluatedProperties"}:
        raise UserError("parameters: patternProperties beside unevaluatedProperties is not supported")


def _schemas_in(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        yield schema
        for inner in DRAFT202012.create_resource(schema).subresources():
            yield from _schemas_in(inner.contents)


def _known_names(schema: Any) -> dict[str, None] | None:
    """The names that the arguments may have, in order, by all schemas that describe them. None if one of the schemas
    itself says which other names it allows."""
    resolver = Registry().resolver_with_root(DRAFT202012.create_resource(schema))
    names: dict[str, None] = {}
    pending, seen = [schema], set[int]()
    while pending:
        described = pending.pop()
        if not isinstance(described, dict) or id(described) in seen:
            continue
        seen.add(id(described))
        if not described.keys().isdisjoint({"additionalProperties", "unevaluatedProperties", "patternProperties"}):
            return None
        names.update(dict.fromkeys(described.get("properties", ())))
        pending.extend(described.get("dependentSchemas", {}).values())
        for keyword in _IN_PLACE:
            inner = described.get(keyword, [])
            found = resolver.lookup(inner).contents if isinstance(inner, str) else inner
            pending.extend(found if isinstance(found, list) else [found])
    return names


def _clause(error: ValidationError) -> str:
    context: Sequence[ValidationError] = error.context or ()
    if context and all(inner.validator == "type" and not inner.relative_path for inner in context):
        names = list(dict.fromkeys(name for inner in context for name in _type_names(inner)))
        return _of_type(_path("arguments", error), names, error.instance)
    found = best_match([error]) or error
    return _rule(_path("arguments", found), found)


def _rule(path: str, error: ValidationError) -> str:
    keyword, value, instance = error.validator, error.validator_value, error.instance
    match keyword:
        case "type":
            return _of_type(path, _type_names(error), instance)
        case "required":
            return f"{path} lacks {next(name for name in value if name not in instance)!r}"
        case "additionalProperties":
            return f"{path}{error.message}"
        case "enum":
            return f"{path} must be one of {', '.join(map(repr, value))}"
        case "const":
            return f"{path} must be {_short(value)}"
        case "minimum" | "exclusiveMinimum":
            return f"{path} must be {'at least' if keyword == 'minimum' else 'more than'} {value}"
        case "maximum" | "exclusiveMaximum":
            return f"{path} must be {'at most' if keyword == 'maximum' else 'less than'} {value}"
        case "oneOf" if not error.context:
            return f"{path} matches several of the alternatives, and must match one"
        case None:
            return f"{path} holds something that is not allowed"
        case _:
            return f"{path} does not satisfy {keyword} {_short(value)}"


def _of_type(path: str, names: Sequence[str], value: Any) -> str:
    return f"{path} must be of type {' or '.join(names)}, not {_type_of(value)}"


def _unknown(path: str, name: str, known: Iterable[str]) -> str:
    return f"{path} holds {name[:_NAME_CHARS]!r}, which is unknown; it may hold {_listed(known)}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "nothing"


def _path(start: str, error: ValidationError | SchemaError) -> str:
    steps = (f"[{step}]" if isinstance(step, int) else f".{step[:_NAME_CHARS]}" for step in error.absolute_path)
    return start + "".join(steps)


def _short(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)[:_VALUE_CHARS]


def _type_names(error: ValidationError) -> list[str]:
    names = error.validator_value
    return [names] if isinstance(names, str) else list(names)


def _type_of(value: Any) -> str:
    kinds = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array", dict: "object"}
    return kinds.get(type(value), "null")
