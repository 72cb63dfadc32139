"""The transport for a server that is a child process with MCP on stdin and stdout, in place of the SDK's.

The SDK's transport reads lines of any length, in quadratic time. This one cuts long lines, keeps the last lines of
stderr for error messages, and leaves no process behind: the server's process group is killed at the end, and the server
itself when our process dies, even by kill -9 (`PR_SET_PDEATHSIG`; its children then see the end of their stdin).
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

import anyio
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from mcp.types import jsonrpc_message_adapter

from rstar2.environments.mcp.messages import BoundedLines, storable

READ_BYTES = 2**16
EXIT_S = 2.0
"""Seconds that a server gets to exit after its stdin is closed, and again after SIGTERM."""
POLL_S = 0.01
STDERR_BYTES = 2000
LAST_LINES = 3

_START = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    os._exit(1)
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
os.execvp(sys.argv[2], sys.argv[2:])
"""
"""Code for a bare Python that then becomes the server: code between fork and exec in our own process, which has
threads, may deadlock."""


def _message(line: bytes) -> Any:
    """Parse a line; ValueError if it is no message."""
    try:
        return jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError:
        return jsonrpc_message_adapter.validate_python(storable(json.loads(line)), by_name=False)


class StdioServer:
    """A transport of the SDK: its context manager yields the streams of messages from and to the server."""

    def __init__(self, command: Sequence[str], env: dict[str, str]) -> None:
        self._command = command
        self._env = get_default_environment() | env
        self._process: asyncio.subprocess.Process | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._last_words = b""
        self.has_ended = False

    async def __aenter__(self) -> Any:
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", "-c", _START, str(os.getpid()), *self._command),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self._env,
            start_new_session=True,
        )
        written, self._read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        self._write, to_send = anyio.create_memory_object_stream[SessionMessage](0)
        self._tasks = [
            asyncio.create_task(self._receive(self._process, written)),
            asyncio.create_task(self._send(self._process, to_send)),
            asyncio.create_task(self._listen(self._process)),
        ]
        return self._read, self._write

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process = self._process
        assert process is not None
        try:
            self._read.close()  # later output is read and dropped, so that the server can exit
            self._write.close()
            await self._stop(process)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # the children that the server left behind
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            process._transport.close()  # type: ignore[attr-defined]  # a survivor may hold the other end of a pipe

    @property
    def end(self) -> str:
        """How the server ended, and its last lines on stderr, for an error message."""
        lines = self._last_words.decode(errors="replace").split("\n")
        words = " / ".join([line.strip() for line in lines if line.strip()][-LAST_LINES:])
        code = self._process.returncode if self._process else None
        how = "it closed its stdout" if code is None else f"it ended with code {code}"
        return f"{how}; its stderr says: {words}" if words else how

    async def _receive(self, process: asyncio.subprocess.Process, written: Any) -> None:
        assert process.stdout is not None
        lines = BoundedLines()
        async with written:
            while piece := await process.stdout.read(READ_BYTES):
                for line in lines.feed(piece):
                    with suppress(
                        ValueError, RecursionError, anyio.BrokenResourceError
                    ):  # other output among messages is ignored
                        await written.send(SessionMessage(_message(line)))
            await self._exited(process)
            self.has_ended = True

    async def _send(self, process: asyncio.subprocess.Process, to_send: Any) -> None:
        assert process.stdin is not None
        with suppress(ConnectionError):  # it ended: `_receive` sees it
            async with to_send:
                async for message in to_send:
                    text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                    process.stdin.write(text.encode() + b"\n")
                    await process.stdin.drain()
        process.stdin.close()

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        while piece := await process.stderr.read(READ_BYTES):
            self._last_words = (self._last_words + piece)[-STDERR_BYTES:]

    async def _stop(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        process.stdin.close()
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            if number is not None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
            if await self._exited(process):
                return

    async def _exited(self, process: asyncio.subprocess.Process) -> bool:
        """Whether the server exited within `EXIT_S`. `Process.wait` would also wait for other holders of its pipes."""
        with suppress(TimeoutError):
            async with asyncio.timeout(EXIT_S):
                while process.returncode is None:  # noqa: ASYNC110
                    await asyncio.sleep(POLL_S)
        return process.returncode is not None
