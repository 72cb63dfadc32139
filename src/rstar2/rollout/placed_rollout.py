"""A rollout in a live run: it asks for tokens here, and does not know which engine they come from."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from enum import StrEnum
from typing import Protocol

from rstar2.agent.generate import left_cleanly
from rstar2.engine import Chunk, Engine, Sampling
from rstar2.errors import InfrastructureError
from rstar2.records import SpanKind, StopReason
from rstar2.rollout.recorder import StepRecorder
from rstar2.rollout.scheduler import Fact, RolloutSpec, ToolCalled, ToolReturned, TurnCancelled, TurnEnded


class RolloutDriver(Protocol):
    """The interface that a placed rollout needs of the driver."""

    clock: Callable[[], float]
    recorder: StepRecorder

    def tell(self, fact: Fact) -> None: ...
    def engine(self, name: str) -> Engine | None: ...
    def lose_engine(self, name: str) -> None: ...


class _State(StrEnum):
    PLACED = "placed"
    """The first turn may begin."""
    GENERATING = "generating"
    """A turn runs."""
    BETWEEN = "between"
    """A turn has ended."""
    AT_TOOL = "at tool"
    """A tool was called."""
    READY = "ready"
    """The tool has returned, and the next turn waits for an engine."""


class PlacedRollout:
    def __init__(self, driver: RolloutDriver, spec: RolloutSpec) -> None:
        self.spec = spec
        self.engine: str | None = None
        """The engine where it runs, or ran last."""
        self.num_tokens = spec.num_prompt_tokens
        self.waited_s = 0.0
        """Time in the queue, of the current or last turn."""
        self._driver = driver
        self._place: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._failure: Exception | None = None
        self.has_open_turn = False
        """Whether an engine is generating for it."""
        self._was_left = False
        """Whether the caller left the last turn before its end, and so may begin another."""
        self._state = _State.PLACED

    @property
    def is_generating(self) -> bool:
        return self._state is _State.GENERATING and not self._place.done()

    @property
    def has_been_placed(self) -> bool:
        return self.engine is not None or self._place.done()

    async def placed(self) -> None:
        """Waits until the scheduler has given the rollout an engine."""
        if self._failure is not None:
            raise self._failure
        if not self._place.done():
            self._driver.recorder.enter(self.spec.rollout, SpanKind.QUEUED)
        started_s = self._driver.clock()
        place: asyncio.Future[str] | None = None
        while place is not self._place:  # another decision may come before this one is heard
            place = self._place
            self.engine = await place
        self.waited_s += self._driver.clock() - started_s
        self._place = asyncio.get_running_loop().create_future()

    def place(self, engine: str) -> None:
        """Takes the scheduler's decision. If the rollout is moved again before it continues, the last decision
        holds."""
        if self._place.done():
            self._place = asyncio.get_running_loop().create_future()
        self._place.set_result(engine)

    def fail(self, error: Exception) -> None:
        """The rollout ends with this error: it gets no engine, whatever the scheduler still decides."""
        self._failure = error
        if not self._place.done():
            self._place.set_exception(error)
            self._place.exception()

    def calls_tool(self) -> None:
        """Reports a tool call. To be called as soon as it is known that the ended turn calls a tool, so is not the
        last."""
        assert self._state is _State.BETWEEN, "a tool is called after a turn"
        self._state = _State.AT_TOOL
        self._driver.tell(ToolCalled(self._driver.clock(), self.spec.rollout))

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, max_tokens: int) -> AsyncIterator[Chunk]:
        """One turn: `token_ids` continued by at most `max_tokens`. The last chunk, and no other, has a stop reason."""
        tokens, num_left, has_ended = list(token_ids), max_tokens, False
        self.waited_s = 0.0
        await self._begin(len(tokens))
        try:
            while not has_ended:
                async with aclosing(self._generate_on_engine(tokens, sampling, num_left)) as chunks:
                    async for chunk in chunks:
                        tokens += chunk.token_ids
                        num_left -= len(chunk.token_ids)
                        self.num_tokens = len(tokens)
                        has_ended = chunk.stop_reason is not None
                        if has_ended:
                            self._end_turn()
                        yield chunk
                if not has_ended:
                    await self.placed()
        except (GeneratorExit, asyncio.CancelledError):
            self._was_left = not has_ended
            raise

    async def _begin(self, num_tokens: int) -> None:
        if self._was_left and self._state is _State.GENERATING:
            self._end_turn()
        self._was_left = False
        if self._state is _State.BETWEEN:
            self.calls_tool()
        # A program may shorten its conversation: then no token is new.
        num_new_tokens, self.num_tokens = max(0, num_tokens - self.num_tokens), num_tokens
        if self._state is _State.AT_TOOL:
            self._state = _State.READY
            self._driver.tell(ToolReturned(self._driver.clock(), self.spec.rollout, num_tokens))
        if self._state is _State.READY:
            await self.placed()
            self._driver.recorder.send(self.engine or "", num_new_tokens)
        else:
            num_new_tokens = 0 if self.spec.parent else num_tokens  # a branch's prompt was computed for its parent
            self._driver.recorder.send(self.engine or "", num_new_tokens, prompt_of=self.spec.problem)
        self._state = _State.GENERATING

    def _end_turn(self) -> None:
        self._state = _State.BETWEEN
        self._driver.recorder.enter(self.spec.rollout, SpanKind.TOOL)
        self._driver.tell(TurnEnded(self._driver.clock(), self.spec.rollout, self.num_tokens))

    async def _generate_on_engine(
        self, tokens: Sequence[int], sampling: Sampling, max_tokens: int
    ) -> AsyncGenerator[Chunk]:
        """Generates the turn on the present engine, to its end or until it must continue elsewhere."""
        name = self.engine
        assert name is not None
        engine = self._driver.engine(name)
        if engine is None:
            return
        self._driver.recorder.enter(self.spec.rollout, SpanKind.FIRST_TOKEN, name)
        has_begun = False
        self.has_open_turn = True
        try:
            stream = engine.generate(self.spec.rollout, tuple(tokens), sampling, max_tokens)
            async with left_cleanly(stream):
                async for chunk in stream:
                    if self._driver.engine(name) is not engine:
                        return
                    if chunk.token_ids and not has_begun:
                        has_begun = True
                        self._driver.recorder.enter(self.spec.rollout, SpanKind.GENERATING, name)
                    if chunk.stop_reason is not StopReason.CANCELLED:
                        yield chunk
                        continue
                    yield replace(chunk, stop_reason=None)
                    if self._driver.engine(name) is engine:
                        self._driver.tell(TurnCancelled(self._driver.clock(), self.spec.rollout, self.num_tokens))
                    return
        except InfrastructureError:
            self._driver.lose_engine(name)
        finally:
            self.has_open_turn = False
