"""The tools of a recipe's MCP servers, opened once per process, and the tools of one episode."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from rstar2.agent import Tool, ToolSchema
from rstar2.environments.mcp.messages import storable
from rstar2.environments.user_code import Caller
from rstar2.errors import UserError
from rstar2.records import ToolResult

if TYPE_CHECKING:
    from mcp.types import Tool as ListedTool

    from rstar2.config import McpServer

Result = TypeVar("Result")


class _Server(Protocol):
    """The part of a server that an episode uses."""

    async def call(self, tool: str, arguments: dict[str, Any]) -> ToolResult: ...

    async def end_episode(self) -> None: ...


@dataclass(frozen=True, slots=True)
class McpTool:
    """Satisfies `Tool`."""

    schema: ToolSchema
    server: _Server

    async def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        return await self.server.call(self.schema.name, storable(dict(arguments)))

    async def close(self) -> None:
        await self.server.end_episode()


@dataclass(frozen=True, slots=True)
class McpTools:
    by_server: Mapping[str, tuple[ToolSchema, ...]]
    _server_of_episode: Mapping[str, Callable[[], _Server]] = field(repr=False)

    @property
    def schemas(self) -> tuple[ToolSchema, ...]:
        return tuple(schema for schemas in self.by_server.values() for schema in schemas)

    async def make(self) -> list[Tool]:
        """Make the tools of one episode. Closing them ends the episode's own servers."""
        tools: list[Tool] = []
        for name, schemas in self.by_server.items():
            server = self._server_of_episode[name]()
            tools += [McpTool(schema, server) for schema in schemas]
        return tools


@asynccontextmanager
async def open_mcp(servers: "Mapping[str, McpServer]", caller: Caller) -> AsyncIterator[McpTools]:
    """Open the servers of a recipe during the block. UserError if one cannot be started, lacks a tool that the recipe
    names, or has a tool with the name of another."""
    if not servers:
        yield McpTools({}, {})
        return
    try:
        from rstar2.environments.mcp.connection import Connection
        from rstar2.environments.mcp.servers import EpisodeServer, SharedServer
    except ImportError as error:
        raise UserError(f"environment.mcp needs the package mcp: pip install 'rstar2[mcp]' ({error})") from error
    fields = {name: f"environment.mcp.{name}" for name in servers}
    shared = {name: SharedServer(fields[name], server, caller) for name, server in servers.items()}
    starts = asyncio.Semaphore(2 * (os.cpu_count() or 1))
    held: set[Connection] = set()

    def server_of_episode(name: str) -> _Server:
        server = servers[name]
        return EpisodeServer(fields[name], server, caller, starts, held) if server.per_episode else shared[name]

    try:
        connections = await _all(server.start() for server in shared.values())
        by_server = {
            name: _schemas(fields[name], connection.tools, servers[name].tools)
            for name, connection in zip(shared, connections, strict=True)
        }
        _require_different_names(by_server)
        await _all(shared[name].close() for name, server in servers.items() if server.per_episode)
        yield McpTools(by_server, {name: partial(server_of_episode, name) for name in servers})
    finally:
        await _all([*(server.close() for server in shared.values()), *(connection.close() for connection in held)])


async def _all(actions: Iterable[Awaitable[Result]]) -> list[Result]:
    """Run all actions to their end; then raise the first error."""
    results = await asyncio.gather(*actions, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]


def _schemas(where: str, listed: "Iterable[ListedTool]", wanted: tuple[str, ...] | None) -> tuple[ToolSchema, ...]:
    """The tools that the model may call, in the order of the recipe, or of the server."""
    by_name = {tool.name: tool for tool in listed}
    for name in wanted or ():
        if name not in by_name:
            raise UserError(f"{where}.tools: the server has no tool {name!r}; it has {', '.join(by_name) or 'none'}")
    schemas: list[ToolSchema] = []
    for name in by_name if wanted is None else wanted:
        tool = by_name[name]
        try:
            schemas.append(ToolSchema(name, tool.description or tool.title or "", tool.input_schema))
        except UserError as error:
            raise UserError(f"{where}: {error}; name the other tools in {where}.tools to do without it") from error
    return tuple(schemas)


def _require_different_names(by_server: Mapping[str, tuple[ToolSchema, ...]]) -> None:
    owners: dict[str, str] = {}
    for server, schemas in by_server.items():
        for schema in schemas:
            other = owners.setdefault(schema.name, server)
            if other != server:
                raise UserError(
                    f"environment.mcp: {other} and {server} both have a tool {schema.name}; name the tools that the "
                    f"model may call in environment.mcp.{server}.tools"
                )
