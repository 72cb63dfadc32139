"""The notebooks of a server's clients. Their ids cannot be guessed, so a client reaches only its own.

Since 2026-07-28 the protocol has no sessions, so the id travels as an argument of each call.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from mcp.server.mcpserver.exceptions import ToolError

from rstar2.errors import InfrastructureError, UserError
from rstar2.sandbox.executor import Executor, Session
from rstar2.sandbox.http.errors import ApiError
from rstar2.sandbox.http.service import ServiceSettings
from rstar2.sandbox.http.session_table import HeldSession, SessionTable
from rstar2.sandbox.mcp.results import fault

LONGEST_SWEEP_S = 60.0


class Notebooks:
    def __init__(self, executor: Executor, max_sessions: int, idle_s: float) -> None:
        self._executor = executor
        self._idle_s = idle_s
        self._table = SessionTable(ServiceSettings(max_sessions=max_sessions, session_idle_s=idle_s))

    @asynccontextmanager
    async def turn(self, session_id: str | None) -> AsyncIterator[Session]:
        """Lock the notebook for one call; without an id, a new notebook."""
        held = self._table.get(session_id) if session_id is not None else await self._open()
        async with self._table.turn(held) as session:
            yield session

    async def fork(self, session_id: str) -> Session:
        with self._table.room_for_one():
            async with self._table.turn(self._table.get(session_id)) as session:
                return self._table.add(await session.fork()).session

    async def close(self, session_id: str) -> None:
        await self._table.close(self._table.get(session_id))

    @asynccontextmanager
    async def swept(self) -> AsyncIterator[None]:
        """Close idle notebooks during the block, and all notebooks at its end."""
        sweeper = asyncio.create_task(self._sweep())
        try:
            yield
        finally:
            sweeper.cancel()
            await asyncio.gather(sweeper, return_exceptions=True)
            await self._table.close_all()

    async def _open(self) -> HeldSession:
        with self._table.room_for_one():
            return self._table.add(await self._executor.session())

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(min(self._idle_s / 4, LONGEST_SWEEP_S))
            await self._table.close_idle()


@asynccontextmanager
async def answered(timeout_s: float) -> AsyncIterator[None]:
    """Translate the failures of a call: a mistake of the caller becomes a tool error, a fault of the sandbox a protocol
    error."""
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except (ApiError, UserError, ValueError) as error:
        raise ToolError(str(error)) from error
    except InfrastructureError as error:
        raise fault(str(error)) from error
    except TimeoutError as error:
        raise fault(f"no answer within {timeout_s:g} s") from error
