"""The owner's side of a channel: numbered requests, and an `Engine` whose work is done at the other end.

Invariant: every request gets an answer or an error, and every turn ends with exactly one stop reason or one error, also
when the other end dies or hangs.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import count
from typing import Any, Protocol

from rstar2.engine.protocol import Chunk, EngineLoad, Sampling
from rstar2.engine.remote.wire import Frame, decode_chunk, decode_error, encode_sampling
from rstar2.errors import InfrastructureError

SILENCE_S = 60.0
"""A peer that sends nothing for this long is lost. An engine's host and a rollout process send every second, whatever
else they do."""
CATCH_UP_S = 5.0
"""How long, after a silence, frames may take to arrive that were sent while this process was busy."""


class Channel(Protocol):
    def send(self, frame: Frame) -> None:
        """The other end acts on frames in the order in which they were sent."""
        ...

    async def receive(self) -> Frame | None:
        """The other end's next frame; None when it has disconnected."""
        ...

    async def close(self) -> None: ...


class Peer:
    """The other end of a channel. `name` is used in errors; it is lost when it has sent nothing for `silence_s`.
    `_take` handles its frames and settles requests."""

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
        """Whether the other end is alive, as far as this end knows."""
        return self._end is None

    @property
    def failure(self) -> InfrastructureError | None:
        """Why the other end was lost; None while it is alive."""
        return self._end

    async def lost(self) -> InfrastructureError:
        """Waits until the other end is lost, and returns why."""
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
        """Send a request that has no answer."""
        if self._end is None:
            self._channel.send({"ask": what, "number": next(self._numbers) if number is None else number, **request})

    def _ask(self, what: str, request: Frame, number: int | None = None) -> "asyncio.Future[Any]":
        """Sends a request at once, and returns its answer as a future."""
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
        """Raise the error in everything that awaits an answer."""
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(error)

    async def _listen(self) -> None:
        reason = f"{self._name} was closed"
        try:
            while (frame := await self._receive()) is not None:
                try:
                    self._take(frame)
                except Exception as error:  # on a full disk here, for one: whoever awaits an answer must hear that
                    reason = f"a frame of {self._name} could not be handled: {error}"
                    self._fail(error)
                    return
            reason = f"{self._name} has disconnected"
        except TimeoutError:
            reason = f"{self._name} has sent nothing for {self._silence_s:g} s"
        except Exception as error:
            reason = f"{self._name} has failed ({error})"
        finally:
            self._end = InfrastructureError(reason)
            self._fail(self._end)

    async def _receive(self) -> Frame | None:
        """The next frame; TimeoutError if the other end is silent. An update in this process may block its event loop
        for longer than the silence: then frames have been waiting, and arrive as soon as they are read. Reading is not
        cancelled in between, because it may be in the middle of a frame."""
        receiving = asyncio.ensure_future(self._channel.receive())
        try:
            for timeout_s in (self._silence_s, min(self._silence_s, CATCH_UP_S)):
                done, _ = await asyncio.wait([receiving], timeout=timeout_s)
                if done:
                    return receiving.result()
            raise TimeoutError
        finally:
            receiving.cancel()


class RemoteEngine(Peer):
    """Satisfies `Engine` and `FallibleEngine`."""

    def __init__(self, channel: Channel, load: EngineLoad, name: str, silence_s: float = SILENCE_S) -> None:
        self._load = load
        self._turns: dict[int, asyncio.Queue[Chunk | Exception]] = {}
        self.has_generated = False
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
        """The load in the host's last frame, some hundredths of a second ago."""
        self._check_alive()
        return self._load

    async def cancel(self, session: str) -> None:
        await self._ask("cancel", {"session": session})

    async def release(self, session: str) -> None:
        """Returns at once: later requests are handled after it."""
        self._check_alive()
        self._tell("release", {"session": session})

    def _fail(self, error: Exception) -> None:
        super()._fail(error)
        for items in self._turns.values():
            items.put_nowait(error)

    def _take(self, frame: Frame) -> None:
        self._load = frame["load"]
        for number, values in frame["chunks"]:
            chunk = decode_chunk(values)
            self.has_generated = self.has_generated or bool(chunk.token_ids)
            if number in self._turns:
                self._turns[number].put_nowait(chunk)
        for reply in frame["replies"]:
            number, error = reply["number"], None if reply["error"] is None else decode_error(reply["error"])
            if number in self._turns and error is not None:
                self._turns[number].put_nowait(error)
            self._settle(number, reply.get("result"), error)
