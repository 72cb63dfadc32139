"""The service's own endpoints, `/v1/...`."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from aiohttp import web
from pydantic import TypeAdapter

from rstar2.sandbox.executor import Overloaded
from rstar2.sandbox.http import schema
from rstar2.sandbox.http.errors import ApiError, json_line, overloaded
from rstar2.sandbox.http.idempotency import KeyConflict, Outcome
from rstar2.sandbox.http.operations import Answer, Operation, json_response, read_body
from rstar2.sandbox.http.schema import CellRequest, CellResult, ForkRequest, RollbackRequest, RunRequest, SessionInfo
from rstar2.sandbox.http.service import Service, conflict
from rstar2.sandbox.http.session_table import HeldSession, SessionTable

logger = logging.getLogger(__name__)
T = TypeVar("T", CellRequest, ForkRequest, RollbackRequest)
NDJSON = "application/x-ndjson"
COALESCE_ABOVE, COALESCE_S = 8, 0.003


class NativeApi:
    def __init__(self, service: Service, sessions: SessionTable) -> None:
        self._service = service
        self._sessions = sessions

    def operations(self) -> list[Operation]:
        session = "/v1/sessions/{session_id}"
        post, change = partial(Operation, "POST"), partial(Operation, "POST", refusals=(404, 409))
        executed = (Answer("What the program did, also where it failed: see `status`.", schema.EXECUTION),)
        streamed = (Answer("Lines in the order in which the programs end.", schema.BATCH_LINE, content_type=NDJSON),)
        ran = (Answer("What the cell did, and how many cells the state now holds.", schema.CELL_RESULT),)
        opened = (Answer("The session.", schema.SESSION_INFO, 201),)
        found = (Answer("The session.", schema.SESSION_INFO),)
        closed = (Answer("It is closed.", code=204),)
        graded = (Answer("The verdict.", schema.GRADE_RESULT),)
        one, many = "Execute one program.", "Execute many programs; one JSON line each, as soon as it has ended."
        cell, back = "Run a cell on the state that the last good cell left.", "Forget the last cells."
        fork = "Open a second notebook that starts from this one's state."
        close = "Close a notebook, after the running cell."
        grade = "Compare an answer, or the answer in a text, with the gold answer."
        return [
            post("/v1/run", self.run, one, executed, schema.RUN, refusals=(409,)),
            post("/v1/batch", self.batch, many, streamed, schema.BATCH),
            post("/v1/sessions", self.create_session, "Open a notebook.", opened, schema.SESSION, body_required=False),
            Operation("GET", session, self.get_session, "Look at a notebook.", found, refusals=(404,)),
            Operation("DELETE", session, self.delete_session, close, closed, refusals=(404,)),
            change(f"{session}/cells", self.run_cell, cell, ran, schema.CELL),
            change(f"{session}/fork", self.fork_session, fork, opened, schema.FORK, body_required=False),
            change(f"{session}/rollback", self.roll_back, back, found, schema.ROLLBACK, body_required=False),
            *([post("/v1/grade", self.grade, grade, graded, schema.GRADE)] if self._service.grader else ()),
        ]

    async def run(self, request: web.Request) -> web.Response:
        run = await read_body(self._service, request, schema.RUN)
        with self._service.admitted():
            return json_response(await self._service.run_once(run))

    async def batch(self, request: web.Request) -> web.StreamResponse:
        runs = (await read_body(self._service, request, schema.BATCH)).runs
        with self._service.admitted(len(runs)):
            response = web.StreamResponse(headers={"Content-Type": NDJSON})
            await response.prepare(request)
            lines: asyncio.Queue[bytes] = asyncio.Queue()
            begun = self._begin_all(runs, lines)
            try:
                num_left = len(runs)
                while num_left:
                    ready = [await lines.get()]
                    # Under load more lines follow at once: one write for several.
                    if num_left > COALESCE_ABOVE:
                        await asyncio.sleep(COALESCE_S)
                    while not lines.empty():
                        ready.append(lines.get_nowait())
                    async with asyncio.timeout(self._service.settings.transfer_timeout_s):
                        await response.write(b"".join(ready))
                    num_left -= len(ready)
                await response.write_eof()
            except TimeoutError:
                # The caller stopped reading in the middle of the answer.
                if request.transport is not None:
                    request.transport.abort()
            finally:
                for run, task in begun:
                    self._service.leave(run, task)
        return response

    def _begin_all(
        self, runs: list[RunRequest], lines: "asyncio.Queue[bytes]"
    ) -> "list[tuple[RunRequest, asyncio.Future[Outcome]]]":
        """Every run ends in exactly one line: the batch waits for them."""
        flow = f"batch-{id(lines)}"
        begun = []
        for index, run in enumerate(runs):
            try:
                task = self._service.begin(run, self._service.run_when_possible, flow)
            except ApiError as error:
                lines.put_nowait(json_line(index, error))
                continue
            if isinstance(task, bytes):
                lines.put_nowait(_result_line(index, task))
            else:
                task.add_done_callback(partial(_put_line, lines, index))
                begun.append((run, task))
        return begun

    async def create_session(self, request: web.Request) -> web.Response:
        await read_body(self._service, request, schema.SESSION, if_empty=b"{}")
        with self._service.admitted():
            self._sessions.check_room()
            held = self._sessions.add(await self._service.executor.session())
        return json_response(_info(held), 201)

    async def get_session(self, request: web.Request) -> web.Response:
        return json_response(_info(self._held(request)))

    async def delete_session(self, request: web.Request) -> web.Response:
        await self._sessions.close(self._held(request))
        return web.Response(status=204)

    async def run_cell(self, request: web.Request) -> web.Response:
        async def run(held: HeldSession, cell: CellRequest) -> tuple[bytes, bool]:
            async with self._sessions.turn(held) as session:
                execution = await self._service.run_cell(session, cell)
                result = CellResult(session.num_cells, execution)
            return schema.CELL_RESULT.dump_json(result), not execution.status.is_sandbox_fault

        return json_response(await self._once(request, schema.CELL, run))

    async def fork_session(self, request: web.Request) -> web.Response:
        async def fork(held: HeldSession, _: ForkRequest) -> tuple[bytes, bool]:
            self._sessions.check_room()
            async with self._sessions.turn(held) as session:
                return _info(self._sessions.add(await session.fork())), True

        return json_response(await self._once(request, schema.FORK, fork, if_empty=b"{}"), 201)

    async def roll_back(self, request: web.Request) -> web.Response:
        async def roll_back(held: HeldSession, rollback: RollbackRequest) -> tuple[bytes, bool]:
            async with self._sessions.turn(held) as session:
                try:
                    await session.rollback(rollback.num_cells)
                except ValueError as error:
                    raise ApiError(409, "conflict", f"num_cells: {error}") from None
                return _info(held), True

        return json_response(await self._once(request, schema.ROLLBACK, roll_back, if_empty=b"{}"))

    async def grade(self, request: web.Request) -> web.Response:
        grade = await read_body(self._service, request, schema.GRADE)
        with self._service.admitted():
            return json_response(schema.GRADE_RESULT.dump_json(await self._service.grade(grade)))

    def _held(self, request: web.Request) -> HeldSession:
        return self._sessions.get(request.match_info["session_id"])

    async def _once(
        self,
        request: web.Request,
        adapter: TypeAdapter[T],
        act: Callable[[HeldSession, T], Awaitable[tuple[bytes, bool]]],
        if_empty: bytes | None = None,
    ) -> bytes:
        """One change of a session. With a key it continues when its caller is lost, who may ask again for the result:
        a change must not be made twice."""
        held = self._held(request)
        body = await read_body(self._service, request, adapter, if_empty)

        async def start() -> tuple[bytes, bool]:
            with self._service.admitted():
                return await act(held, body)

        if body.idempotency_key is None:
            return (await start())[0]
        key = f"{request.path} {body.idempotency_key}"
        try:
            return await held.once.run(key, schema.digest(body), start, cancel_when_alone=False)
        except KeyConflict:
            raise conflict(body.idempotency_key) from None


def _info(held: HeldSession) -> bytes:
    return schema.SESSION_INFO.dump_json(SessionInfo(held.session.id, held.session.num_cells))


def _result_line(index: int, result: bytes) -> bytes:
    return b'{"index":%d,"result":%s}\n' % (index, result)


def _put_line(lines: "asyncio.Queue[bytes]", index: int, task: "asyncio.Future[Outcome]") -> None:
    if task.cancelled():
        # Only the service's own end cancels what a batch still waits for.
        lines.put_nowait(json_line(index, overloaded("the service is shutting down", 1.0)))
        return
    error = task.exception()
    if error is None:
        lines.put_nowait(_result_line(index, task.result()[0]))
    elif isinstance(error, ApiError):
        lines.put_nowait(json_line(index, error))
    elif isinstance(error, Overloaded):
        # The key was first used by a single request, which does not wait for room in the queue.
        lines.put_nowait(json_line(index, overloaded(str(error), error.retry_after_s)))
    else:
        logger.error("a run of a batch failed", exc_info=error)
        lines.put_nowait(json_line(index, ApiError(500, "internal", "the service failed; its log says how")))
