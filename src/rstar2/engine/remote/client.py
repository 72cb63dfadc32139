"""The owner's side: an `Engine` whose work is done at the other end of a channel.

Invariant: every turn that was asked for ends with exactly one stop reason or one error, also when the other end dies,
or hangs.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence

from rstar2.engine.protocol import Chunk, EngineLoad, Sampling
from rstar2.engine.remote.peer import SILENCE_S, Channel, Peer
from rstar2.engine.remote.wire import Frame, decode_chunk, decode_error, decode_load, encode_sampling


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
