"""A client for a sandbox on another machine, with the interface of the sandbox in this process.

Every call returns a typed result by its deadline. Only infrastructure faults are retried (connection refused or lost,
queue full), with idempotency keys, so nothing runs twice. What cannot succeed (wrong address or token, a refused
request) raises UserError at once.
"""

import asyncio
import base64
import contextlib
import math
import random
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from functools import lru_cache
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

import aiohttp
import pydantic_core
from aiohttp.abc import AbstractResolver
from pydantic import ValidationError

from rstar2.errors import InfrastructureError, UserError
from rstar2.sandbox.execution import MIB, Execution, ExecutionStatus, FileInfo, Limits, OnOutput
from rstar2.sandbox.executor import Overloaded, Request
from rstar2.sandbox.file_paths import check_files, check_path, check_size
from rstar2.sandbox.http import schema
from rstar2.sandbox.http.access import find_token
from rstar2.sandbox.http.schema import SessionInfo, StreamLine
from rstar2.sandbox.output_relay import OutputRelay

T = TypeVar("T")
MAX_CHUNK_RUNS = 512
MAX_CHUNK_CHARS = 8 * MIB
NUM_CHUNKS_IN_FLIGHT = 128
"""`NUM_CHUNKS_IN_FLIGHT * MAX_CHUNK_RUNS` is the number of runs that a service admits by default."""
CELL_QUEUE_S = 120.0
GRACE_S = 30.0
REACH_S = 10.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 2.0
LONGEST_RETRY_AFTER_S = 60.0
BUSY = (408, 429, 502, 503, 504)
MAX_ANSWER_BYTES = 64 * MIB
"""The size limit of a response without a program's result. A server that sends more is no sandbox of ours, and must not
fill our memory."""
MAX_MESSAGE_CHARS = 1000


class SessionGone(InfrastructureError):  # noqa: N818
    """The service no longer has the session: the service was restarted, or it closed the idle session."""


class UnusableService(UserError):  # noqa: N818
    """The server at the address is not a sandbox, or it rejects the token; no request to it can succeed."""


class _RetryError(Exception):
    """This attempt failed and may be retried."""

    def __init__(self, reason: str, pause_s: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.pause_s = pause_s


class RemoteExecutor:
    """Satisfies `Executor` over HTTP. With `token=None`, it uses the token that a service of this user on this machine
    stored for the address, if any. `grace_s` is how long a request, with all its retries, may take beyond its queue and
    wall-clock limits. With `retries=False`, for a caller with other nodes, a lost connection is an infrastructure fault
    at once, and a full service raises Overloaded. `resolver` replaces the system's DNS."""

    def __init__(
        self,
        base_url: str,
        token: str | None = None,
        *,
        grace_s: float = GRACE_S,
        max_connections: int = 512,
        retries: bool = True,
        resolver: AbstractResolver | None = None,
    ) -> None:
        try:
            parts = urlsplit(base_url)
            _ = parts.port
        except ValueError as error:
            raise UserError(f"address: {base_url!r} is not a URL ({error}); write it as http://host:port") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UserError(f"address: {base_url!r} is not a URL; write it as http://host:port")
        self._base_url = base_url.rstrip("/")
        # Ask for uncompressed responses: a small compressed one could expand beyond the size bounds.
        self._headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if token is None:
            token = find_token(self._base_url)
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._grace_s = grace_s
        self._retries = retries
        self._max_connections = max_connections
        self._resolver = resolver
        self._jitter = random.Random()
        self._http: aiohttp.ClientSession | None = None

    async def run(self, request: Request, on_output: OnOutput | None = None) -> Execution:
        if (refused := _unsendable(request.code, request.stdin)) is not None:
            return refused
        body = _to_json({**_run_body(request), "idempotency_key": uuid.uuid4().hex})
        deadline = time.monotonic() + request.queue_s + request.limits.longest_s + self._grace_s
        try:
            result_bytes = most_bytes_of(request.limits)
            if on_output is not None:
                line = await self.stream("/v1/run/stream", body, deadline, on_output, result_bytes)
                assert line.result is not None
                return line.result
            return await self.call("POST", "/v1/run", body, deadline, schema.EXECUTION.validate_json, result_bytes)
        except Overloaded:
            raise
        except InfrastructureError as error:
            return Execution(ExecutionStatus.INFRASTRUCTURE, message=str(error))

    async def run_many(self, requests: Iterable[Request]) -> AsyncIterator[tuple[int, Execution]]:
        results: asyncio.Queue[tuple[int, Execution] | BaseException | None] = asyncio.Queue()
        feeder = asyncio.ensure_future(self._feed(requests, results))
        try:
            while (result := await results.get()) is not None:
                if isinstance(result, BaseException):
                    raise result
                yield result
        finally:
            feeder.cancel()
            await asyncio.gather(feeder, return_exceptions=True)

    async def session(self) -> "RemoteSession":
        deadline = time.monotonic() + CELL_QUEUE_S + self._grace_s
        info = await self.call("POST", "/v1/sessions", b"{}", deadline, schema.SESSION_INFO.validate_json)
        return RemoteSession(self, info, self._grace_s)

    async def reach(self) -> None:
        """Check the service before the first request: InfrastructureError if it is unreachable, UserError if it is not
        a sandbox or rejects the token."""
        attempt = self._attempt("GET", "/status", None, bytes)
        with contextlib.suppress(Overloaded):
            await self._retry(attempt, time.monotonic() + REACH_S, retries=False)

    async def close(self) -> None:
        http, self._http = self._http, None
        if http is not None:
            await http.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def call(
        self,
        method: str,
        path: str,
        body: bytes | None,
        deadline: float,
        parse: Callable[[bytes], T],
        max_bytes: int = MAX_ANSWER_BYTES,
    ) -> T:
        """The parsed response. UserError if the service refuses the request, ValueError if it contradicts the session's
        state, InfrastructureError once the deadline has passed."""
        return await self._retry(self._attempt(method, path, body, parse, max_bytes), deadline, retries=self._retries)

    async def stream(self, path: str, body: bytes, deadline: float, on_output: OnOutput, max_bytes: int) -> StreamLine:
        """Pass output on as it arrives, and return the last line, which holds the result. Raises as `call` does."""
        relay = OutputRelay(on_output)

        async def attempt() -> StreamLine:
            relay.restart()
            num_bytes = 0
            async with self._send("POST", path, body) as response:
                if response.status != 200:
                    self._check(response, await self._read(response, MAX_ANSWER_BYTES))
                async for data in self._lines(response, max_bytes):
                    # The service sends all output twice: while the program writes it, and in the result.
                    num_bytes += len(data)
                    if num_bytes > 2 * max_bytes:
                        raise self._sent_too_much(2 * max_bytes)
                    line = schema.STREAM_LINE.validate_json(data)
                    if line.error is not None:
                        raise _RetryError(_shown(line.error.message))
                    if line.result is not None:
                        relay.finish(line.result)
                        return line
                    if line.stream not in ("stdout", "stderr"):
                        raise self._not_a_sandbox(f"it sent output of {_shown(str(line.stream))}")
                    relay.receive_text(line.stream, line.text or "")
            raise _RetryError("the service ended its answer before the result")

        return await self._retry(attempt, deadline, retries=self._retries)

    def _attempt(
        self,
        method: str,
        path: str,
        body: bytes | None,
        parse: Callable[[bytes], T],
        max_bytes: int = MAX_ANSWER_BYTES,
    ) -> Callable[[], Awaitable[T]]:
        async def attempt() -> T:
            async with self._send(method, path, body) as response:
                data = await self._read(response, max_bytes)
                self._check(response, data)
                return parse(data)

        return attempt

    def _send(
        self, method: str, path: str, body: bytes | None
    ) -> "contextlib.AbstractAsyncContextManager[aiohttp.ClientResponse]":
        # Redirects would let a service choose which machines this one calls, and who gets the programs.
        return self._connected().request(method, self._base_url + path, data=body, allow_redirects=False)

    async def _read(self, response: aiohttp.ClientResponse, max_bytes: int) -> bytes:
        parts: list[bytes] = []
        num_bytes = 0
        async for part in response.content.iter_any():
            num_bytes += len(part)
            if num_bytes > max_bytes:
                raise self._sent_too_much(max_bytes)
            parts.append(part)
        return b"".join(parts)

    async def _lines(self, response: aiohttp.ClientResponse, max_bytes: int) -> AsyncIterator[bytes]:
        """Yield lines of at most `max_bytes` (aiohttp's own reader refuses long ones); drop an unfinished last line."""
        parts: list[bytes] = []
        num_bytes = 0
        async for data in response.content.iter_any():
            *ended, rest = data.split(b"\n")
            for line in ended:
                yield b"".join((*parts, line))
                parts.clear()
                num_bytes = 0
            parts.append(rest)
            num_bytes += len(rest)
            if num_bytes > max_bytes:
                raise self._sent_too_much(max_bytes)

    async def _feed(
        self,
        requests: Iterable[Request],
        results: "asyncio.Queue[tuple[int, Execution] | BaseException | None]",
    ) -> None:
        """Send all requests in chunks, bounded by the chunks in flight; queue every result, then None."""
        room = asyncio.Semaphore(NUM_CHUNKS_IN_FLIGHT)

        async def send(chunk: dict[int, Request]) -> None:
            try:
                await self._run_chunk(chunk, results.put_nowait)
            finally:
                room.release()

        try:
            async with asyncio.TaskGroup() as group:
                for chunk in _chunks(requests):
                    await room.acquire()
                    group.create_task(send(chunk))
        except BaseExceptionGroup as errors:
            results.put_nowait(errors.exceptions[0])
        except Exception as error:
            results.put_nowait(error)
        else:
            results.put_nowait(None)

    async def _run_chunk(self, chunk: dict[int, Request], report: Callable[[tuple[int, Execution]], None]) -> None:
        """Send one batch request; after a lost connection, repeat the unanswered runs with the same idempotency
        keys."""
        pending: dict[int, dict[str, Any]] = {}
        chunk_key = uuid.uuid4().hex
        for index, request in chunk.items():
            if (refused := _unsendable(request.code, request.stdin)) is not None:
                report((index, refused))
            else:
                pending[index] = {**_run_body(request), "idempotency_key": f"{chunk_key}-{index}"}
        longest_s = max(request.queue_s + request.limits.longest_s for request in chunk.values())
        result_bytes = max(most_bytes_of(request.limits) for request in chunk.values())

        async def attempt() -> None:
            indices = list(pending)
            body = _to_json({"runs": list(pending.values())})
            async with self._send("POST", "/v1/batch", body) as response:
                if response.status != 200:
                    self._check(response, await self._read(response, MAX_ANSWER_BYTES))
                async for line in self._lines(response, result_bytes):
                    found = schema.BATCH_LINE.validate_json(line)
                    if not 0 <= found.index < len(indices):
                        raise self._not_a_sandbox(f"it answered run {found.index} of {len(indices)}")
                    execution = found.result
                    if execution is None:
                        reason = _shown(found.error.message) if found.error else "the service sent an empty result"
                        execution = Execution(ExecutionStatus.INFRASTRUCTURE, message=reason)
                    if pending.pop(indices[found.index], None) is not None:
                        report((indices[found.index], execution))
            if pending:
                raise _RetryError("the service ended a batch before all of it was answered")

        try:
            if pending:
                deadline = time.monotonic() + longest_s + self._grace_s
                await self._retry(attempt, deadline, retries=self._retries)
        except Overloaded:
            raise
        except InfrastructureError as error:
            for index in pending:
                report((index, Execution(ExecutionStatus.INFRASTRUCTURE, message=str(error))))

    async def _retry(self, attempt: Callable[[], Awaitable[T]], deadline: float, *, retries: bool) -> T:
        started = time.monotonic()
        pause_s = FIRST_PAUSE_S
        reason = "it did not answer"
        while (left_s := deadline - time.monotonic()) > 0:
            try:
                async with asyncio.timeout(left_s):
                    return await attempt()
            except _RetryError as error:
                reason, retry_after_s = error.reason, error.pause_s
            except aiohttp.ClientConnectorDNSError as error:
                raise UnusableService(
                    f"address: the host of {self._base_url} is not known ({error.os_error})"
                ) from None
            except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError) as error:
                reason, retry_after_s = f"the connection failed ({error})", None
            except TimeoutError:
                break
            except (aiohttp.ClientError, ValidationError) as error:
                raise self._not_a_sandbox(str(error)) from None
            if not retries:
                if retry_after_s is not None:
                    raise Overloaded(retry_after_s)
                raise InfrastructureError(f"no result from the sandbox at {self._base_url}: {reason}")
            wait_s = pause_s * self._jitter.uniform(0.5, 1.0) if retry_after_s is None else retry_after_s
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
            await asyncio.sleep(min(wait_s, max(deadline - time.monotonic(), 0.0)))
        waited_s = time.monotonic() - started
        raise InfrastructureError(f"no result from the sandbox at {self._base_url} within {waited_s:.0f} s: {reason}")

    def _check(self, response: aiohttp.ClientResponse, data: bytes) -> None:
        if response.status < 300:
            return
        try:
            body = schema.ERROR.validate_json(data)
        except ValidationError:
            if response.status in BUSY:
                raise _RetryError(f"it answered {response.status}", _retry_after_s(response.headers)) from None
            raise self._not_a_sandbox(f"it answered {response.status}") from None
        said = _shown(body.message)
        if response.status in BUSY:
            raise _RetryError(said, _retry_after_s(response.headers))
        if response.status == 401:
            raise UnusableService(f"token: the sandbox at {self._base_url} does not accept it; {said}")
        if body.error == "no_session":
            raise SessionGone(said)
        if body.error == "invalid":
            raise UserError(f"the sandbox at {self._base_url} refuses this: {said}")
        if response.status in (404, 405):
            raise self._not_a_sandbox(f"it answered {response.status}")
        if response.status == 409:
            raise ValueError(said)
        if response.status == 500:
            raise InfrastructureError(f"the sandbox at {self._base_url} failed: {said}")
        raise UserError(f"the sandbox at {self._base_url} refuses this: {said}")

    def _sent_too_much(self, max_bytes: int) -> UnusableService:
        return self._not_a_sandbox(f"it sent more than {max_bytes // MIB} MiB")

    def _not_a_sandbox(self, evidence: str) -> UnusableService:
        return UnusableService(f"address: what answers at {self._base_url} is not an rstar2 sandbox ({evidence})")

    def _connected(self) -> aiohttp.ClientSession:
        if self._http is None:
            self._http = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._max_connections, resolver=self._resolver),
                headers=self._headers,
                auto_decompress=False,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=5.0),
            )
        return self._http


class RemoteSession:
    """Satisfies `Session`. Changes are retried only with their idempotency key: they may have been made."""

    def __init__(self, executor: RemoteExecutor, info: SessionInfo, grace_s: float) -> None:
        self._executor = executor
        self._info = info
        self._grace_s = grace_s

    @property
    def id(self) -> str:
        return self._info.id

    @property
    def num_cells(self) -> int:
        return self._info.num_cells

    async def run(
        self,
        code: str,
        stdin: str = "",
        limits: Limits | None = None,
        *,
        rich: bool = False,
        on_output: OnOutput | None = None,
    ) -> Execution:
        if (refused := _unsendable(code, stdin)) is not None:
            return refused
        limits = limits or Limits()
        cell: dict[str, Any] = {"code": code, "stdin": stdin, "limits": _limits_body(limits)}
        if rich:
            cell["rich"] = True
        try:
            if on_output is not None:
                return await self._run_streamed(cell, limits, on_output)
            done = await self._change("cells", cell, schema.CELL_RESULT.validate_json, limits)
        except InfrastructureError as error:
            return Execution(ExecutionStatus.INFRASTRUCTURE, message=str(error))
        self._info = SessionInfo(self.id, done.num_cells)
        return done.result

    async def _run_streamed(self, cell: Mapping[str, Any], limits: Limits, on_output: OnOutput) -> Execution:
        deadline = time.monotonic() + CELL_QUEUE_S + limits.longest_s + self._grace_s
        body = _to_json({**cell, "idempotency_key": uuid.uuid4().hex})
        path = f"/v1/sessions/{self.id}/cells/stream"
        line = await self._executor.stream(path, body, deadline, on_output, most_bytes_of(limits))
        assert line.result is not None
        if line.num_cells is None:
            raise InfrastructureError("the service did not say how many cells the session has")
        self._info = SessionInfo(self.id, line.num_cells)
        return line.result

    async def put_file(self, path: str, data: bytes) -> None:
        check_path(path)
        check_size(len(data))
        body = {"path": path, "content": base64.b64encode(data).decode()}
        self._info = await self._change("files", body, schema.SESSION_INFO.validate_json)

    async def read_file(self, path: str) -> bytes:
        check_path(path)
        found = await self._look("POST", "files/read", {"path": path}, schema.FILE_RESULT.validate_json)
        return found.content

    async def list_files(self) -> list[FileInfo]:
        return (await self._look("GET", "files", None, schema.FILE_LIST.validate_json)).files

    async def _look(self, method: str, what: str, body: Mapping[str, Any] | None, parse: Callable[[bytes], T]) -> T:
        deadline = time.monotonic() + CELL_QUEUE_S + self._grace_s
        data = None if body is None else _to_json(body)
        return await self._executor.call(method, f"/v1/sessions/{self.id}/{what}", data, deadline, parse)

    async def fork(self) -> "RemoteSession":
        info = await self._change("fork", {}, schema.SESSION_INFO.validate_json)
        return RemoteSession(self._executor, info, self._grace_s)

    async def rollback(self, num_cells: int = 1) -> None:
        if num_cells < 0:
            raise ValueError(f"num_cells must not be negative, and is {num_cells}")
        if num_cells:
            self._info = await self._change("rollback", {"num_cells": num_cells}, schema.SESSION_INFO.validate_json)

    async def close(self) -> None:
        deadline = time.monotonic() + self._grace_s
        try:
            await self._executor.call("DELETE", f"/v1/sessions/{self.id}", None, deadline, bytes)
        except InfrastructureError:
            return  # The service has closed it already, or will close it as idle.

    async def _change(
        self, what: str, body: Mapping[str, Any], parse: Callable[[bytes], T], limits: Limits | None = None
    ) -> T:
        """Make a change. `limits` are those of the cell that it runs, if any."""
        longest_s, result_bytes = (limits.longest_s, most_bytes_of(limits)) if limits else (0.0, MAX_ANSWER_BYTES)
        deadline = time.monotonic() + CELL_QUEUE_S + longest_s + self._grace_s
        keyed = _to_json({**body, "idempotency_key": uuid.uuid4().hex})
        return await self._executor.call("POST", f"/v1/sessions/{self.id}/{what}", keyed, deadline, parse, result_bytes)


def _run_body(request: Request) -> dict[str, Any]:
    body: dict[str, Any] = {
        "code": request.code,
        "stdin": request.stdin,
        "limits": _limits_body(request.limits),
        "queue_s": request.queue_s,
    }
    if request.rich:
        body["rich"] = True
    if request.files or request.fetch_files:
        check_files(request.files, request.fetch_files)
        body["files"] = {path: base64.b64encode(data).decode() for path, data in request.files.items()}
        body["fetch_files"] = list(request.fetch_files)
    return body


@lru_cache(maxsize=64)
def _limits_body(limits: Limits) -> dict[str, Any]:
    return asdict(limits)


def _to_json(value: Mapping[str, Any]) -> bytes:
    return pydantic_core.to_json(value)


def _unsendable(code: str, stdin: str) -> Execution | None:
    """The error that Python itself gives for text that is not valid Unicode, which cannot be sent."""
    try:
        for text in (code, stdin):
            if not text.isascii():
                text.encode()
    except UnicodeEncodeError as error:
        return Execution(ExecutionStatus.ERROR, stderr=f"UnicodeEncodeError: {error}\n", exit_code=1)
    return None


def _chunks(requests: Iterable[Request]) -> Iterator[dict[int, Request]]:
    chunk: dict[int, Request] = {}
    num_chars = 0
    for index, request in enumerate(requests):
        size = len(request.code) + len(request.stdin)
        if chunk and (len(chunk) >= MAX_CHUNK_RUNS or num_chars + size > MAX_CHUNK_CHARS):
            yield chunk
            chunk, num_chars = {}, 0
        chunk[index] = request
        num_chars += size
    if chunk:
        yield chunk


def most_bytes_of(limits: Limits) -> int:
    """The largest result of a program as JSON: three outputs, where a byte may be escaped as six, displays and
    files."""
    return 18 * limits.output_bytes + MAX_ANSWER_BYTES


def _shown(message: str) -> str:
    """A message of the service made safe for logs, terminals and callers: short, without control characters."""
    text = "".join(one if one.isprintable() else " " for one in message[:MAX_MESSAGE_CHARS])
    return text if len(message) <= MAX_MESSAGE_CHARS else f"{text} ..."


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    try:
        retry_after_s = float(headers.get("Retry-After", ""))
    except ValueError:
        return None
    return min(max(retry_after_s, 0.0), LONGEST_RETRY_AFTER_S) if math.isfinite(retry_after_s) else None
