"""The interface of tools that the agent may call: a schema for the model, an async call that returns a typed result.

A tool object serves one rollout, and may keep state for it; its maker closes it. The arguments of a call have been
checked against the schema. A failure that is not the call's fault is raised, as an InfrastructureError or any other
exception. It is retried; if it persists, the rollout ends without a score. The model never sees it.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from rstar2.agent.schema import ArgumentsCheck
from rstar2.errors import InfrastructureError, UserError
from rstar2.records import ToolResult

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """What the model reads about a tool. `parameters` is a JSON Schema of type object."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    _check: ArgumentsCheck = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise UserError(f"a tool cannot be named {self.name!r}: use letters, digits and underscores")
        if self.parameters.get("type") != "object":
            raise UserError(f"tool {self.name}: parameters.type must be 'object', since calls have named arguments")
        try:
            object.__setattr__(self, "_check", ArgumentsCheck(self.parameters))
        except UserError as error:
            raise UserError(f"tool {self.name}: {error}") from None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name, self.description, self.parameters)  # the other process compiles its own check

    def mismatch(self, arguments: dict[str, Any]) -> str | None:
        """What is wrong with the arguments by the schema, as a clause; None if nothing is."""
        return self._check.mismatch(arguments)

    def as_function(self) -> dict[str, Any]:
        """The schema in the form of chat templates and OpenAI-compatible servers."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


class Tool(Protocol):
    @property
    def schema(self) -> ToolSchema: ...

    async def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        """Run one call. It may be called again before an earlier call has returned: the calls of a turn run
        concurrently."""
        ...

    async def close(self) -> None:
        """Close the tool, because the rollout is over."""
        ...


@runtime_checkable
class ForkableTool(Tool, Protocol):
    """A tool whose state can be copied. A tool without `fork` cannot be copied."""

    async def fork(self) -> Tool:
        """A second tool with this one's state, which its caller closes. The two share nothing from here on."""
        ...


async def fork_all(tools: Sequence[Tool]) -> tuple[Tool, ...] | None:
    """A copy of each tool; None if one of them cannot be forked."""
    if not all(isinstance(tool, ForkableTool) for tool in tools):
        return None
    forked = list[Tool]()
    try:
        for tool in tools:
            assert isinstance(tool, ForkableTool)
            forked.append(await tool.fork())
    except BaseException:
        await close_all(forked)
        raise
    return tuple(forked)


def by_name(tools: Sequence[Tool]) -> dict[str, Tool]:
    table = {tool.schema.name: tool for tool in tools}
    if len(table) < len(tools):
        raise UserError(f"two tools have the same name: {', '.join(tool.schema.name for tool in tools)}")
    return table


async def close_all(tools: Sequence[Tool]) -> None:
    """Closes all tools of a rollout, whatever one of them raises, and even if this call is cancelled."""
    failed, cancelled = "", None
    for tool in tools:
        try:
            await tool.close()
        except asyncio.CancelledError as error:
            cancelled = error
        except Exception as error:
            failed = failed or f"tool {tool.schema.name} could not be closed: {type(error).__name__}: {error}"
    if cancelled is not None:
        raise cancelled
    if failed:
        raise InfrastructureError(failed)
