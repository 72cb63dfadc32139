"""Runs an operation once per idempotency key: during it and for a while after, the same key and body return one result.

Invariants: an execution starts at most once per remembered key; an execution whose callers have all left is cancelled
(unless it changes state that outlives it); infrastructure failures are forgotten, so a repeated request is tried again;
entries and bytes are bounded, and the oldest result is dropped first.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

Outcome = tuple[bytes, bool]
"""The result, and whether to keep it for a repeated request."""


class KeyConflict(Exception):  # noqa: N818
    """The key was used before, with another body."""


@dataclass(slots=True)
class _Entry:
    digest: bytes
    task: asyncio.Future[Outcome] | None
    """None once the result is kept: a finished task holds far more memory than its result."""
    result: bytes = b""
    num_waiters: int = 0
    expires: float = float("inf")


class OnceTable:
    def __init__(
        self,
        max_retained: int,
        max_retained_bytes: int,
        retention_s: float = float("inf"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._entries: dict[str, _Entry] = {}
        self._finished: dict[str, int] = {}
        """Sizes of kept results by key, oldest first."""
        self._num_bytes = 0
        self._max_retained = max_retained
        self._max_retained_bytes = max_retained_bytes
        self._retention_s = retention_s
        self._clock = clock

    def __len__(self) -> int:
        return len(self._entries)

    async def run(
        self, key: str, digest: bytes, start: Callable[[], Awaitable[Outcome]], *, cancel_when_alone: bool = True
    ) -> bytes:
        """Return the result for the key. Only the first caller's `start` is called; all callers get its exception."""
        joined = self.join(key, digest, start)
        if isinstance(joined, bytes):
            return joined
        try:
            result, _ = await asyncio.shield(joined)
            return result
        finally:
            self.leave(key, joined, cancel_when_alone=cancel_when_alone)

    def join(
        self, key: str, digest: bytes, start: Callable[[], Awaitable[Outcome]]
    ) -> "asyncio.Future[Outcome] | bytes":
        """The kept result, or the running execution, which the caller must `leave` and not cancel."""
        self._forget_old()
        entry = self._entries.get(key)
        if entry is None:
            task: asyncio.Future[Outcome] = asyncio.ensure_future(start())
            entry = self._entries[key] = _Entry(digest, task)
            task.add_done_callback(lambda task: self._settle(key, task))
        elif entry.digest != digest:
            raise KeyConflict(key)
        elif entry.task is None:
            return entry.result
        else:
            task = entry.task
        entry.num_waiters += 1
        return task

    def leave(self, key: str, task: "asyncio.Future[Outcome]", *, cancel_when_alone: bool = True) -> None:
        entry = self._entries.get(key)
        if entry is None or entry.task is not task:
            return
        entry.num_waiters -= 1
        if cancel_when_alone and not entry.num_waiters and not task.done():
            # Forget the key at once: the next caller must not wait for an execution that is being cancelled.
            del self._entries[key]
            task.cancel()

    def _settle(self, key: str, task: "asyncio.Future[Outcome]") -> None:
        entry = self._entries.get(key)
        if entry is None or entry.task is not task:
            return
        if task.cancelled() or task.exception() is not None or not task.result()[1]:
            del self._entries[key]
            return
        entry.task, entry.result = None, task.result()[0]
        entry.expires = self._clock() + self._retention_s
        self._finished[key] = len(entry.result)
        self._num_bytes += len(entry.result)
        self._forget_old()

    def _forget_old(self) -> None:
        now = self._clock()
        while self._finished:
            oldest = next(iter(self._finished))
            full = len(self._finished) > self._max_retained or self._num_bytes > self._max_retained_bytes
            if not full and self._entries[oldest].expires > now:
                return
            self._num_bytes -= self._finished.pop(oldest)
            del self._entries[oldest]
