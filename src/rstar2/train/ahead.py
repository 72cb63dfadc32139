"""Rollouts of the next steps, collected while earlier steps are learnt from.

Invariant: step s is collected only after steps up to s - 1 - `max_staleness` were learnt from, and steps are collected
one after the other, so their problems are those of a run that never runs ahead. With a staleness of 0 nothing is
collected before it is asked for.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Self

from rstar2.train.collect import Collected
from rstar2.train.cursor import Cursor

Collect = Callable[[int, Cursor], Awaitable[Collected]]
"""From a training step and the cursor that it starts from."""


class Ahead:
    """Used as a context: what was collected too much is cancelled at its end."""

    def __init__(self, collect: Collect, cursor: Cursor, steps: Iterable[int], *, max_staleness: int) -> None:
        self._collect = collect
        self._steps = iter(steps)
        self._max_staleness = max_staleness
        self._cursor = cursor
        self._newest: asyncio.Task[Collected] | None = None
        self._begun: deque[asyncio.Task[Collected]] = deque()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.stop()
        await asyncio.gather(*self._begun, return_exceptions=True)

    async def next(self) -> Collected:
        """The next step's rollouts. To ask for them says that all earlier ones were learnt from."""
        self._begin()
        collected = await self._begun[0]
        self._begun.popleft()
        return collected

    def go_on(self) -> None:
        """All that was taken so far is learnt from: nobody need wait for `next` to hear it."""
        if self._max_staleness:
            self._begin()

    def stop(self) -> None:
        """Collect nothing more."""
        self._steps = iter(())
        for task in self._begun:
            task.cancel()

    def _begin(self) -> None:
        while len(self._begun) < 1 + self._max_staleness and (step := next(self._steps, None)) is not None:
            self._newest = asyncio.create_task(self._collect_after(self._newest, step))
            self._begun.append(self._newest)

    async def _collect_after(self, previous: "asyncio.Task[Collected] | None", step: int) -> Collected:
        return await self._collect(step, self._cursor if previous is None else (await previous).cursor)
