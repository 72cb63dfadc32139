"""The engine's side of a channel: it handles the owner's frames, and makes frames for the owner.

Tokens are gathered for up to `FLUSH_PERIOD_S` and sent together, because the owner serves several engines with one
event loop; the end of a turn is sent at once, because the owner waits for it. An idle engine sends a heartbeat every
`HEARTBEAT_S`, because the owner takes a silent engine for hung.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from rstar2.engine.protocol import Chunk, Engine, EngineLoad, PushingEngine
from rstar2.engine.remote.wire import Frame, decode_sampling, encode_chunk, encode_error, joined
from rstar2.errors import InfrastructureError

FLUSH_PERIOD_S = 0.02
"""How long tokens are gathered: shorter than a reader notices, and than the period of a scheduler's reports."""
HEARTBEAT_S = 1.0


class EngineHost:
    def __init__(self, engine: Engine, *, starts_early: bool = False) -> None:
        """`starts_early`: whether a turn's first tokens are sent at once, for callers who watch them arrive."""
        self._engine = engine
        self._starts_early = starts_early
        self._pushing = engine if isinstance(engine, PushingEngine) else None
        self._leaves: dict[int, Callable[[], None]] = {}
        """Cancels each turn of a pushing engine, by its number."""
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._sessions: set[str] = set()
        """Sessions that were not released."""
        self._silent: set[int] = set()
        """The turns without tokens so far, if first tokens are sent at once."""
        self._chunks: defaultdict[int, list[Chunk]] = defaultdict(list)
        self._replies: list[Frame] = []
        self._is_urgent = asyncio.Event()
        self._last_load = engine.load()
        self._last_s = time.monotonic()

    @property
    def load(self) -> EngineLoad:
        return self._engine.load()

    def act(self, frame: Frame) -> None:
        number = frame["number"]
        match frame["ask"]:
            case "generate":
                self._sessions.add(frame["session"])
                if self._starts_early:
                    self._silent.add(number)
                if self._pushing is not None:
                    self._begin(self._pushing, number, frame)
                else:
                    self._start(number, self._generate(number, frame))
            case "leave":
                if number in self._leaves:
                    self._leaves.pop(number)()
                elif number in self._tasks:
                    self._tasks[number].cancel()
            case "release":
                self._sessions.discard(frame["session"])
                if self._pushing is not None:
                    self._pushing.forget(frame["session"])
                else:
                    self._start(number, self._release(frame["session"]))
            case _:
                self._start(number, self._answer(number, frame))

    def _start(self, number: int, what: Coroutine[Any, Any, None]) -> None:
        self._tasks[number] = task = asyncio.create_task(what)
        task.add_done_callback(lambda _: self._tasks.pop(number, None))

    async def next_frame(self) -> Frame:
        """Waits until there is something to send, or a heartbeat is due."""
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_urgent.wait(), FLUSH_PERIOD_S)
            self._is_urgent.clear()
            load = self._engine.load()
            is_silent = not (self._chunks or self._replies or load != self._last_load)
            if not is_silent or time.monotonic() - self._last_s > HEARTBEAT_S:
                break
        chunks = [
            [number, encode_chunk(chunk)] for number, several in self._chunks.items() for chunk in joined(several)
        ]
        frame = {"chunks": chunks, "replies": self._replies, "load": load}
        self._chunks.clear()
        self._replies, self._last_load, self._last_s = [], load, time.monotonic()
        return frame

    async def close(self) -> None:
        """Cancels running turns and releases their sessions. The engine itself stays open."""
        for leave in self._leaves.values():
            leave()
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for session in self._sessions:
            await self._release(session)

    def _begin(self, engine: PushingEngine, number: int, frame: Frame) -> None:
        def give(item: Chunk | BaseException) -> None:
            if isinstance(item, Chunk):
                self._take(number, item)
            else:
                self._leaves.pop(number, None)
                self._reply({"number": number, "error": encode_error(item)})

        sampling = decode_sampling(frame["sampling"])
        try:
            leave = engine.begin(frame["session"], frame["token_ids"], sampling, frame["max_tokens"], give)
        except Exception as error:
            self._reply({"number": number, "error": encode_error(error)})
        else:
            self._leaves[number] = leave

    def _take(self, number: int, chunk: Chunk) -> None:
        self._chunks[number].append(chunk)
        if number in self._silent:
            self._silent.discard(number)
            self._is_urgent.set()
        if chunk.stop_reason is not None:
            self._leaves.pop(number, None)
            self._is_urgent.set()

    async def _generate(self, number: int, frame: Frame) -> None:
        sampling = decode_sampling(frame["sampling"])
        try:
            turn = self._engine.generate(frame["session"], frame["token_ids"], sampling, frame["max_tokens"])
            async for chunk in turn:
                self._take(number, chunk)
        except Exception as error:
            self._reply({"number": number, "error": encode_error(error)})

    async def _release(self, session: str) -> None:
        """Releases a session. An engine that cannot is lost, and its turns raise that error."""
        with suppress(InfrastructureError):
            await self._engine.release(session)

    async def _answer(self, number: int, frame: Frame) -> None:
        try:
            self._reply({"number": number, "error": None, "result": await self._do(frame)})
        except Exception as error:
            self._reply({"number": number, "error": encode_error(error)})

    async def _do(self, frame: Frame) -> Any:
        match frame["ask"]:
            case "cancel":
                await self._engine.cancel(frame["session"])
            case unknown:
                raise AssertionError(f"there is no request {unknown}")

    def _reply(self, reply: Frame) -> None:
        self._silent.discard(reply["number"])
        self._replies.append(reply)
        self._is_urgent.set()
