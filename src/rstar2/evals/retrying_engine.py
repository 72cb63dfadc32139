"""An engine whose failed turns are retried, for evaluations.

The driver treats an engine that fails once as lost and moves its rollouts to another. An evaluation mostly has one
engine, so a turn that fails continues on the same engine after a pause. An engine that keeps failing ends the
evaluation, which can be resumed when the engine is back; otherwise every remaining rollout would be lost.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from rstar2.engine import Chunk, Engine, EngineLoad, Sampling
from rstar2.errors import InfrastructureError

PAUSES_S = (1.0, 5.0, 30.0)
"""The pauses before retries, together long enough for a server to restart."""


class EngineUnavailableError(Exception):
    """The engine does not answer. Not an InfrastructureError, which would end only one rollout."""


@dataclass(slots=True)
class RetryingEngine:
    """Satisfies `Engine`."""

    engine: Engine
    pauses_s: Sequence[float] = PAUSES_S
    _unavailable: EngineUnavailableError | None = field(default=None, init=False)

    async def generate(
        self, session: str, token_ids: Sequence[int], sampling: Sampling, max_tokens: int
    ) -> AsyncIterator[Chunk]:
        """Tokens made before a failure are kept, and the turn continues after them."""
        tokens, num_left = list(token_ids), max_tokens
        for pause_s in (*self.pauses_s, None):
            if self._unavailable is not None:
                raise self._unavailable
            try:
                async for chunk in self.engine.generate(session, tokens, sampling, num_left):
                    tokens += chunk.token_ids
                    num_left -= len(chunk.token_ids)
                    yield chunk
                return
            except InfrastructureError as error:
                if pause_s is None:
                    self._unavailable = EngineUnavailableError(str(error))
                    raise self._unavailable from error
                await asyncio.sleep(pause_s)

    def load(self) -> EngineLoad:
        return self.engine.load()

    async def cancel(self, session: str) -> None:
        await self.engine.cancel(session)

    async def release(self, session: str) -> None:
        await self.engine.release(session)

    async def close(self) -> None:
        await self.engine.close()
