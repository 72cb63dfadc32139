"""An engine that may fail now and then, as servers do, and one that is gone for good.

To the driver an engine that fails once is lost, and its rollouts go on elsewhere; an evaluation mostly has one engine
and nowhere else to go. So a turn that fails is continued on the same engine after a pause. One that keeps failing ends
the evaluation, which can be resumed when the engine is back: nothing is gained by losing every rollout that is left.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from rstar2.engine import Chunk, Engine, EngineLoad, Sampling
from rstar2.errors import InfrastructureError

PAUSES_S = (1.0, 5.0, 30.0)
"""A server that restarts is back within these."""


class EngineAwayError(Exception):
    """Not an InfrastructureError, which whoever runs a rollout would take as a fault of that rollout alone."""


@dataclass(slots=True)
class PatientEngine:
    """Satisfies `Engine`."""

    engine: Engine
    pauses_s: Sequence[float] = PAUSES_S
    _away: EngineAwayError | None = field(default=None, init=False)

    async def generate(
        self, session: str, token_ids: Sequence[int], sampling: Sampling, max_tokens: int
    ) -> AsyncIterator[Chunk]:
        """What came out before a failure stays; the turn goes on behind it."""
        tokens, num_left = list(token_ids), max_tokens
        for pause_s in (*self.pauses_s, None):
            if self._away is not None:
                raise self._away
            try:
                async for chunk in self.engine.generate(session, tokens, sampling, num_left):
                    tokens += chunk.token_ids
                    num_left -= len(chunk.token_ids)
                    yield chunk
                return
            except InfrastructureError as error:
                if pause_s is None:
                    self._away = EngineAwayError(str(error))
                    raise self._away from error
                await asyncio.sleep(pause_s)

    def load(self) -> EngineLoad:
        return self.engine.load()

    async def cancel(self, session: str) -> None:
        await self.engine.cancel(session)

    async def release(self, session: str) -> None:
        await self.engine.release(session)

    async def close(self) -> None:
        await self.engine.close()
