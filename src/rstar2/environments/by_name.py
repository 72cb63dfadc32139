"""Resolves the source of an environment that a recipe names."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from rstar2.environments.of_object import source_of_object
from rstar2.environments.source import EnvironmentSource
from rstar2.environments.user_code import load_object
from rstar2.errors import UserError
from rstar2.extensions import ENVIRONMENTS

if TYPE_CHECKING:
    from rstar2.config import EnvironmentSection


def source_of(section: "EnvironmentSection") -> EnvironmentSource:
    """The source that the section names; UserError if there is none."""
    if section.kind in ENVIRONMENTS:
        found: EnvironmentSource = ENVIRONMENTS.load(section.kind)
        return found
    return source_of_object(load_object(section.source, "environment.source"), section)


def own_rows(section: "EnvironmentSection") -> Iterable[Mapping[str, Any]]:
    """The environment's own tasks; UserError if it has none."""
    rows = source_of(section).rows
    if rows is None:
        raise UserError(f"environment.source: {section.source} brings no tasks of its own; name a data set")
    return rows(section)


def tools_of(section: "EnvironmentSection") -> tuple[str, ...]:
    """The tools that the section gives the model besides the environment's own."""
    return source_of(section).tools if section.tools is None else section.tools
