"""The executor without isolation, for machines that cannot give any (macOS), and never chosen silently.

It keeps the interface and the deadlines, but isolates nothing: the code runs as the user, sees the user's files and the
network, and its limits are those that an honest program respects. Each execution is one plain interpreter in its own
process group and scratch directory; a session is one that keeps running, and is rebuilt by replay after a crash, a
fork or a rollback.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Self

from rstar2.errors import InfrastructureError
from rstar2.sandbox.execution import MIB, Execution, ExecutionStatus, Limits
from rstar2.sandbox.executor import Overloaded, Request
from rstar2.sandbox.unsafe import child as program

POLL_S = 0.02
"""How often a running program's output is measured: it can exceed its limit by what it writes in this time."""
START_S = 60.0
"""How long an interpreter may take until it is ready; a program's own clock starts only then."""
REPLY_BYTES = 256 * MIB
"""The longest line that the child may answer with: the value's JSON, before it is cut."""


class ChildInterpreter:
    """One interpreter, its process group and its scratch directory; `kill` removes all three."""

    def __init__(self, process: asyncio.subprocess.Process, folder: Path) -> None:
        self._process = process
        self._folder = folder

    @classmethod
    async def start(cls) -> Self:
        folder = Path(tempfile.mkdtemp(prefix="rstar2-unsafe-"))
        scratch = folder / "scratch"
        scratch.mkdir()
        streams = [str(folder / "stdout"), str(folder / "stderr")]
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-X", "utf8", program.__file__, *streams),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                cwd=scratch,
                env={"PATH": os.defpath, "HOME": str(scratch), "TMPDIR": str(scratch), "LANG": "C.UTF-8"},
                start_new_session=True,
                limit=REPLY_BYTES,
            )
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        child = cls(process, folder)
        try:
            await child._ready()
        except BaseException:
            await child.kill()
            raise
        return child

    async def _ready(self) -> None:
        assert self._process.stdout is not None
        try:
            line = await asyncio.wait_for(self._process.stdout.readline(), START_S)
        except TimeoutError:
            raise InfrastructureError(f"no Python interpreter was ready within {START_S:g} s") from None
        if not line:
            raise InfrastructureError(f"the Python interpreter ended with {await self._process.wait()} as it started")

    async def run(self, code: str, stdin: str, limits: Limits) -> Execution:
        """Run one cell. The next one can be run only while `alive`."""
        for name in ("stdout", "stderr"):
            (self._folder / name).write_bytes(b"")
        started = time.monotonic()
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(ConnectionError):
            self._process.stdin.write(json.dumps({"code": code, "stdin": stdin, **asdict(limits)}).encode() + b"\n")
            await self._process.stdin.drain()
        reply = asyncio.ensure_future(self._process.stdout.readline())
        try:
            stopped = await self._watch(reply, started + limits.wall_s, limits)
        finally:
            reply.cancel()
        if stopped is None:
            ended = await self._ended(reply.result(), limits)
        else:
            self._kill_group()
            await self._process.wait()
            ended = stopped
        stdout, stdout_cut = self._output("stdout", limits.output_bytes)
        stderr, stderr_cut = self._output("stderr", limits.output_bytes)
        wall_s = time.monotonic() - started
        return replace(ended, stdout=stdout, stderr=stderr, stdout_cut=stdout_cut, stderr_cut=stderr_cut, wall_s=wall_s)

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    async def kill(self) -> None:
        self._kill_group()
        await self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _watch(self, reply: "asyncio.Future[bytes]", deadline: float, limits: Limits) -> Execution | None:
        """Wait for the reply; what stopped the program instead, if something did."""
        while not reply.done():
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return Execution(
                    ExecutionStatus.TIMEOUT, message=f"stopped at its wall-clock limit, {limits.wall_s:g} s"
                )
            await asyncio.wait([reply], timeout=min(POLL_S, left_s))
            written = max((self._folder / name).stat().st_size for name in ("stdout", "stderr"))
            if written > limits.output_bytes:
                return Execution(ExecutionStatus.OUTPUT_LIMIT, message=f"wrote more than {limits.output_bytes} bytes")
        return None

    async def _ended(self, line: bytes, limits: Limits) -> Execution:
        if line:
            return _from_reply(json.loads(line), limits.output_bytes)
        code = await self._process.wait()
        self._kill_group()
        if code >= 0:
            return Execution(ExecutionStatus.ERROR if code else ExecutionStatus.OK, exit_code=code)
        if -code == signal.SIGXCPU:
            return Execution(ExecutionStatus.TIMEOUT, message=f"stopped at its CPU limit, {limits.cpu_s:g} s")
        return Execution(ExecutionStatus.SIGNAL, signal=-code, message=f"ended by {signal.Signals(-code).name}")

    def _output(self, name: str, max_bytes: int) -> tuple[str, bool]:
        with (self._folder / name).open("rb") as file:
            data = file.read(max_bytes + 1)
        return data[:max_bytes].decode(errors="replace"), len(data) > max_bytes

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)


def _from_reply(reply: dict[str, Any], max_value_bytes: int) -> Execution:
    status = ExecutionStatus.ERROR if reply["exit_code"] else ExecutionStatus.OK
    if reply["out_of_memory"]:
        status = ExecutionStatus.MEMORY
    value = None if reply["value"] is None else reply["value"].encode(errors="replace")
    return Execution(
        status,
        value=None if value is None else value[:max_value_bytes].decode(errors="replace"),
        value_cut=value is not None and len(value) > max_value_bytes,
        exit_code=reply["exit_code"],
        cpu_s=reply["cpu_s"],
        peak_memory_bytes=reply["peak_memory_bytes"],
    )


class UnsafeSession:
    """A notebook in one long-lived child. When that child exits, the cell log rebuilds it."""

    def __init__(
        self,
        slots: asyncio.Semaphore,
        open_sessions: "set[UnsafeSession]",
        log: tuple[tuple[str, str, Limits], ...] = (),
    ) -> None:
        self._id = uuid.uuid4().hex
        self._slots = slots
        self._open_sessions = open_sessions
        self._log = log
        self._child: ChildInterpreter | None = None
        self._lock = asyncio.Lock()
        open_sessions.add(self)

    @property
    def id(self) -> str:
        return self._id

    @property
    def num_cells(self) -> int:
        return len(self._log)

    async def run(self, code: str, stdin: str = "", limits: Limits | None = None) -> Execution:
        limits = limits or Limits()
        async with self._lock, self._slots:
            try:
                child = await self._rebuilt()
                execution = await child.run(code, stdin, limits)
            except InfrastructureError as error:
                return Execution(ExecutionStatus.INFRASTRUCTURE, message=str(error))
            except asyncio.CancelledError:
                await self._drop_child()
                raise
            if child.alive and execution.status in (ExecutionStatus.OK, ExecutionStatus.ERROR):
                self._log = (*self._log, (code, stdin, limits))
            else:
                await self._drop_child()
            return execution

    async def fork(self) -> "UnsafeSession":
        async with self._lock:
            return UnsafeSession(self._slots, self._open_sessions, self._log)

    async def rollback(self, num_cells: int = 1) -> None:
        async with self._lock:
            if not 0 <= num_cells <= len(self._log):
                raise ValueError(f"num_cells must be at most {len(self._log)}, the number of cells, not {num_cells}")
            self._log = self._log[: len(self._log) - num_cells]
            await self._drop_child()

    async def close(self) -> None:
        self._open_sessions.discard(self)
        await self._drop_child()

    async def _rebuilt(self) -> ChildInterpreter:
        if self._child is None:
            self._child = await ChildInterpreter.start()
            for code, stdin, limits in self._log:
                await self._child.run(code, stdin, limits)
        return self._child

    async def _drop_child(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            await child.kill()


class UnsafeExecutor:
    """Satisfies `Executor` with plain subprocesses, `num_slots` at a time and at most `max_queued` waiting."""

    def __init__(self, num_slots: int | None = None, max_queued: int = 65_536) -> None:
        self._slots = asyncio.Semaphore(num_slots or os.cpu_count() or 1)
        self._max_queued = max_queued
        self._num_queued = 0
        self._sessions: set[UnsafeSession] = set()

    async def run(self, request: Request) -> Execution:
        if self._num_queued >= self._max_queued:
            raise Overloaded(retry_after_s=1.0)
        queued = time.monotonic()
        self._num_queued += 1
        try:
            async with asyncio.timeout(request.queue_s):
                await self._slots.acquire()
        except TimeoutError:
            return Execution(ExecutionStatus.QUEUE_TIMEOUT, message=f"no worker was free within {request.queue_s:g} s")
        finally:
            self._num_queued -= 1
        try:
            queue_s = time.monotonic() - queued
            try:
                child = await ChildInterpreter.start()
            except InfrastructureError as error:
                return Execution(ExecutionStatus.INFRASTRUCTURE, message=str(error), queue_s=queue_s)
            try:
                return replace(await child.run(request.code, request.stdin, request.limits), queue_s=queue_s)
            finally:
                await child.kill()
        finally:
            self._slots.release()

    async def run_many(self, requests: Iterable[Request]) -> AsyncIterator[tuple[int, Execution]]:
        async def indexed(index: int, request: Request) -> tuple[int, Execution]:
            return index, await self.run(request)

        tasks = [asyncio.ensure_future(indexed(index, request)) for index, request in enumerate(requests)]
        try:
            for done in asyncio.as_completed(tasks):
                yield await done
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def session(self) -> UnsafeSession:
        return UnsafeSession(self._slots, self._sessions)

    async def close(self) -> None:
        for session in tuple(self._sessions):
            await session.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
