"""Finds out which arguments a user's function takes."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any


def can_bind(function: Callable[..., Any], *args: Any, **kwargs: Any) -> bool:
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return False
    return True


def arguments_for(function: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that the function has parameters for; all of them if it has a `**parameter`."""
    parameters = inspect.signature(function).parameters
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return {name: value for name, value in values.items() if takes_all or name in parameters}
