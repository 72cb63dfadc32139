"""The table of open sessions: finds them by id, gives each to one request at a time, closes idle ones."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

from rstar2.sandbox.execution import MIB
from rstar2.sandbox.executor import Session
from rstar2.sandbox.http.errors import ApiError, overloaded
from rstar2.sandbox.http.idempotency import OnceTable
from rstar2.sandbox.http.service import ServiceSettings

NUM_REMEMBERED = 16
"""The number of results kept per session for repeated requests. They expire only with the session: while its state
exists, the key of the last change must be known, or the change could be made twice."""


@dataclass(slots=True)
class HeldSession:
    session: Session
    last_used: float
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    once: OnceTable = field(default_factory=lambda: OnceTable(NUM_REMEMBERED, 8 * MIB))
    num_users: int = 0
    is_open: bool = True


class SessionTable:
    def __init__(self, settings: ServiceSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._held: dict[str, HeldSession] = {}
        self._num_being_made = 0
        self._settings = settings
        self._clock = clock

    def __len__(self) -> int:
        return len(self._held)

    @contextmanager
    def room_for_one(self) -> Iterator[None]:
        """Keep a place free for the session that the block makes and adds; ApiError if all are taken."""
        num_sessions = len(self._held) + self._num_being_made
        if num_sessions >= self._settings.max_sessions:
            message = f"over capacity: {num_sessions} sessions are open; close those that are done"
            raise overloaded(message, self._settings.retry_after_s)
        self._num_being_made += 1
        try:
            yield
        finally:
            self._num_being_made -= 1

    def add(self, session: Session) -> HeldSession:
        held = self._held[session.id] = HeldSession(session, self._clock())
        return held

    def get(self, session_id: str) -> HeldSession:
        held = self._held.get(session_id)
        if held is None:
            raise ApiError(404, "no_session", "there is no session with this id; it was closed, or it never was")
        return held

    @asynccontextmanager
    async def turn(self, held: HeldSession) -> AsyncIterator[Session]:
        """Lock the session for one request; a second request waits for the first."""
        held.num_users += 1
        try:
            async with held.lock:
                if not held.is_open:
                    raise ApiError(404, "no_session", "the session was closed while this request waited for it")
                yield held.session
        finally:
            held.num_users -= 1
            held.last_used = self._clock()

    async def close(self, held: HeldSession) -> None:
        """Close the session after its running request; waiting ones get 404."""
        self._held.pop(held.session.id, None)
        async with held.lock:
            if held.is_open:
                held.is_open = False
                await held.session.close()

    async def close_idle(self) -> None:
        oldest = self._clock() - self._settings.session_idle_s
        for held in [held for held in self._held.values() if not held.num_users and held.last_used < oldest]:
            await self.close(held)

    async def close_all(self) -> None:
        for held in list(self._held.values()):
            await self.close(held)
