"""The owner's side: an `Engine` whose work is done at the other end of a channel.

Invariant: every turn that was asked for ends with exactly one stop reason or one error, also when the other end dies,
or hangs.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import count
from typing import Protocol

from rstar2.engine.protocol import Chunk, EngineLoad, Sampling
from rstar2.engine.remote.wire import Frame, decode_chunk, decode_error, decode_load, encode_sampling
from rstar2.errors import InfrastructureError

SILENCE_S = 60.0
"""An engine that says nothing for so long is given up. Its host speaks every second, even in the middle of a step."""


class Channel(Protocol):
    def send(self, frame: Frame) -> None:
        """To the engine's host, which acts on frames in the order in which they were sent."""
        ...

    async def receive(self) -> Frame | None:
        """The host's next frame; None when it is gone."""
        ...

    async def close(self) -> None: ...


class RemoteEngine:
    """Satisfies `Engine`. `name` is what errors call it."""

    def __init__(self, channel: Channel, load: EngineLoad, name: str, silence_s: float = SILENCE_S) -> None:
        self._channel = channel
        self._load = load
        self._name = name
        self._silence_s = silence_s
        self._numbers = count()
        self._turns: dict[int, asyncio.Queue[Chunk | Exception]] = {}
        self._answers: dict[int, asyncio.Future[None]] = {}
        self._end: InfrastructureError | None = None
        self._listener = asyncio.create_task(self._listen())

    async def generate(
        self, session: str, token_ids: Sequence[int], sampling: Sampling, max_tokens: int
    ) -> AsyncIterator[Chunk]:
        self._check_alive()
        number = next(self._numbers)
        items = self._turns[number] = asyncio.Queue()
        request = {"session": session, "token_ids": list(token_ids), "max_tokens": max_tokens}
        self._ask("generate", number, {**request, "sampling": encode_sampling(sampling)})
        has_ended = False
        try:
            while not has_ended:
                item = await items.get()
                if isinstance(item, Exception):
                    has_ended = True
                    raise item
                has_ended = item.stop_reason is not None
                yield item
        finally:
            del self._turns[number]
            if not has_ended:
                self._ask("leave", number, {})

    def load(self) -> EngineLoad:
        """As the host last said, some hundredths of a second ago."""
        self._check_alive()
        return self._load

    async def cancel(self, session: str) -> None:
        await self._ask_and_wait("cancel", {"session": session})

    async def release(self, session: str) -> None:
        """Not waited for: whatever is asked next, is asked after it."""
        self._check_alive()
        self._ask("release", next(self._numbers), {"session": session})

    async def lost(self) -> InfrastructureError:
        """Waits until the engine is gone, and says why."""
        await asyncio.wait([self._listener])
        assert self._end is not None
        return self._end

    async def close(self) -> None:
        await self._channel.close()
        self._listener.cancel()
        await asyncio.wait([self._listener])

    def _check_alive(self) -> None:
        if self._end is not None:
            raise self._end

    def _ask(self, what: str, number: int, request: Frame) -> None:
        if self._end is None:
            self._channel.send({"ask": what, "number": number, **request})

    async def _ask_and_wait(self, what: str, request: Frame) -> None:
        self._check_alive()
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        self._ask(what, number, request)
        try:
            await answer
        finally:
            self._answers.pop(number, None)

    async def _listen(self) -> None:
        reason = f"{self._name} was closed"
        try:
            while (frame := await asyncio.wait_for(self._channel.receive(), self._silence_s)) is not None:
                self._take(frame)
            reason = f"{self._name} is gone"
        except TimeoutError:
            reason = f"{self._name} has not been heard of for {self._silence_s:g} s"
        finally:
            self._fail(InfrastructureError(reason))

    def _fail(self, error: InfrastructureError) -> None:
        self._end = error
        for items in self._turns.values():
            items.put_nowait(error)
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(error)

    def _take(self, frame: Frame) -> None:
        self._load = decode_load(frame["load"])
        for number, values in frame["chunks"]:
            if number in self._turns:
                self._turns[number].put_nowait(decode_chunk(values))
        for reply in frame["replies"]:
            self._take_reply(reply["number"], reply["error"])

    def _take_reply(self, number: int, error: list[str] | None) -> None:
        if number in self._turns and error is not None:
            self._turns[number].put_nowait(decode_error(error))
        answer = self._answers.get(number)
        if answer is None or answer.done():
            return
        if error is None:
            answer.set_result(None)
        else:
            answer.set_exception(decode_error(error))
