"""An executor that starts an interpreter for each execution. A `Launcher` decides how: without isolation (`unsafe`) or
in another kind of sandbox (`gvisor`).

Each execution is one interpreter in its own process group; a session is one that keeps running, and is rebuilt by
replay after a crash, a fork or a rollback. A program can forge its interpreter's replies, so they are read within
limits and decide only that program's result. Rich results are not supported: `Request.rich` has no effect.
"""

import asyncio
import base64
import contextlib
import json
import os
import shutil
import signal
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Protocol, Self, TypeVar

from pydantic import TypeAdapter

from rstar2.errors import InfrastructureError, UserError
from rstar2.sandbox.execution import MIB, Execution, ExecutionStatus, FileInfo, Limits, OnOutput
from rstar2.sandbox.executor import Overloaded, Request
from rstar2.sandbox.file_paths import MAX_FILE_BYTES, check_files, check_path, check_size
from rstar2.sandbox.output_relay import OutputRelay
from rstar2.sandbox.slots.processes import MemoryWatch

T = TypeVar("T")
POLL_S = 0.02
"""The interval between measurements of a running program's output, which may exceed its limit in between."""
START_S = 60.0
"""How long an interpreter may take to start; the program's own clock starts afterwards."""
REPLY_BYTES = 256 * MIB
"""The maximum length of a line of the child's answer: the value's JSON, before it is cut."""
FILES_S = 30.0
_CLOSED = "the sandbox was closed"


class Launcher(Protocol):
    """Starts an interpreter that runs `unsafe/child.py`, and cleans up after it."""

    def command(self, folder: Path) -> tuple[list[str], dict[str, str]]:
        """The command line and the environment. `folder` belongs to the interpreter, which must find the files `stdout`
        and `stderr` in it, and work in its `scratch` or in another scratch directory."""
        ...

    @property
    def own_memory_bytes(self) -> int:
        """The memory of the sandbox around a program, without the program's."""
        ...

    def signal_of(self, exit_code: int) -> int | None:
        """The signal that ended the interpreter, if one did."""
        ...

    async def after_end(self, folder: Path) -> None:
        """Clean up when the process has ended."""
        ...


class ChildInterpreter:
    """One interpreter, its process group and its folder; `kill` removes all three."""

    def __init__(self, process: asyncio.subprocess.Process, folder: Path, launcher: Launcher) -> None:
        self._process = process
        self._folder = folder
        self._launcher = launcher
        self._memory = MemoryWatch()

    @classmethod
    async def start(cls, launcher: Launcher) -> Self:
        folder = Path(tempfile.mkdtemp(prefix="rstar2-subprocess-"))
        try:
            (folder / "scratch").mkdir()
            for name in ("stdout", "stderr"):
                (folder / name).touch()
            command, environment = launcher.command(folder)
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                cwd=folder / "scratch",
                env=environment,
                start_new_session=True,
                limit=REPLY_BYTES,
            )
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        child = cls(process, folder, launcher)
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

    async def run(self, code: str, stdin: str, limits: Limits, relay: OutputRelay | None = None) -> Execution:
        """Run one cell. Another can follow only while `alive`."""
        for name in ("stdout", "stderr"):
            (self._folder / name).write_bytes(b"")
        started = time.monotonic()
        reply = await self._send({"code": code, "stdin": stdin, **asdict(limits)})
        try:
            stopped = await self._watch(reply, started + limits.wall_s, limits, relay)
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
        execution = replace(
            ended, stdout=stdout, stderr=stderr, stdout_cut=stdout_cut, stderr_cut=stderr_cut, wall_s=wall_s
        )
        return execution if relay is None else relay.finish(execution)

    async def put_file(self, path: str, data: bytes) -> None:
        await self._use_files("put", path, base64.b64encode(data).decode())

    async def read_file(self, path: str) -> bytes:
        return base64.b64decode((await self._use_files("read", path)).data)[:MAX_FILE_BYTES]

    async def list_files(self) -> list[FileInfo]:
        return [FileInfo(path, num_bytes) for path, num_bytes in (await self._use_files("list", "")).found]

    async def _use_files(self, what: str, path: str, data: str = "") -> "_FilesReply":
        """Put, read or list files. Any failure is a UserError: the program controls the interpreter."""
        reply = await self._send({"files": what, "path": path, "data": data, "max_bytes": MAX_FILE_BYTES})
        try:
            async with asyncio.timeout(FILES_S):
                answer = _FILES_REPLY.validate_json(await reply)
        except (TimeoutError, ValueError):
            self._kill_group()
            await self._process.wait()
            raise UserError("the session's interpreter did not answer for its files") from None
        finally:
            reply.cancel()
        if answer.error:
            raise UserError(f"path: {path!r}: {answer.error}")
        return answer

    async def _send(self, command: dict[str, object]) -> "asyncio.Future[bytes]":
        """Send a command. The future holds the line that answers it."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(ConnectionError):
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            await self._process.stdin.drain()
        return asyncio.ensure_future(self._process.stdout.readline())

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    async def kill(self) -> None:
        self._kill_group()
        await self._process.wait()
        await self._launcher.after_end(self._folder)
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _watch(
        self, reply: "asyncio.Future[bytes]", deadline: float, limits: Limits, relay: OutputRelay | None
    ) -> Execution | None:
        """Wait for the reply. Returns None, or a result if a limit was exceeded first."""
        num_passed_on = [0, 0]
        while not reply.done():
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return Execution(
                    ExecutionStatus.TIMEOUT, message=f"stopped at its wall-clock limit, {limits.wall_s:g} s"
                )
            await asyncio.wait([reply], timeout=min(POLL_S, left_s))
            if relay is not None:
                parts = [self._output(name, limits.output_bytes)[0] for name in ("stdout", "stderr")]
                for at, stream in enumerate(("stdout", "stderr")):
                    # An incomplete character at the end may change.
                    new = parts[at][num_passed_on[at] :].removesuffix("\N{REPLACEMENT CHARACTER}")
                    num_passed_on[at] += len(new)
                    relay.receive_text(stream, new)
            written = max((self._folder / name).stat().st_size for name in ("stdout", "stderr"))
            if written > limits.output_bytes:
                return Execution(ExecutionStatus.OUTPUT_LIMIT, message=f"wrote more than {limits.output_bytes} bytes")
            if self._memory.exceeds(self._process.pid, limits.memory_bytes + self._launcher.own_memory_bytes):
                return Execution(ExecutionStatus.MEMORY, message=f"stopped at its limit, {limits.memory_bytes} bytes")
        return None

    async def _ended(self, line: bytes, limits: Limits) -> Execution:
        if line:
            try:
                return _from_reply(_REPLY.validate_json(line), limits.output_bytes)
            except ValueError:
                message = "the program wrote to the channel of its result"
                return Execution(ExecutionStatus.ERROR, message=message)
        code = await self._process.wait()
        self._kill_group()
        number = self._launcher.signal_of(code)
        if number is None:
            return Execution(ExecutionStatus.ERROR if code else ExecutionStatus.OK, exit_code=code)
        if number == signal.SIGXCPU:
            return Execution(ExecutionStatus.TIMEOUT, message=f"stopped at its CPU limit, {limits.cpu_s:g} s")
        return Execution(ExecutionStatus.SIGNAL, signal=number, message=f"ended by signal {number}")

    def _output(self, name: str, max_bytes: int) -> tuple[str, bool]:
        with (self._folder / name).open("rb") as file:
            data = file.read(max_bytes + 1)
        return data[:max_bytes].decode(errors="replace"), len(data) > max_bytes

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class _Reply:
    exit_code: int
    out_of_memory: bool
    value: str | None
    cpu_s: float
    peak_memory_bytes: int


_REPLY = TypeAdapter(_Reply)


@dataclass(frozen=True, slots=True)
class _FilesReply:
    error: str = ""
    data: str = ""
    found: list[tuple[str, int]] = field(default_factory=list)


_FILES_REPLY = TypeAdapter(_FilesReply)


@dataclass(frozen=True, slots=True)
class _Cell:
    code: str
    stdin: str
    limits: Limits


@dataclass(frozen=True, slots=True)
class _PutFile:
    path: str
    data: bytes


def _from_reply(reply: _Reply, max_value_bytes: int) -> Execution:
    exit_code, message = reply.exit_code & 0xFF, ""  # as the kernel keeps it
    status = ExecutionStatus.ERROR if exit_code else ExecutionStatus.OK
    if reply.out_of_memory:
        status = ExecutionStatus.MEMORY
    value = None if reply.value is None else reply.value.encode(errors="replace")
    is_cut = value is not None and len(value) > max_value_bytes
    if is_cut:
        status, message = ExecutionStatus.OUTPUT_LIMIT, f"its value is longer than {max_value_bytes} bytes"
    return Execution(
        status,
        message=message,
        value=None if value is None else value[:max_value_bytes].decode(errors="replace"),
        value_cut=is_cut,
        exit_code=exit_code,
        cpu_s=reply.cpu_s,
        peak_memory_bytes=reply.peak_memory_bytes,
    )


def _is_kept(child: ChildInterpreter, execution: Execution) -> bool:
    """Whether the session keeps the cell, and its child."""
    return child.alive and execution.status in (ExecutionStatus.OK, ExecutionStatus.ERROR)


def _without_last_cell(steps: tuple[_Cell | _PutFile, ...]) -> tuple[_Cell | _PutFile, ...]:
    """The steps without the last cell among them. InfrastructureError if there is none."""
    for number in range(len(steps) - 1, -1, -1):
        if isinstance(steps[number], _Cell):
            return steps[:number] + steps[number + 1 :]
    raise InfrastructureError("a new interpreter of the session does not answer")


class SubprocessSession:
    """A notebook in one long-lived child. When that child exits, the cell log rebuilds it."""

    def __init__(
        self,
        launcher: Launcher,
        slots: asyncio.Semaphore,
        open_sessions: "set[SubprocessSession]",
        log: tuple[_Cell | _PutFile, ...] = (),
    ) -> None:
        self._id = uuid.uuid4().hex
        self._launcher = launcher
        self._slots = slots
        self._open_sessions = open_sessions
        self._log = log
        self._child: ChildInterpreter | None = None
        self._lock = asyncio.Lock()
        self._is_closed = False
        open_sessions.add(self)

    @property
    def id(self) -> str:
        return self._id

    @property
    def num_cells(self) -> int:
        return len(self._log)

    async def run(
        self,
        code: str,
        stdin: str = "",
        limits: Limits | None = None,
        *,
        rich: bool = False,  # noqa: ARG002
        on_output: OnOutput | None = None,
    ) -> Execution:
        cell = _Cell(code, stdin, limits or Limits())
        relay = None if on_output is None else OutputRelay(on_output)
        async with self._lock, self._slots:
            self._check_open()
            try:
                child = await self._live_child()
                execution = await child.run(code, stdin, cell.limits, relay)
                self._check_not_ended()
            except (InfrastructureError, OSError) as error:
                await self._drop_child()
                message = _CLOSED if self._is_closed else str(error)
                return Execution(ExecutionStatus.INFRASTRUCTURE, message=message)
            except asyncio.CancelledError:
                await self._drop_child()
                raise
            if _is_kept(child, execution):
                self._log = (*self._log, cell)
            else:
                await self._drop_child()
            return execution

    async def put_file(self, path: str, data: bytes) -> None:
        check_path(path)
        check_size(len(data))
        await self._use_files(lambda child: child.put_file(path, data))
        self._log = (*self._log, _PutFile(path, data))

    async def read_file(self, path: str) -> bytes:
        check_path(path)
        return await self._use_files(lambda child: child.read_file(path))

    async def list_files(self) -> list[FileInfo]:
        return await self._use_files(lambda child: child.list_files())

    async def _use_files(self, use: Callable[[ChildInterpreter], Awaitable[T]]) -> T:
        async with self._lock, self._slots:
            self._check_open()
            child = await self._live_child()
            try:
                return await use(child)
            except BaseException:
                await self._drop_child()
                self._check_not_ended()
                raise

    async def fork(self) -> "SubprocessSession":
        async with self._lock:
            self._check_open()
            return SubprocessSession(self._launcher, self._slots, self._open_sessions, self._log)

    async def rollback(self, num_cells: int = 1) -> None:
        async with self._lock:
            self._check_open()
            if not 0 <= num_cells <= len(self._log):
                raise ValueError(f"num_cells must be at most {len(self._log)}, the number of cells, not {num_cells}")
            self._log = self._log[: len(self._log) - num_cells]
            await self._drop_child()

    async def close(self) -> None:
        """Close the session after its running cell."""
        async with self._lock:
            await self.end()

    async def end(self) -> None:
        """Close the session at once; a running cell ends as a fault of the sandbox."""
        self._is_closed = True
        self._open_sessions.discard(self)
        await self._drop_child()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ValueError("the session is closed")

    def _check_not_ended(self) -> None:
        if self._is_closed:
            raise InfrastructureError(_CLOSED)

    async def _live_child(self) -> ChildInterpreter:
        """The child with this session's state, rebuilt if need be."""
        while self._child is None:
            self._child = child = await ChildInterpreter.start(self._launcher)
            try:
                self._check_not_ended()
                num_replayed = await self._replay(child)
                self._check_not_ended()
            except BaseException:
                await self._drop_child()
                raise
            if num_replayed < len(self._log):
                await self._drop_child()
                self._log = _without_last_cell(self._log[: num_replayed + 1]) + self._log[num_replayed + 1 :]
        return self._child

    async def _replay(self, child: ChildInterpreter) -> int:
        """Do the steps again; returns how many the child lived through. The last cell up to the step that it did not
        live through is at fault."""
        for number, step in enumerate(self._log):
            if isinstance(step, _PutFile):
                with contextlib.suppress(UserError):  # a cell did not leave the same files as before
                    await child.put_file(step.path, step.data)
                if not child.alive:
                    return number
            elif not _is_kept(child, await child.run(step.code, step.stdin, step.limits)):
                return number
        return len(self._log)

    async def _drop_child(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            await child.kill()


class SubprocessExecutor:
    """Satisfies `Executor` with `num_slots` interpreters at a time and at most `max_queued` executions waiting."""

    def __init__(self, launcher: Launcher, num_slots: int | None = None, max_queued: int = 65_536) -> None:
        self._launcher = launcher
        self._slots = asyncio.Semaphore(num_slots or os.cpu_count() or 1)
        self._max_queued = max_queued
        self._num_queued = 0
        self._sessions: set[SubprocessSession] = set()

    async def run(self, request: Request, on_output: OnOutput | None = None) -> Execution:
        check_files(request.files, request.fetch_files)
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
                child = await ChildInterpreter.start(self._launcher)
            except InfrastructureError as error:
                return Execution(ExecutionStatus.INFRASTRUCTURE, message=str(error), queue_s=queue_s)
            try:
                return replace(await self._run_in(child, request, on_output), queue_s=queue_s)
            finally:
                await child.kill()
        finally:
            self._slots.release()

    async def _run_in(self, child: ChildInterpreter, request: Request, on_output: OnOutput | None) -> Execution:
        for path, data in request.files.items():
            await child.put_file(path, data)
        relay = None if on_output is None else OutputRelay(on_output)
        execution = await child.run(request.code, request.stdin, request.limits, relay)
        files = {}
        for path in request.fetch_files if child.alive else ():
            with contextlib.suppress(UserError):  # a missing file is left out
                files[path] = await child.read_file(path)
        return replace(execution, files=files)

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

    async def session(self) -> SubprocessSession:
        return SubprocessSession(self._launcher, self._slots, self._sessions)

    async def close(self) -> None:
        for session in tuple(self._sessions):
            await session.end()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
