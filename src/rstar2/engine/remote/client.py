"""The owner's side of a channel: numbered requests, and an `Engine` whose work is done at the other end.

Invariant: every request gets an answer or an error, and every turn ends with exactly one stop reason or one error, also
when the other end dies or hangs.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import count
from typing import Any, Protocol

from rstar2.engine.protocol import Chunk, EngineLoad, Sampling
from rstar2.engine.remote.wire import Frame, decode_chunk, decode_error, decode_load, encode_sampling
from rstar2.errors import InfrastructureError

SILENCE_S = 60.0
"""Who says nothing for so long is given up. An engine's host and a process of rollouts speak every second, whatever
else they do."""


class Channel(Protocol):
    def send(self, frame: Frame) -> None:
        """To the other end, which acts on frames in the order in which they were sent."""
        ...

    async def receive(self) -> Frame | None:
        """The other end's next frame; None when it is gone."""
        ...

    async def close(self) -> None: ...


class Peer:
    """`name` is what errors call it; it is given up when it has said nothing for `silence_s`. What frames mean is said
    by `_take`, which settles what was asked."""

    def __init__(self, channel: Channel, name: str, silence_s: float = SILENCE_S) -> None:
        self._channel = channel
        self._name = name
        self._silence_s = silence_s
        self._numbers = count()
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._end: InfrastructureError | None = None
        self._listener = asyncio.create_task(self._listen())

    @property
    def is_alive(self) -> bool:
        """As far as is known."""
        return self._end is None

    async def lost(self) -> InfrastructureError:
        """Waits until it is gone, and says why."""
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

    def _tell(self, what: str, request: Frame, number: int | None = None) -> None:
        """Ask, and wait for nothing."""
        if self._end is None:
            self._channel.send({"ask": what, "number": next(self._numbers) if number is None else number, **request})

    def _ask(self, what: str, request: Frame, number: int | None = None) -> "asyncio.Future[Any]":
        """The answer; the question is on its way whether or not anybody waits for it yet."""
        self._check_alive()
        number = next(self._numbers) if number is None else number
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(lambda _: self._answers.pop(number))
        self._tell(what, request, number)
        return answer

    def _settle(self, number: int, result: Any, error: Exception | None) -> None:
        answer = self._answers.get(number)
        if answer is None or answer.done():
            return
        if error is None:
            answer.set_result(result)
        else:
            answer.set_exception(error)

    def _take(self, frame: Frame) -> None:
        raise NotImplementedError

    def _fail(self, error: Exception) -> None:
        """Everybody who waits is told."""
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(error)

    async def _listen(self) -> None:
        reason = f"{self._name} was closed"
        try:
            while (frame := await asyncio.wait_for(self._channel.receive(), self._silence_s)) is not None:
                self._take(frame)
            reason = f"{self._name} is gone"
        except TimeoutError:
            reason = f"{self._name} has not been heard of for {self._silence_s:g} s"
        except Exception as error:
            # Whoever is handed what has come may fail, on a full disk: who waits for the rest must hear of that.
            reason = f"what {self._name} said could not be taken in: {error}"
            self._fail(error)
        finally:
            self._end = InfrastructureError(reason)
            self._fail(self._end)


class RemoteEngine(Peer):
    """Satisfies `Engine`."""

    def __init__(self, channel: Channel, load: EngineLoad, name: str, silence_s: float = SILENCE_S) -> None:
        self._load = load
        self._turns: dict[int, asyncio.Queue[Chunk | Exception]] = {}
        super().__init__(channel, name, silence_s)

    async def generate(
        self, session: str, token_ids: Sequence[int], sampling: Sampling, max_tokens: int
    ) -> AsyncIterator[Chunk]:
        self._check_alive()
        number = next(self._numbers)
        items = self._turns[number] = asyncio.Queue()
        request = {"session": session, "token_ids": list(token_ids), "max_tokens": max_tokens}
        self._tell("generate", {**request, "sampling": encode_sampling(sampling)}, number)
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
                self._tell("leave", {}, number)

    def load(self) -> EngineLoad:
        """As the host last said, some hundredths of a second ago."""
        self._check_alive()
        return self._load

    async def cancel(self, session: str) -> None:
        await self._ask("cancel", {"session": session})

    async def release(self, session: str) -> None:
        """Not waited for: whatever is asked next, is asked after it."""
        self._check_alive()
        self._tell("release", {"session": session})

    def _fail(self, error: Exception) -> None:
        super()._fail(error)
        for items in self._turns.values():
            items.put_nowait(error)

    def _take(self, frame: Frame) -> None:
        self._load = decode_load(frame["load"])
        for number, values in frame["chunks"]:
            if number in self._turns:
                self._turns[number].put_nowait(decode_chunk(values))
        for reply in frame["replies"]:
            self._take_reply(reply["number"], reply["error"])

    def _take_reply(self, number: int, said: list[str] | None) -> None:
        error = None if said is None else decode_error(said)
        if number in self._turns and error is not None:
            self._turns[number].put_nowait(error)
        self._settle(number, None, error)
