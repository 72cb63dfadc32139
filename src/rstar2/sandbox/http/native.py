"""The service's own endpoints, `/v1/...`."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from aiohttp import web

from rstar2.sandbox.execution import MAX_OUTPUT_BYTES, Execution
from rstar2.sandbox.executor import Overloaded, Request
from rstar2.sandbox.http import schema
from rstar2.sandbox.http.errors import ApiError, json_line, overloaded
from rstar2.sandbox.http.idempotency import Outcome
from rstar2.sandbox.http.operations import ApiAnswer, Operation, json_response, read_body
from rstar2.sandbox.http.room import Room
from rstar2.sandbox.http.schema import CellRequest, CellResult, ForkRequest, RollbackRequest, RunRequest, SessionInfo
from rstar2.sandbox.http.service import NUM_OUTPUTS, Service
from rstar2.sandbox.http.session_change import change_once
from rstar2.sandbox.http.session_table import HeldSession, SessionTable

logger = logging.getLogger(__name__)
NDJSON = "application/x-ndjson"
COALESCE_ABOVE, COALESCE_S = 8, 0.003


@dataclass(frozen=True, slots=True)
class _Line:
    """One line of the answer to a batch."""

    text: bytes
    held_bytes: int
    """Its share of the batch's bound until it is sent."""


class NativeApi:
    def __init__(self, service: Service, sessions: SessionTable) -> None:
        self._service = service
        self._sessions = sessions

    def operations(self) -> list[Operation]:
        session = "/v1/sessions/{session_id}"
        post, change = partial(Operation, "POST"), partial(Operation, "POST", refusals=(404, 409))
        executed = (ApiAnswer("What the program did, also where it failed: see `status`.", schema.EXECUTION),)
        streamed = (ApiAnswer("Lines in the order in which the programs end.", schema.BATCH_LINE, content_type=NDJSON),)
        ran = (ApiAnswer("What the cell did, and how many cells the state now holds.", schema.CELL_RESULT),)
        opened = (ApiAnswer("The session.", schema.SESSION_INFO, 201),)
        found = (ApiAnswer("The session.", schema.SESSION_INFO),)
        closed = (ApiAnswer("It is closed.", code=204),)
        graded = (ApiAnswer("The verdict.", schema.GRADE_RESULT),)
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
            lines: asyncio.Queue[_Line] = asyncio.Queue()
            room = self._service.room_for_results()
            begun = self._begin_all(runs, lines, room)
            try:
                num_left = len(runs)
                while num_left:
                    ready = [await lines.get()]
                    # Under load more lines follow at once: write several together.
                    if num_left > COALESCE_ABOVE:
                        await asyncio.sleep(COALESCE_S)
                    while not lines.empty():
                        ready.append(lines.get_nowait())
                    async with asyncio.timeout(self._service.settings.transfer_timeout_s):
                        await response.write(b"".join(line.text for line in ready))
                    num_left -= len(ready)
                    room.give_back(sum(line.held_bytes for line in ready))
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
        self, runs: list[RunRequest], lines: "asyncio.Queue[_Line]", room: Room
    ) -> "list[tuple[RunRequest, asyncio.Future[Outcome]]]":
        """Begin all runs. Every run ends in exactly one line; the batch waits for them."""
        flow = f"batch-{id(lines)}"
        begun = []

        held: dict[int, int] = {}

        def put(index: int, text: bytes) -> None:
            if index not in held:  # not executed for this batch: refused, or its result was kept
                room.take(len(text))
            lines.put_nowait(_Line(text, held.pop(index, len(text))))

        async def execute(index: int, request: Request) -> Execution:
            max_bytes = NUM_OUTPUTS * request.limits.output_bytes
            if request.rich or request.fetch_files:
                max_bytes += MAX_OUTPUT_BYTES
            reserved_bytes = await room.wait_for(max_bytes)
            kept_bytes = 0
            try:
                execution = await self._service.run_when_possible(request)
                kept_bytes = min(_num_kept(execution), reserved_bytes)
                held[index] = kept_bytes
                return execution
            finally:
                room.give_back(reserved_bytes - kept_bytes)

        for index, run in enumerate(runs):
            try:
                task = self._service.begin(run, partial(execute, index), flow)
            except ApiError as error:
                put(index, json_line(index, error))
                continue
            if isinstance(task, bytes):
                put(index, _result_line(index, task))
            else:
                task.add_done_callback(partial(_put_line, put, index))
                begun.append((run, task))
        return begun

    async def create_session(self, request: web.Request) -> web.Response:
        await read_body(self._service, request, schema.SESSION, if_empty=b"{}")
        with self._service.admitted(), self._sessions.room_for_one():
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

        return json_response(await change_once(self._service, self._sessions, request, schema.CELL, run))

    async def fork_session(self, request: web.Request) -> web.Response:
        async def fork(held: HeldSession, _: ForkRequest) -> tuple[bytes, bool]:
            with self._sessions.room_for_one():
                async with self._sessions.turn(held) as session:
                    return _info(self._sessions.add(await session.fork())), True

        return json_response(
            await change_once(self._service, self._sessions, request, schema.FORK, fork, if_empty=b"{}"), 201
        )

    async def roll_back(self, request: web.Request) -> web.Response:
        async def roll_back(held: HeldSession, rollback: RollbackRequest) -> tuple[bytes, bool]:
            async with self._sessions.turn(held) as session:
                try:
                    await session.rollback(rollback.num_cells)
                except ValueError as error:
                    raise ApiError(409, "conflict", f"num_cells: {error}") from None
                return _info(held), True

        return json_response(
            await change_once(self._service, self._sessions, request, schema.ROLLBACK, roll_back, if_empty=b"{}")
        )

    async def grade(self, request: web.Request) -> web.Response:
        grade = await read_body(self._service, request, schema.GRADE)
        with self._service.admitted():
            return json_response(schema.GRADE_RESULT.dump_json(await self._service.grade(grade)))

    def _held(self, request: web.Request) -> HeldSession:
        return self._sessions.get(request.match_info["session_id"])


def _num_kept(execution: Execution) -> int:
    num_kept = len(execution.stdout) + len(execution.stderr) + len(execution.value or "")
    if execution.displays or execution.files:
        num_kept += sum(len(text) for display in execution.displays for text in display.data.values())
        num_kept += sum(map(len, execution.files.values()))
    return num_kept


def _info(held: HeldSession) -> bytes:
    return schema.SESSION_INFO.dump_json(SessionInfo(held.session.id, held.session.num_cells))


def _result_line(index: int, result: bytes) -> bytes:
    return b'{"index":%d,"result":%s}\n' % (index, result)


def _put_line(put: Callable[[int, bytes], None], index: int, task: "asyncio.Future[Outcome]") -> None:
    if task.cancelled():
        # Only the shutdown of the service cancels a run that a batch still waits for.
        put(index, json_line(index, overloaded("the service is shutting down", 1.0)))
        return
    error = task.exception()
    if error is None:
        put(index, _result_line(index, task.result()[0]))
    elif isinstance(error, ApiError):
        put(index, json_line(index, error))
    elif isinstance(error, Overloaded):
        # The key was first used by a single request, which does not wait for room in the queue.
        put(index, json_line(index, overloaded(str(error), error.retry_after_s)))
    else:
        logger.error("a run of a batch failed", exc_info=error)
        put(index, json_line(index, ApiError(500, "internal", "the service failed; its log says how")))
