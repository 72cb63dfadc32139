"""Reads a user's class before it has episodes: its tools, its settings, its rows."""

import inspect
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard, get_type_hints

from pydantic import TypeAdapter

from rstar2.environments.code_places import place_of_class
from rstar2.environments.function_tools import Signature, read_signature
from rstar2.environments.protocol import Services
from rstar2.environments.signatures import arguments_for
from rstar2.environments.task import Task
from rstar2.environments.user_code import Caller
from rstar2.errors import UserError

if TYPE_CHECKING:
    from rstar2.config import EnvironmentSection

_TRL_METHODS = ("reset", "get_reward")


@dataclass(frozen=True, slots=True)
class ClassShape:
    """The facts about a class that hold for all its episodes."""

    name: str
    tools: Mapping[str, Signature]
    is_task: bool
    """Whether the class is derived from `Task`."""
    columns: Mapping[str, TypeAdapter[Any]]
    """Validators for columns with a type hint in `reset`; only of a `Task`, since TRL does not read hints there."""


def is_task_class(found: Any) -> TypeGuard[type[Task]]:
    return isinstance(found, type) and issubclass(found, Task)


def brings_rows(found: Any) -> TypeGuard[type[Task]]:
    return is_task_class(found) and found.rows is not Task.rows


def read_shape(cls: type, has_reward: bool) -> ClassShape:
    """Read a class; UserError names what it lacks. `has_reward` says that something else scores its episodes."""
    where = f"{place_of_class(cls)}class {cls.__name__}"
    is_task = is_task_class(cls)
    if not is_task and not callable(getattr(cls, "reset", None)):
        raise UserError(f"{where} has no reset(): write one, or derive the class from rstar2.environments.Task")
    if not has_reward and getattr(cls, "get_reward", Task.get_reward) is Task.get_reward:
        raise UserError(f"{where} has no get_reward(): write one, or name a function in environment.reward")
    if is_task and inspect.isroutine(inspect.getattr_static(cls, "is_over")):
        raise UserError(f"{where}: is_over is a value, not a method: set self.is_over = True to end an episode")
    if is_task and inspect.isfunction(inspect.getattr_static(cls, "rows")):
        raise UserError(f"{where}: rows() must be a staticmethod: it is called before there is an object")
    reserved = dir(Task) if is_task else _TRL_METHODS
    tools = {name: _tool_signature(cls, name) for name in _public_functions(cls) if name not in reserved}
    return ClassShape(cls.__name__, tools, is_task, _column_types(cls.reset) if is_task_class(cls) else {})


def _column_types(reset: Callable[..., Any]) -> dict[str, TypeAdapter[Any]]:
    """Validators by parameter, without those whose hint cannot be read: an unreadable hint must not refuse a row."""
    found = dict[str, TypeAdapter[Any]]()
    with suppress(Exception):
        hints = get_type_hints(reset, include_extras=True)
        for name, parameter in inspect.signature(reset).parameters.items():
            if name in hints and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                with suppress(Exception):  # a parameter that is None by default takes None, whatever its hint
                    found[name] = TypeAdapter(hints[name] | None if parameter.default is None else hints[name])
    return found


def _public_functions(cls: type) -> list[str]:
    """The public functions in the order of their definition, those of base classes first."""
    names = dict.fromkeys(name for base in reversed(cls.__mro__) for name in vars(base))
    return [name for name in names if not name.startswith("_") and inspect.isfunction(getattr(cls, name, None))]


def _tool_signature(cls: type, name: str) -> Signature:
    function = getattr(cls, name)
    is_static = isinstance(inspect.getattr_static(cls, name), staticmethod)
    try:
        return read_signature(function if is_static else types.MethodType(function, object()))
    except UserError as error:
        raise UserError(f"{error} (if it is no tool, let its name begin with an underscore)") from error


def settings_of(
    factory: Callable[..., Any], section: "EnvironmentSection", services: Services | None
) -> dict[str, Any]:
    """The keyword arguments of `__init__`: all settings except those that only `rows` has a parameter for. UserError if
    `__init__` does not accept them."""
    name = getattr(factory, "__name__", factory)
    try:
        signature = inspect.signature(factory)
        given: dict[str, Any] = {"services": services} if "services" in signature.parameters else {}
        of_rows = inspect.signature(factory.rows).parameters if brings_rows(factory) else {}
        only_of_rows = of_rows.keys() - signature.parameters.keys()
        given |= {name: value for name, value in section.settings.items() if name not in only_of_rows}
        signature.bind(**given)
    except (TypeError, ValueError) as error:
        raise UserError(f"environment.settings: {name} cannot be made with them: {error}") from None
    return given


def rows_of(cls: type[Task], section: "EnvironmentSection") -> Iterator[Mapping[str, Any]]:
    """The own tasks of a class. UserError if they cannot be read."""
    what = f"{cls.__name__}.rows"
    caller = Caller(section.deadline_s, stops=True)
    rows = caller.call_now(what, lambda: iter(cls.rows(**arguments_for(cls.rows, section.settings)) or ()))
    while (row := caller.call_now(what, next, rows, None)) is not None:
        if not isinstance(row, Mapping):
            raise UserError(f"{what}: a row must be a dict, not a {type(row).__name__}")
        yield row
