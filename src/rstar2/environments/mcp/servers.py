"""Servers for all episodes of a process, which are restarted when lost, and servers for one episode, which are not.

The state of an episode's own server cannot be rebuilt, so its loss ends the episode.
"""

import asyncio
import time
from typing import Any

from rstar2.config import McpServer
from rstar2.environments.mcp.connection import AnswerError, Connection, LostServerError
from rstar2.environments.user_code import Caller
from rstar2.errors import UserError
from rstar2.records import ToolResult

FIRST_PAUSE_S = 0.2
MAX_PAUSE_S = 10.0


class SharedServer:
    def __init__(self, field: str, server: McpServer, caller: Caller) -> None:
        self._field = field
        self._server = server
        self._caller = caller
        self._connection = Connection(field, server)
        self._restart: asyncio.Task[None] | None = None
        self._num_losses = 0
        """How often the server was lost since it last answered a call."""

    async def start(self) -> Connection:
        """Start the server. UserError if the command fails; LostServerError if no server is at the address."""
        try:
            await self._connection.open()
        except LostServerError as error:
            if self._server.command is not None:
                raise UserError(str(error)) from error
            raise
        return self._connection

    async def call(self, tool: str, arguments: dict[str, Any]) -> ToolResult:
        if not self._connection.is_open:
            if self._restart is None or self._restart.done():
                self._restart = asyncio.create_task(self._reopen(), name=f"{self._field}: restart")
            await asyncio.shield(self._restart)
        try:
            result = await self._connection.call(tool, arguments)
        except AnswerError as error:
            raise self._caller.fault(f"{self._field}: {error}") from error
        self._num_losses = 0
        return result

    async def end_episode(self) -> None:
        """Other episodes use the server."""

    async def close(self) -> None:
        if self._restart is not None:
            self._restart.cancel()
            await asyncio.wait({self._restart})
        await self._connection.close()

    async def _reopen(self) -> None:
        """Restart the server, with pauses that double, for as long as a start may take."""
        await self._connection.close()
        deadline = time.monotonic() + self._server.timeout_s
        while True:
            pause_s = min(FIRST_PAUSE_S * 2**self._num_losses, MAX_PAUSE_S)
            self._num_losses += 1
            connection = Connection(self._field, self._server)
            try:
                await asyncio.sleep(pause_s)
                await connection.open()
            except LostServerError as error:
                if time.monotonic() + pause_s > deadline:
                    raise self._caller.fault(f"{error} (tried {self._num_losses} times)") from error
            else:
                self._connection = connection
                return


class EpisodeServer:
    def __init__(
        self, field: str, server: McpServer, caller: Caller, starts: asyncio.Semaphore, held: set[Connection]
    ) -> None:
        self._field = field
        self._server = server
        self._caller = caller
        self._starts = starts
        """Bounds the number of servers that start concurrently: a thousand at once would all be late."""
        self._held = held
        """The connections of all episodes, for the end of the run."""
        self._connection: Connection | None = None
        self._opening = asyncio.Lock()

    async def call(self, tool: str, arguments: dict[str, Any]) -> ToolResult:
        """Call a tool; the first call starts the server."""
        async with self._opening:
            if self._connection is None:
                connection = Connection(self._field, self._server)
                async with self._starts:
                    await connection.open()
                self._held.add(connection)
                self._connection = connection
        try:
            return await self._connection.call(tool, arguments)
        except LostServerError as error:
            raise self._caller.fault(f"{error}, and with it the state of the episode") from error
        except AnswerError as error:
            raise self._caller.fault(f"{self._field}: {error}") from error

    async def end_episode(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._held.discard(connection)
            await connection.close()
