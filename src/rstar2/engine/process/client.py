"""The owner's side: an `Engine` whose work is done by a child process.

Invariant: every turn that was asked for ends with exactly one stop reason or one error, also when the child is killed.
"""

import asyncio
import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Self

from rstar2.engine.process.wire import (
    Frame,
    decode_chunk,
    decode_error,
    decode_load,
    encode_sampling,
    read_frame,
    write_frame,
)
from rstar2.engine.protocol import Chunk, EngineLoad, Sampling
from rstar2.errors import InfrastructureError

if TYPE_CHECKING:
    from rstar2.engine.embedded import EmbeddedOptions

START_TIMEOUT_S = 300.0
"""Importing torch and reading the weights of a large model from a cold disk."""
CLOSE_TIMEOUT_S = 10.0


class EngineProcess:
    """Satisfies `Engine`. Made by `start`; ended by `close`, or by the end of this process."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        load: EngineLoad,
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._load = load
        self._numbers = count()
        self._turns: dict[int, asyncio.Queue[Chunk | Exception]] = {}
        self._answers: dict[int, asyncio.Future[None]] = {}
        self._end: InfrastructureError | None = None
        self._listener = asyncio.create_task(self._listen())

    @classmethod
    async def start(
        cls,
        folder: Path,
        options: "EmbeddedOptions | None" = None,
        *,
        device: str = "auto",
        num_threads: int = 1,
    ) -> Self:
        """An embedded engine on a Hugging Face model folder, in a new process that computes on so many threads."""
        options_json = json.dumps(asdict(options) if options else {})
        command = [sys.executable, "-m", "rstar2.engine.process.host", "--folder", str(folder), "--device", device]
        return await cls.launch([*command, "--options", options_json, "--threads", str(num_threads)], num_threads)

    @classmethod
    async def launch(cls, command: Sequence[str], num_threads: int) -> Self:
        """Any program that serves an engine as `host` does, on the socket that `--socket` names."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *(*command, "--socket", str(theirs.fileno())),
                pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": str(num_threads)},
            )
        reader, writer = await asyncio.open_connection(sock=ours)
        try:
            load = await _await_ready(process, reader)
        except BaseException:
            writer.close()
            _kill(process)
            await process.wait()
            raise
        return cls(process, reader, writer, load)

    @property
    def pid(self) -> int:
        return self._process.pid

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
        """As the child last said, some hundredths of a second ago."""
        self._check_alive()
        return self._load

    async def cancel(self, session: str) -> None:
        await self._ask_and_wait("cancel", session)

    async def release(self, session: str) -> None:
        await self._ask_and_wait("release", session)

    async def close(self) -> None:
        self._writer.close()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), CLOSE_TIMEOUT_S)
        _kill(self._process)
        await self._process.wait()
        await self._listener

    def _check_alive(self) -> None:
        if self._end is not None:
            raise self._end

    def _ask(self, what: str, number: int, request: Frame) -> None:
        if self._end is None and not self._writer.is_closing():
            write_frame(self._writer, {"ask": what, "number": number, **request})

    async def _ask_and_wait(self, what: str, session: str) -> None:
        self._check_alive()
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        self._ask(what, number, {"session": session})
        try:
            await answer
        finally:
            self._answers.pop(number, None)

    async def _listen(self) -> None:
        while (frame := await read_frame(self._reader)) is not None:
            self._load = decode_load(frame["load"])
            for number, values in frame["chunks"]:
                if number in self._turns:
                    self._turns[number].put_nowait(decode_chunk(values))
            for reply in frame["replies"]:
                self._take_reply(reply["number"], reply["error"])
        self._end = InfrastructureError(f"the engine's process {self._process.pid} is gone")
        for items in self._turns.values():
            items.put_nowait(self._end)
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(self._end)

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


async def _await_ready(process: asyncio.subprocess.Process, reader: asyncio.StreamReader) -> EngineLoad:
    try:
        hello = await asyncio.wait_for(read_frame(reader), START_TIMEOUT_S)
    except TimeoutError:
        raise InfrastructureError(f"the engine's process was not ready after {START_TIMEOUT_S:.0f} s") from None
    if hello is None:
        raise InfrastructureError(f"the engine's process ended with code {await process.wait()} as it started")
    if hello["error"] is not None:
        raise decode_error(hello["error"])
    return decode_load(hello["load"])


def _kill(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.kill()
