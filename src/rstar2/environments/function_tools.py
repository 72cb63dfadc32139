"""A user's function as a tool: its type hints are the schema, its docstring is the model's description.

A call ends in one of three ways:

- It returns. A text is what the model reads; None is no output; a `ToolResult` stays as it is; any other value is
  written as JSON.
- It raises a ValueError. That is how a tool refuses what the model asked for ("There is no such page."). The model
  reads the message, and the call counts as a tool error.
- It raises anything else, or misses its deadline. That is the environment's own failure: the episode is left out, and
  the model never sees it.
"""

import inspect
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, get_type_hints

from pydantic import PydanticUserError, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError
from pydantic_core import PydanticSerializationError, to_json

from rstar2.agent import ToolSchema
from rstar2.environments.code_places import message_of, place_of_function
from rstar2.environments.docstrings import read_docstring
from rstar2.errors import InfrastructureError, UserError
from rstar2.records import ToolResult, ToolStatus

MAX_RESULT_CHARS = 10_000_000
"""Only the head of a longer result is kept, and its status says so. The model reads a few thousand characters."""
NO_OUTPUT_TEXT = "[The tool returned nothing.]"


@dataclass(frozen=True, slots=True)
class Signature:
    """The schema of a function and the validators of its parameters, shared by all episodes."""

    schema: ToolSchema
    adapters: Mapping[str, TypeAdapter[Any]]
    """Validators that turn the JSON value of each parameter into the type of its hint."""


def read_signature(function: Callable[..., Any]) -> Signature:
    """Read the signature of a function or of a bound method. UserError names its file and line, and what it lacks."""
    name = getattr(function, "__name__", type(function).__name__)
    what = f"{place_of_function(function)}tool {name}"
    docstring = inspect.getdoc(function)
    if not docstring or not docstring.strip():
        raise UserError(f"{what} has no docstring: say what it does, since the model reads that")
    parameters = _parameters(function, what)
    adapters = {key: _adapter(hint, f"{what}: parameter {key}") for key, hint in _hints(function, parameters, what)}
    inputs: Any = [(key, "validation", adapter) for key, adapter in adapters.items()]
    try:
        schemas, shared = TypeAdapter.json_schemas(inputs)
    except PydanticUserError as error:
        raise UserError(f"{what}: its type hints have no JSON Schema: {error.message}") from error
    doc = read_docstring(docstring, list(adapters))
    properties = dict[str, Any]()
    for key, parameter in parameters.items():
        properties[key] = dict(schemas[key, "validation"])
        if described := doc.parameters.get(key):
            properties[key] |= {"description": described.description}
            properties[key] |= {"enum": list(described.choices)} if described.choices else {}
        if parameter.default is not parameter.empty and _is_json(parameter.default):
            properties[key]["default"] = parameter.default
    required = [key for key, parameter in parameters.items() if parameter.default is parameter.empty]
    described_parameters = {"type": "object", "properties": properties, "required": required}
    described_parameters |= {"$defs": shared["$defs"]} if "$defs" in shared else {}
    try:
        return Signature(ToolSchema(name, doc.description, described_parameters), adapters)
    except UserError as error:
        raise UserError(f"{place_of_function(function)}{error}") from error


def _parameters(function: Callable[..., Any], what: str) -> Mapping[str, inspect.Parameter]:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError) as error:
        raise UserError(f"{what} has no signature that can be read: {error}") from error
    for parameter in parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise UserError(f"{what}: {parameter} must be a parameter with a name, since calls name their arguments")
    return parameters


def _hints(
    function: Callable[..., Any], parameters: Mapping[str, inspect.Parameter], what: str
) -> list[tuple[str, Any]]:
    """The type of each parameter. The return hint is not needed, so it is not read."""
    annotations = {key: parameter.annotation for key, parameter in parameters.items()}
    for key, annotation in annotations.items():
        if annotation is inspect.Parameter.empty:
            raise UserError(f"{what}: parameter {key} has no type hint: write {key}: str, int, list[str] or another")
    names = getattr(inspect.unwrap(getattr(function, "__func__", function)), "__globals__", {})
    holder: Any = types.SimpleNamespace(__annotations__=annotations)
    try:
        return list(get_type_hints(holder, globalns=names, include_extras=True).items())
    except Exception as error:
        raise UserError(f"{what}: a type hint cannot be read: {type(error).__name__}: {error}") from error


def _adapter(hint: Any, what: str) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(hint)
    except PydanticSchemaGenerationError as error:
        raise UserError(
            f"{what}: the model cannot write a {getattr(hint, '__name__', hint)}; use a type that JSON has, a "
            "dataclass or a pydantic model"
        ) from error
    except Exception as error:
        raise UserError(f"{what}: its type hint cannot be used: {type(error).__name__}: {error}") from error


def _is_json(value: Any) -> bool:
    return value is None or isinstance(value, (str, int, float, bool, list, dict))


class Calls(Protocol):
    """Calls the function: a `Caller`, or an object that knows more about the episode."""

    async def attempt(self, what: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any: ...

    def fault_of(self, what: str, error: BaseException) -> Exception: ...


@dataclass(frozen=True, slots=True)
class FunctionTool:
    """Satisfies `Tool`."""

    function: Callable[..., Any]
    signature: Signature
    calls: Calls

    @property
    def schema(self) -> ToolSchema:
        return self.signature.schema

    async def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        values = dict[str, Any]()
        for name, value in arguments.items():
            adapter = self.signature.adapters.get(name)
            if adapter is None:
                known = ", ".join(map(repr, self.signature.adapters)) or "no parameters"
                return ToolResult(ToolStatus.BAD_ARGUMENTS, f"there is no parameter {name[:40]!r}; there is {known}")
            try:
                values[name] = adapter.validate_python(value)
            except ValidationError as error:
                return ToolResult(ToolStatus.BAD_ARGUMENTS, refusal(name, error))
        what = f"tool {self.schema.name}"
        try:
            value = await self.calls.attempt(what, self.function, **values)
            is_small = value is None or isinstance(value, (str, int, float, ToolResult))
            return result_of(value) if is_small else await self.calls.attempt(what, result_of, value)
        except (UserError, InfrastructureError):
            raise
        except ValueError as error:
            return ToolResult(ToolStatus.RAISED, message_of(error) or type(error).__name__)
        except Exception as error:
            raise self.calls.fault_of(what, error) from error

    async def close(self) -> None:
        pass


def result_of(value: Any) -> ToolResult:
    """Convert a return value into the result for the model."""
    if isinstance(value, ToolResult):
        return value
    if value is None or value == "":
        return ToolResult(ToolStatus.NO_OUTPUT, NO_OUTPUT_TEXT)
    text = value if isinstance(value, str) else _as_json(value)
    num_cut_chars = max(0, len(text) - MAX_RESULT_CHARS)
    status = ToolStatus.OUTPUT_TOO_LONG if num_cut_chars else ToolStatus.OK
    return ToolResult(status, text[:MAX_RESULT_CHARS], num_cut_chars=num_cut_chars)


def _as_json(value: Any) -> str:
    try:
        return to_json(value, inf_nan_mode="constants", fallback=str).decode()
    except (PydanticSerializationError, ValueError, RecursionError):
        return str(value)


def refusal(name: str, error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(map(str, (name, *first['loc'])))}: {first['msg']}"
