"""Streams output while it is written, as JSON lines, the last of which is the result."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from aiohttp import web

from rstar2.errors import InfrastructureError
from rstar2.sandbox.execution import Execution, OnOutput
from rstar2.sandbox.executor import Overloaded, Request
from rstar2.sandbox.http import schema
from rstar2.sandbox.http.errors import ApiError, overloaded
from rstar2.sandbox.http.native import NDJSON
from rstar2.sandbox.http.operations import ApiAnswer, Operation, read_body
from rstar2.sandbox.http.schema import CellRequest, CellResult, ErrorBody, StreamLine
from rstar2.sandbox.http.service import Service
from rstar2.sandbox.http.session_change import changed
from rstar2.sandbox.http.session_table import HeldSession, SessionTable

logger = logging.getLogger(__name__)
CELL_ROOM_S = 120.0
"""How long a cell may wait for memory for its output."""


class StreamApi:
    def __init__(self, service: Service, sessions: SessionTable) -> None:
        self._service = service
        self._sessions = sessions

    def operations(self) -> list[Operation]:
        lines = (ApiAnswer("Output as it comes, then the result.", schema.STREAM_LINE, content_type=NDJSON),)
        post = partial(Operation, "POST", answers=lines)
        cell = "/v1/sessions/{session_id}/cells/stream"
        return [
            post(path="/v1/run/stream", handler=self.run, summary="Execute a program, with its output as it comes.",
                 body=schema.RUN, refusals=(409,)),
            post(path=cell, handler=self.run_cell, summary="Run a cell, with its output as it comes.",
                 body=schema.CELL, refusals=(404, 409)),
        ]  # fmt: skip

    async def run(self, request: web.Request) -> web.StreamResponse:
        run = await read_body(self._service, request, schema.RUN)
        limits = run.limits.to_limits()

        async def act(on_output: OnOutput) -> bytes:
            async def execute(wanted: Request) -> Execution:
                return await self._service.run(wanted, on_output)

            begun = self._service.begin(run, execute)
            if isinstance(begun, bytes):
                return begun
            try:
                return (await asyncio.shield(begun))[0]
            finally:
                self._service.leave(run, begun)

        with self._service.admitted():
            async with self._service.room_for_stream(limits, is_rich=run.rich, wait_s=run.queue_s):
                return await streamed(self._service, request, act, _line, lambda result: b'{"result":%s}\n' % result)

    async def run_cell(self, request: web.Request) -> web.StreamResponse:
        held = self._sessions.get(request.match_info["session_id"])
        cell = await read_body(self._service, request, schema.CELL)

        async def act(on_output: OnOutput) -> bytes:
            async def run(held: HeldSession, cell: CellRequest) -> tuple[bytes, bool]:
                async with self._sessions.turn(held) as session:
                    execution = await self._service.run_cell(session, cell, on_output)
                    result = CellResult(session.num_cells, execution)
                return schema.CELL_RESULT.dump_json(result), not execution.status.is_sandbox_fault

            # The non-streaming request with the same key is the same cell.
            return await changed(self._service, held, cell, run, request.path.removesuffix("/stream"))

        limits = cell.limits.to_limits()
        async with self._service.room_for_stream(limits, is_rich=cell.rich, wait_s=CELL_ROOM_S):
            return await streamed(self._service, request, act, _line, lambda result: result + b"\n")


def _line(stream: str, text: str) -> bytes:
    return schema.STREAM_LINE.dump_json(StreamLine(stream, text), exclude_none=True) + b"\n"


def _failure(error: ApiError) -> bytes:
    line = StreamLine(error=ErrorBody(error.body.error, error.body.message, error.body.detail))
    return schema.STREAM_LINE.dump_json(line, exclude_none=True) + b"\n"


async def streamed(
    service: Service,
    request: web.Request,
    act: Callable[[OnOutput], Awaitable[bytes]],
    line_of: Callable[[str, str], bytes],
    last_of: Callable[[bytes], bytes],
    failure_of: Callable[[ApiError], bytes] = _failure,
) -> web.StreamResponse:
    """Answer with a line for each piece of output while `act` runs, then with its result or its failure. If the caller
    stops reading or disconnects, `act` is cancelled."""
    response = web.StreamResponse(headers={"Content-Type": NDJSON})
    lines: asyncio.Queue[bytes | None] = asyncio.Queue()
    acting = asyncio.ensure_future(act(lambda stream, text: lines.put_nowait(line_of(stream, text))))
    acting.add_done_callback(lambda _: lines.put_nowait(None))
    try:
        await response.prepare(request)
        is_ended = False
        while not is_ended:
            ready = [await lines.get()]
            while not lines.empty():
                ready.append(lines.get_nowait())
            is_ended = ready[-1] is None
            if is_ended:
                ready[-1] = _last(acting, last_of, failure_of)
            async with asyncio.timeout(service.settings.transfer_timeout_s):
                await response.write(b"".join(line for line in ready if line is not None))
        await response.write_eof()
    except TimeoutError:  # the caller stopped reading in the middle of the answer
        if request.transport is not None:
            request.transport.abort()
    finally:
        acting.cancel()
        await asyncio.gather(acting, return_exceptions=True)
    return response


def _last(
    acting: "asyncio.Future[bytes]", last_of: Callable[[bytes], bytes], failure_of: Callable[[ApiError], bytes]
) -> bytes:
    if acting.cancelled():  # only the shutdown of the service cancels it while its caller still waits
        return failure_of(overloaded("the service is shutting down", 1.0))
    error = acting.exception()
    if error is None:
        return last_of(acting.result())
    if isinstance(error, ApiError):
        return failure_of(error)
    if isinstance(error, Overloaded):
        return failure_of(overloaded(str(error), error.retry_after_s))
    if isinstance(error, InfrastructureError):
        return failure_of(ApiError(503, "infrastructure", str(error)))
    logger.error("a streamed execution failed", exc_info=error)
    return failure_of(ApiError(500, "internal", "the service failed; its log says how"))
