"""The callers' sessions (`X-Session-ID`), whose prefixes the engine evicts last, because they may continue.

A request without the header is a session of its own that ends with it; its prefix stays in the prefix cache while there
is room. Callers with different keys never share a session, even under one name.
"""

import hashlib
import random
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from rstar2.engine.protocol import Engine
from rstar2.serve.errors import OpenAIError

HEADER = "X-Session-ID"
MAX_NAME_CHARS = 256


def random_name() -> str:
    """A name that nothing else has. It is no secret."""
    return f"{random.getrandbits(128):032x}"


class Sessions:
    def __init__(
        self, engine: Engine, max_sessions: int, idle_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._engine = engine
        self._max_sessions = max_sessions
        self._idle_s = idle_s
        self._clock = clock
        self._used_at: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._used_at)

    @asynccontextmanager
    async def opened(self, name: str | None, authorization: str, num_sequences: int) -> AsyncIterator[list[str]]:
        """Open the engine sessions of a request's sequences. `authorization` is the header with the caller's key."""
        if name is not None and not 0 < len(name) <= MAX_NAME_CHARS:
            raise OpenAIError(400, f"{HEADER}: it must have 1 to {MAX_NAME_CHARS} characters", param=HEADER)
        stem = random_name()
        if name is not None:
            stem = f"{hashlib.sha256(authorization.encode(errors='surrogateescape')).hexdigest()}/{name}"
        sessions = [stem, *(f"{stem}#{number}" for number in range(1, num_sequences))]
        try:
            yield sessions
        finally:
            if name is None:
                for session in sessions:
                    await self._engine.release(session)
            else:
                await self._keep(sessions)

    async def _keep(self, sessions: list[str]) -> None:
        now = self._clock()
        for session in sessions:
            self._used_at[session] = now
            self._used_at.move_to_end(session)
        while self._used_at:
            oldest, used_at = next(iter(self._used_at.items()))
            if len(self._used_at) <= self._max_sessions and now - used_at <= self._idle_s:
                break
            del self._used_at[oldest]
            await self._engine.release(oldest)
