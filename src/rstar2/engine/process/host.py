"""The child: one embedded engine, served over an inherited socket until its other end is closed.

Tokens are gathered for up to `FLUSH_PERIOD_S` and sent together, because the owner serves several engines with one
event loop; the end of a turn is sent at once, because somebody waits for it.
"""

import argparse
import asyncio
import json
import signal
import socket
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rstar2.engine.process.wire import (
    Frame,
    decode_sampling,
    encode_chunk,
    encode_error,
    encode_load,
    joined,
    read_frame,
    write_frame,
)
from rstar2.engine.protocol import Chunk, Engine
from rstar2.errors import UserError

if TYPE_CHECKING:
    from rstar2.engine.embedded import EmbeddedEngine

FLUSH_PERIOD_S = 0.02
"""A person reads slower than this, and a scheduler looks more rarely."""


class Host:
    def __init__(self, engine: Engine, writer: asyncio.StreamWriter) -> None:
        self._engine = engine
        self._writer = writer
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._chunks: defaultdict[int, list[Chunk]] = defaultdict(list)
        self._replies: list[Frame] = []
        self._is_urgent = asyncio.Event()
        self._last_load = engine.load()

    async def serve(self, reader: asyncio.StreamReader) -> None:
        """Until the owner is gone."""
        flusher = asyncio.create_task(self._keep_flushing())
        try:
            while (frame := await read_frame(reader)) is not None:
                self._act(frame)
        finally:
            flusher.cancel()
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(flusher, *self._tasks.values(), return_exceptions=True)

    def _act(self, frame: Frame) -> None:
        number = frame["number"]
        match frame["ask"]:
            case "generate":
                self._tasks[number] = asyncio.create_task(self._generate(number, frame))
            case "leave":
                task = self._tasks.get(number)
                if task is not None:
                    task.cancel()
            case "cancel" | "release":
                self._tasks[number] = asyncio.create_task(self._answer(number, frame))
        if number in self._tasks:
            self._tasks[number].add_done_callback(lambda _: self._tasks.pop(number, None))

    async def _generate(self, number: int, frame: Frame) -> None:
        sampling = decode_sampling(frame["sampling"])
        try:
            turn = self._engine.generate(frame["session"], frame["token_ids"], sampling, frame["max_tokens"])
            async for chunk in turn:
                self._chunks[number].append(chunk)
                if chunk.stop_reason is not None:
                    self._is_urgent.set()
        except Exception as error:
            self._reply({"number": number, "error": encode_error(error)})

    async def _answer(self, number: int, frame: Frame) -> None:
        try:
            if frame["ask"] == "cancel":
                await self._engine.cancel(frame["session"])
            else:
                await self._engine.release(frame["session"])
            self._reply({"number": number, "error": None})
        except Exception as error:
            self._reply({"number": number, "error": encode_error(error)})

    def _reply(self, reply: Frame) -> None:
        self._replies.append(reply)
        self._is_urgent.set()

    async def _keep_flushing(self) -> None:
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_urgent.wait(), FLUSH_PERIOD_S)
            self._is_urgent.clear()
            load = self._engine.load()
            if not (self._chunks or self._replies or load != self._last_load):
                continue
            chunks = [
                [number, encode_chunk(chunk)] for number, several in self._chunks.items() for chunk in joined(several)
            ]
            frame = {"chunks": chunks, "replies": self._replies, "load": encode_load(load)}
            self._chunks.clear()
            self._replies, self._last_load = [], load
            write_frame(self._writer, frame)
            await self._writer.drain()


async def serve(connection: socket.socket, load_engine: Callable[[], Engine]) -> None:
    """Says whether the engine could be loaded, then serves it."""
    reader, writer = await asyncio.open_connection(sock=connection)
    try:
        engine = load_engine()
    except UserError as error:
        write_frame(writer, {"error": encode_error(error)})
        await writer.drain()
        return
    write_frame(writer, {"error": None, "load": encode_load(engine.load())})
    # A connection that breaks while something is written to it is an owner that is gone.
    with suppress(ConnectionError):
        await Host(engine, writer).serve(reader)
    await engine.close()


def load_embedded(folder: Path, options: Frame, device: str, num_threads: int) -> "EmbeddedEngine":
    import torch

    from rstar2.engine.embedded import EmbeddedEngine, EmbeddedOptions

    torch.set_num_threads(num_threads)
    return EmbeddedEngine.from_folder(folder, EmbeddedOptions(**options), device=device)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--options", type=json.loads, required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--threads", type=int, required=True)
    given = parser.parse_args()
    # Ctrl-C goes to the whole terminal; the owner decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    load_engine = partial(load_embedded, given.folder, given.options, given.device, given.threads)
    asyncio.run(serve(socket.socket(fileno=given.socket), load_engine))


if __name__ == "__main__":
    main()
