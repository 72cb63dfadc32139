"""The provider: each sample has a notebook, which keeps its files; each command starts in a fresh process."""

import asyncio
import base64
import errno
import json
import os
from typing import Any, Literal, overload

from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentConfigType,
    SandboxEnvironmentLimits,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
    sandboxenv,
)

from rstar2.errors import InfrastructureError
from rstar2.sandbox.client import RemoteExecutor
from rstar2.sandbox.execution import MAX_OUTPUT_BYTES, MIB, Execution, ExecutionStatus, Limits
from rstar2.sandbox.executor import Executor, Session
from rstar2.sandbox.inspect_ai import cells
from rstar2.sandbox.inspect_ai.argv import python_command
from rstar2.sandbox.local import LocalExecutor

ADDRESS_ENV = "RSTAR2_SANDBOX_ADDRESS"
"""The variable with a running service's address, to use instead of a sandbox in this process."""
NOT_FOUND = 127
KILLED = 137
PIECE_BYTES = 4 * MIB
"""Bytes of a file that one cell transfers."""
FILE_S = 60.0
LONGEST_S = 1200.0
"""The maximum time limit of a command; a service accepts a CPU limit of at most an hour."""


class _Shared:
    """The executor that all tasks of a process share, open while there are any."""

    def __init__(self) -> None:
        self._executor: Executor | None = None
        self._num_tasks = 0
        self._changing = asyncio.Lock()

    async def enter(self) -> None:
        async with self._changing:
            if self._executor is None:
                address = os.environ.get(ADDRESS_ENV)
                executor: Executor = RemoteExecutor(address) if address else LocalExecutor()
                self._executor = await executor.__aenter__()
            self._num_tasks += 1

    async def leave(self) -> None:
        async with self._changing:
            self._num_tasks -= 1
            if self._num_tasks == 0 and self._executor is not None:
                executor, self._executor = self._executor, None
                await executor.close()

    async def session(self) -> Session:
        if self._executor is None:
            raise SandboxUnavailableError("the sandbox is not running")
        return await self._executor.session()


_shared = _Shared()


@sandboxenv(name="rstar2")
class RStar2SandboxEnvironment(SandboxEnvironment):  # type: ignore[misc]
    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session
        self._turn = asyncio.Lock()

    @classmethod
    async def task_init(cls, task_name: str, config: SandboxEnvironmentConfigType | None) -> None:  # noqa: ARG003
        if config is not None:
            raise ValueError(f"the sandbox rstar2 takes no configuration; to use a service, set {ADDRESS_ENV}")
        await _shared.enter()

    @classmethod
    async def task_cleanup(
        cls,
        task_name: str,  # noqa: ARG003
        config: SandboxEnvironmentConfigType | None,  # noqa: ARG003
        cleanup: bool,  # noqa: ARG003
    ) -> None:
        await _shared.leave()

    @classmethod
    async def sample_init(
        cls,
        task_name: str,  # noqa: ARG003
        config: SandboxEnvironmentConfigType | None,  # noqa: ARG003
        metadata: dict[str, str],  # noqa: ARG003
    ) -> dict[str, SandboxEnvironment]:
        return {"default": cls(await _shared.session())}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,  # noqa: ARG003
        config: SandboxEnvironmentConfigType | None,  # noqa: ARG003
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,  # noqa: ARG003
    ) -> None:
        for environment in environments.values():
            await environment.as_type(cls)._session.close()

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,  # noqa: ASYNC109 - its name in inspect_ai
        timeout_retry: bool = True,  # noqa: ARG002
        concurrency: bool = True,  # noqa: ARG002
    ) -> ExecResult[str]:
        if user is not None:
            raise SandboxUserUnsupportedError("the sandbox rstar2 has no users: leave `user` out")
        command = python_command(cmd)
        if command is None:
            said = f"{cmd[0] if cmd else ''}: command not found (the sandbox has Python alone, no shell and no tools)\n"
            return ExecResult(False, NOT_FOUND, "", said)
        stdin = input.decode(errors="replace") if isinstance(input, bytes) else input or ""
        wall_s = min(float(timeout), LONGEST_S) if timeout is not None else LONGEST_S
        execution = await self._run(cells.running(command, env or {}, cwd), stdin, wall_s)
        return _result_of(execution)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        data = contents.encode() if isinstance(contents, str) else contents
        for start in range(0, max(len(data), 1), PIECE_BYTES):
            piece = base64.b64encode(data[start : start + PIECE_BYTES]).decode()
            await self._file_cell(file, cells.writing(file, append=start > 0), piece)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        data = b""
        size = 1
        while len(data) < size:
            found = await self._file_cell(file, cells.reading(file, len(data), PIECE_BYTES))
            size, piece = found["size"], base64.b64decode(found["data"])
            if size > SandboxEnvironmentLimits.MAX_READ_FILE_SIZE:
                raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None)
            if not piece:
                break
            data += piece
        return data.decode() if text else data

    async def _file_cell(self, file: str, code: str, stdin: str = "") -> dict[str, Any]:
        execution = await self._run(code, stdin, FILE_S)
        if not execution.ok:
            raise OSError(f"{file}: {execution.message or execution.stderr}")
        try:
            found: dict[str, Any] = json.loads(execution.stdout)
        except (ValueError, RecursionError):
            raise OSError(f"{file}: the sandbox's answer cannot be read") from None
        if "errno" in found:
            # The constructor of OSError picks FileNotFoundError, IsADirectoryError or PermissionError by the number.
            number = errno.EACCES if found["errno"] == errno.EROFS else found["errno"]
            raise OSError(number, found["strerror"], file)
        return found

    async def _run(self, code: str, stdin: str, wall_s: float) -> Execution:
        # The wall-clock limit stops the whole cell; the CPU limit would stop only the command's process, which is not
        # reported as a timeout.
        limits = Limits(wall_s=wall_s, cpu_s=2 * wall_s + 60.0, output_bytes=MAX_OUTPUT_BYTES)
        try:
            async with self._turn:
                execution = await self._session.run(code, stdin, limits)
        except InfrastructureError as error:
            raise SandboxUnavailableError(str(error)) from error
        if execution.status.is_sandbox_fault:
            raise SandboxUnavailableError(execution.message)
        if execution.status is ExecutionStatus.TIMEOUT:
            raise TimeoutError(execution.message)
        return execution


def _result_of(execution: Execution) -> ExecResult[str]:
    if execution.status is ExecutionStatus.OUTPUT_LIMIT:
        raise OutputLimitExceededError(f"{MAX_OUTPUT_BYTES // MIB} MiB", execution.stdout)
    if execution.ok and execution.value is not None:
        code = int(execution.value)
        # A shell reports a program that a signal ended as 128 plus the signal's number.
        code = 128 - code if code < 0 else code
        return ExecResult(code == 0, code, execution.stdout, execution.stderr)
    said = f"{execution.stderr}{execution.message}\n"
    return ExecResult(False, KILLED, execution.stdout, said)
