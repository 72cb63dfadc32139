"""Turns that run, and how one is ended from outside: at once, whatever its source of tokens is waiting for."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import aclosing

from rstar2.engine.protocol import Chunk
from rstar2.records import StopReason


class Turns:
    def __init__(self) -> None:
        self._cancelled: dict[str, set[asyncio.Future[None]]] = defaultdict(set)
        """By session, one for each of its turns."""

    async def run(self, session: str, chunks: AsyncGenerator[Chunk]) -> AsyncGenerator[Chunk]:
        """The chunks of one turn. When it is cancelled, `chunks` is closed, which ends it wherever it comes from."""
        cancelled = asyncio.get_running_loop().create_future()
        self._cancelled[session].add(cancelled)
        try:
            async with aclosing(chunks):
                while (chunk := await _next_or(cancelled, chunks)) is not None:
                    yield chunk
                    if chunk.stop_reason is not None:
                        return
            if cancelled.done():
                cancelled.result()
                yield Chunk((), (), stop_reason=StopReason.CANCELLED)
        finally:
            self._cancelled[session].discard(cancelled)
            if not self._cancelled[session]:
                del self._cancelled[session]

    def cancel(self, session: str) -> None:
        for cancelled in self._cancelled.get(session, ()):
            if not cancelled.done():
                cancelled.set_result(None)

    def fail(self, error: Exception) -> None:
        """Every turn that runs ends with the error."""
        for session in list(self._cancelled.values()):
            for cancelled in session:
                if not cancelled.done():
                    cancelled.set_exception(error)


async def _next_or(cancelled: asyncio.Future[None], chunks: AsyncGenerator[Chunk]) -> Chunk | None:
    """The next chunk; None if there is no more, or if the turn was cancelled."""
    step: asyncio.Task[Chunk | None] = asyncio.create_task(_next(chunks))
    try:
        await asyncio.wait((step, cancelled), return_when=asyncio.FIRST_COMPLETED)
        return await step if step.done() else None
    finally:
        if not step.done():
            step.cancel()
            await asyncio.wait((step,))


async def _next(chunks: AsyncGenerator[Chunk]) -> Chunk | None:
    return await anext(chunks, None)
