"""Options that several verbs share, declared once: a dataclass whose fields are the options.

    @with_flags
    def solve_command(problem: str, flags: AgentFlags) -> None: ...

The command then has one option for each field of `AgentFlags`, and is called with the object.
"""

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import partial, wraps
from typing import Any, get_type_hints

import typer


def in_panel(title: str) -> Callable[..., Any]:
    """`typer.Option` for options that `--help` shows under this title."""
    return partial(typer.Option, rich_help_panel=title, show_default=False)


def with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Each parameter that is a dataclass is replaced by its fields; they need `Annotated` types and defaults."""
    own = inspect.signature(command, eval_str=True)
    groups: dict[str, Any] = {
        name: each.annotation for name, each in own.parameters.items() if is_dataclass(each.annotation)
    }
    plain = [each for name, each in own.parameters.items() if name not in groups]
    options = [_option(group, name) for group in groups.values() for name in _names(group)]
    keyword = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in plain]

    @wraps(command)
    def wrapper(**values: Any) -> None:
        made = {name: group(**{key: values.pop(key) for key in _names(group)}) for name, group in groups.items()}
        command(**values, **made)

    vars(wrapper)["__signature__"] = own.replace(parameters=[*keyword, *options])
    return wrapper


def _names(group: Any) -> list[str]:
    return [field.name for field in fields(group)]


def _option(group: Any, name: str) -> inspect.Parameter:
    default = next(field.default for field in fields(group) if field.name == name)
    annotation = get_type_hints(group, include_extras=True)[name]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
