"""Somebody at the other end of a channel: what is asked under a number is answered under it, and silence has an end.

Invariant: whoever waits for an answer gets one, or an error, also when the other end dies, or hangs.
"""

import asyncio
from itertools import count
from typing import Any, Protocol

from rstar2.engine.remote.wire import Frame
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
