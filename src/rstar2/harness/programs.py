"""The programs that play episodes: a Python function, or a command in its own process group."""

import asyncio
import copy
import json
import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from rstar2.environments.call_thread import CallThread
from rstar2.environments.code_places import describe, place_of
from rstar2.environments.signatures import arguments_for, can_bind
from rstar2.environments.user_code import load_object
from rstar2.errors import UserError
from rstar2.harness.door import Address
from rstar2.harness.settings import HarnessSettings

MAX_OUTPUT_BYTES = 1 << 20
"""The last bytes of a command's output that are kept, and the size of one read. Earlier output is dropped."""
NUM_SHOWN_CHARS = 400

Program = Callable[[Mapping[str, Any], Address], Awaitable[str]]
"""Runs one episode of a row, and returns its result as text; raises `ProgramFailed` on failure."""


class ProgramFailed(Exception):  # noqa: N818
    """The program raised or ended with an error."""


def load_program(settings: HarnessSettings) -> Program:
    """Load the program. UserError if the function cannot be loaded or called."""
    if settings.command is not None:
        return _command(settings.command, settings.env)
    assert settings.agent is not None
    return _function(settings.agent)


def _function(spec: str) -> Program:
    what = "environment.settings.agent"
    function = load_object(spec, what)
    offered = {"row": {}, "base_url": "", "api_key": "", "model": ""}
    if not callable(function) or not can_bind(function, **arguments_for(function, offered)):
        raise UserError(f"{what}: {spec} must be a function of row, base_url, api_key and model, or of some of them")

    async def run(row: Mapping[str, Any], address: Address) -> str:
        given = {"base_url": address.base_url, "api_key": address.api_key, "model": address.model}
        given = arguments_for(function, {"row": copy.deepcopy(dict(row)), **given})
        try:
            if asyncio.iscoroutinefunction(function):
                return as_text(await function(**given))
            thread = CallThread()
            try:
                return as_text(await thread.run(lambda: function(**given)))
            finally:
                thread.stop()
        except asyncio.CancelledError:
            raise
        except (Exception, SystemExit) as error:
            raise ProgramFailed(f"{place_of(error)}{describe(error)}") from error

    return run


def as_text(result: Any) -> str:
    """A function's result as the text of the episode's answer."""
    if result is None or isinstance(result, str):
        return result or ""
    try:
        return json.dumps(result)
    except (TypeError, ValueError):
        return str(result)


def _command(command: tuple[str, ...], env: Mapping[str, str]) -> Program:
    async def run(row: Mapping[str, Any], address: Address) -> str:
        own = {
            "OPENAI_BASE_URL": address.base_url,
            "OPENAI_API_BASE": address.base_url,
            "OPENAI_API_KEY": address.api_key,
            "OPENAI_MODEL": address.model,
        }
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={**os.environ, **env, **own},
                start_new_session=True,
            )
        except OSError as error:
            raise UserError(f"environment.settings.command: {command[0]} cannot be started: {error}") from error
        try:
            return await _result(process, command[0], json.dumps(row, default=str).encode())
        finally:
            with suppress(ProcessLookupError):  # the program, if it still runs, and its children
                os.killpg(process.pid, signal.SIGKILL)
            _close_pipes(process)
            await process.wait()

    return run


async def _result(process: asyncio.subprocess.Process, name: str, row: bytes) -> str:
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    _, output, errors = await asyncio.gather(_feed(process.stdin, row), _read(process.stdout), _read(process.stderr))
    if code := await process.wait():
        raise ProgramFailed(f"{name} ended with {code}: {errors.strip()[-NUM_SHOWN_CHARS:]}")
    return output


async def _feed(stdin: asyncio.StreamWriter, row: bytes) -> None:
    with suppress(ConnectionError):  # a program need not read its row
        stdin.write(row + b"\n")
        await stdin.drain()
        stdin.close()


async def _read(stream: asyncio.StreamReader) -> str:
    kept = b""
    while data := await stream.read(MAX_OUTPUT_BYTES):
        kept = (kept + data)[-MAX_OUTPUT_BYTES:]
    return kept.decode(errors="replace")


def _close_pipes(process: asyncio.subprocess.Process) -> None:
    """Close the pipes of a process, which asyncio waits for: a full pipe, or one that a child holds, would never
    end."""
    assert process.stdin is not None
    if process.stdin.transport.get_write_buffer_size():
        process.stdin.transport.abort()
    process.stdin.close()
    for fd in (1, 2):
        process._transport.get_pipe_transport(fd).close()  # type: ignore[attr-defined]
