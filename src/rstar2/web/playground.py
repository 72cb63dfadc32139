"""The playground's interface: a solver works on a problem and reports its events.

The command that starts the viewer passes the solver, so the viewer depends on neither engines nor agents.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Protocol

from aiohttp import web

from rstar2.errors import InfrastructureError, UserError
from rstar2.web.guard import HEADERS, refusal

MAX_PROBLEM_BYTES = 1 << 16

PlayEvent = Mapping[str, Any]
"""Its `type` is turn, text (with `kind`), restart, call, result, end or error; the rest is what the page shows."""


class Solver(Protocol):
    @property
    def engines(self) -> Sequence[str]:
        """The names to choose from."""
        ...

    def solve(self, engine: str, problem: str) -> AsyncGenerator[PlayEvent]:
        """One attempt. Closing the generator ends it."""
        ...


class Playground:
    """Solves one problem at a time; a second request gets an error."""

    def __init__(self, solver: Solver) -> None:
        self._solver = solver
        self._turn = asyncio.Lock()

    @property
    def engines(self) -> list[str]:
        return list(self._solver.engines)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.content_type != "application/json":
            return refusal(415, "send a JSON object with the problem")
        try:
            body = await request.json()
            engine, problem = str(body["engine"]), str(body["problem"]).strip()
        except (ValueError, KeyError, TypeError):
            return refusal(400, "send a JSON object with `engine` and `problem`")
        if not problem:
            return refusal(400, "the problem is empty: write what is to be solved")
        if engine not in self._solver.engines:
            return refusal(404, f"there is no engine {engine!r} here")
        if self._turn.locked():
            return refusal(409, "another problem is being solved; stop it, or wait")
        async with self._turn:
            return await self._stream(request, engine, problem)

    async def _stream(self, request: web.Request, engine: str, problem: str) -> web.StreamResponse:
        response = web.StreamResponse(headers={**HEADERS, "Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        try:
            async with contextlib.aclosing(self._solver.solve(engine, problem)) as events:
                async for event in events:
                    await response.write(_line(event))
        except (UserError, InfrastructureError) as error:
            await response.write(_line({"type": "error", "message": str(error)}))
        await response.write_eof()
        return response


def _line(event: PlayEvent) -> bytes:
    return json.dumps(event).encode() + b"\n"
