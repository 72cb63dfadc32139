"""Opening a user's class or function as a run does, and playing an episode of it by hand."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

from rstar2.config import EnvironmentSection
from rstar2.environments import Environment, Episode, Services
from rstar2.environments.of_object import source_of_object
from rstar2.records import Outcome, Problem, StopReason, ToolResult, Trace, Turn

NO_SERVICES = Services(cast("Any", None), cast("Any", None))


def section(**fields: Any) -> EnvironmentSection:
    return EnvironmentSection(source="file:own.py:Own", **fields)


@asynccontextmanager
async def opened(found: Any, **fields: Any) -> AsyncIterator[Environment]:
    fields_of_section = section(**fields)
    async with source_of_object(found, fields_of_section).open(fields_of_section, NO_SERVICES) as environment:
        yield environment


def problem(row: dict[str, Any], id: str = "p") -> Problem:
    return Problem(id, "", "", row=row)


def trace(*texts: str) -> Trace:
    turns = tuple(Turn((1,), (), text, StopReason.END_OF_TURN) for text in texts)
    return Trace("t", "p", (0,), "", turns, Outcome.ANSWERED)


async def call(episode: Episode, tool: str, **arguments: Any) -> ToolResult:
    return await next(found for found in episode.tools if found.schema.name == tool).call(arguments)
