"""One session with a server, from its start to its end.

A dedicated asyncio task owns the session: the SDK requires the same task to enter and leave its scopes, while calls
come from the tasks of many episodes.
"""

import asyncio
import os
import shutil
import time
from typing import Any

import anyio
from mcp import Client, MCPError
from mcp.types import (
    CONNECTION_CLOSED,
    INVALID_PARAMS,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    PaginatedRequestParams,
    Tool,
)
from pydantic import ValidationError

from rstar2.config import McpServer
from rstar2.environments.mcp.http import HttpServer
from rstar2.environments.mcp.results import result_of
from rstar2.environments.mcp.stdio import StdioServer
from rstar2.errors import InfrastructureError, UserError
from rstar2.records import ToolResult, ToolStatus

MAX_PAGES = 100
"""The maximum number of pages read of a list of tools."""
MAX_CALLS = 512
"""The maximum number of concurrent calls; others wait, which is not counted as the server's time."""
CLOSE_S = 15.0
"""Seconds to close; above a transport's own steps to end its server."""


class LostServerError(InfrastructureError):
    """The server or its session ended. Whether the call had effects is unknown."""


class AnswerError(Exception):
    """The server did not answer in time, or sent an invalid answer."""


class Connection:
    def __init__(self, field: str, server: McpServer) -> None:
        self._field = field
        self._server = server
        self._transport = _transport(field, server)
        self._owner: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self._session: Any = None
        self._calls = asyncio.Semaphore(MAX_CALLS)
        self._answered_at = 0.0
        self._is_stuck = False
        self.tools: tuple[Tool, ...] = ()

    async def open(self) -> None:
        """Start the session. LostServerError says why it failed; then, or if cancelled, nothing is left of it."""
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._owner = asyncio.create_task(self._own(ready), name=self._field)
        try:
            async with asyncio.timeout(self._server.timeout_s):
                await ready
        except TimeoutError as error:
            await self.close()
            raise LostServerError(f"{self._field}: it did not start within {self._server.timeout_s:g} s") from error
        except BaseException:
            await self.close()
            raise

    async def _own(self, ready: asyncio.Future[None]) -> None:
        try:
            async with Client(self._transport, cache=None) as client:
                self.tools = await _listed(client)
                self._session = client.session
                if not ready.done():
                    ready.set_result(None)
                await self._closing.wait()
        except Exception as error:
            if not ready.done():
                ready.set_exception(LostServerError(f"{self._field}: it did not start: {self._why(error)}"))
        finally:
            ready.cancel()

    @property
    def is_open(self) -> bool:
        is_held = self._owner is not None and not self._owner.done()
        return is_held and not self._closing.is_set() and not self._is_stuck and not self._transport.has_ended

    async def call(self, tool: str, arguments: dict[str, Any]) -> ToolResult:
        """Call a tool. LostServerError or AnswerError if there is no result."""
        async with self._calls:
            return await self._call(tool, arguments)

    async def _call(self, tool: str, arguments: dict[str, Any]) -> ToolResult:
        started = time.monotonic()
        request = CallToolRequest(params=CallToolRequestParams(name=tool, arguments=arguments))
        try:
            async with asyncio.timeout(self._server.timeout_s):
                answer = await self._session.send_request(request, CallToolResult)
        except TimeoutError as error:
            # One slow call is the tool's fault; a server that answered no call in that time is hung.
            self._is_stuck |= self._answered_at < started
            raise AnswerError(f"tool {tool}: no answer within {self._server.timeout_s:g} s") from error
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                raise LostServerError(f"{self._field}: the server was lost: {self._transport.end}") from error
            self._answered_at = time.monotonic()
            if error.code == INVALID_PARAMS:
                return ToolResult(ToolStatus.BAD_ARGUMENTS, error.message, time.monotonic() - started)
            raise AnswerError(f"tool {tool}: {error.message}") from error
        except (anyio.ClosedResourceError, anyio.BrokenResourceError) as error:
            raise LostServerError(f"{self._field}: the server was lost: {self._transport.end}") from error
        except ValidationError as error:
            raise AnswerError(f"tool {tool}: its answer is not of the form of MCP") from error
        self._answered_at = time.monotonic()
        if answer.result_type != "complete":
            raise AnswerError(f"tool {tool}: it asks the user for input, which is not supported")
        return result_of(answer, self._answered_at - started)

    async def close(self) -> None:
        """Close the session; returns, within a bound, when no process or task is left, even if the caller is
        cancelled."""
        self._closing.set()
        if self._owner is not None and self._session is None:
            self._owner.cancel()  # while starting, it does not check `_closing`
        cancelled: asyncio.CancelledError | None = None
        deadline = time.monotonic() + 2 * CLOSE_S
        while self._owner is not None and not self._owner.done() and time.monotonic() < deadline:
            try:
                _, unfinished = await asyncio.wait({self._owner}, timeout=CLOSE_S)
                for task in unfinished:
                    task.cancel()
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled

    def _why(self, error: BaseException) -> str:
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        said = error.message if isinstance(error, MCPError) else f"{type(error).__name__}: {error}"
        return self._transport.end if self._transport.has_ended else said


def _transport(field: str, server: McpServer) -> StdioServer | HttpServer:
    if server.command is not None:
        if shutil.which(server.command[0], path=server.env.get("PATH")) is None:
            raise UserError(f"{field}.command: there is no program {server.command[0]!r}")
        return StdioServer(server.command, server.env)
    assert server.url is not None
    token = os.environ.get(server.token_env) if server.token_env else None
    if server.token_env and not token:
        raise UserError(f"{field}.token_env: the environment variable {server.token_env} is not set")
    return HttpServer(server.url, token)


async def _listed(client: Client) -> tuple[Tool, ...]:
    tools: list[Tool] = []
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await client.session.list_tools(params=PaginatedRequestParams(cursor=cursor))
        tools += page.tools
        cursor = page.next_cursor
        if cursor is None:
            break
    return tuple(tools)
