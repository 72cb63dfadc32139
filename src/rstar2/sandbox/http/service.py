"""The state and functions that all endpoints share: admission, execution, counting and draining.

Invariant: `num_in_flight` is exactly the number of executions admitted and not yet answered. It never exceeds
`max_in_flight`, and nothing is admitted once draining has begun.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

from pydantic import JsonValue

from rstar2.errors import InfrastructureError, UserError
from rstar2.records import Verdict
from rstar2.sandbox.execution import MIB, Execution, ExecutionStatus, Limits, OnOutput
from rstar2.sandbox.executor import Executor, Overloaded, Request, Session
from rstar2.sandbox.file_paths import check_files
from rstar2.sandbox.http.connections import Connections, affordable_connections
from rstar2.sandbox.http.errors import ApiError, overloaded
from rstar2.sandbox.http.idempotency import KeyConflict, OnceTable, Outcome
from rstar2.sandbox.http.metrics import ServiceMetrics
from rstar2.sandbox.http.room import Room
from rstar2.sandbox.http.schema import EXECUTION, CellRequest, GradeRequest, GradeResult, RunRequest, digest
from rstar2.sandbox.local import usable_cores
from rstar2.sandbox.slots.report import MAX_DISPLAY_BYTES

logger = logging.getLogger(__name__)
UNREAD_BYTES_PER_SLOT = 8 * MIB
NUM_OUTPUTS = 3
"""The outputs of a program: stdout, stderr and the value. Each has the limit `output_bytes`."""


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """The operator's settings. Every bound is here, so that no caller can exhaust memory."""

    token: str | None = None
    """The token that callers must send as `Authorization: Bearer ...`. None: any client that reaches the address may
    use the service, except pages of other sites."""
    listening_host: str = "127.0.0.1"
    """The address that the service listens on. Without a token it decides which Host headers are accepted."""
    max_request_bytes: int = 64 * MIB
    max_in_flight: int = 65_536
    """The maximum number of executions in flight, over all callers. Beyond it the answer is 503 at once."""
    max_sessions: int = 4_096
    session_idle_s: float = 3600.0
    """A session that was unused for this long is closed: its caller has most likely died."""
    max_connections: int = field(default_factory=affordable_connections)
    """The maximum number of open connections. Beyond it, idle ones are closed, or new ones may only `GET /healthz`."""
    header_timeout_s: float = 10.0
    """The timeout for the first request's head on a connection."""
    keepalive_s: float = 75.0
    """The keep-alive timeout: the idle time between two requests."""
    max_unread_bytes: int = 1 << 30
    """The maximum size of a batch's unread results and of its programs' possible output. Beyond it the rest of the
    batch waits. A service with many slots uses `UNREAD_BYTES_PER_SLOT` per slot, if that is more."""
    transfer_timeout_s: float = 60.0
    """For receiving one request body, and for a caller to accept a piece of a streamed answer."""
    retry_after_s: float = 1.0
    """The `Retry-After` value of a service that is over capacity or draining."""
    retention_s: float = 600.0
    """How long the result of an execution with an idempotency key is kept for a repeated request."""
    max_retained: int = 100_000
    max_retained_bytes: int = 64 * MIB

    def __post_init__(self) -> None:
        if self.token is not None and not (self.token.isascii() and self.token.isprintable() and self.token.strip()):
            raise UserError("token: it must be printable ASCII, and not empty: it is sent in a header")


@dataclass(frozen=True, slots=True)
class Load:
    """How busy the executor is now."""

    num_slots: int
    num_busy_slots: int
    num_queued: int
    num_cores: int = field(default_factory=usable_cores)


class Graded(Protocol):
    @property
    def verdict(self) -> Verdict: ...
    @property
    def answer(self) -> str | None: ...
    @property
    def method(self) -> str: ...
    @property
    def message(self) -> str: ...


class AnswerGrader(Protocol):
    """Compares an answer with the gold answer, under its own deadline. Grading imports the sandbox and not vice versa,
    so the code that starts the service passes the grader."""

    async def grade(self, *turns: str, gold: str) -> Graded: ...

    async def grade_answer(self, answer: str, gold: str) -> Graded: ...


Guarantees = Callable[[], Sequence[Mapping[str, JsonValue]]]
"""Returns the table of isolation guarantees of this machine."""


class Service:
    def __init__(
        self,
        executor: Executor,
        settings: ServiceSettings,
        *,
        grader: AnswerGrader | None = None,
        guarantees: Guarantees = tuple,
        load: Callable[[], Load] | None = None,
    ) -> None:
        self.executor = executor
        self.settings = settings
        self.grader = grader
        self.guarantees = guarantees
        self.metrics = ServiceMetrics()
        self.once = OnceTable(settings.max_retained, settings.max_retained_bytes, settings.retention_s)
        self.draining = False
        self.num_in_flight = 0
        self.idle = asyncio.Event()
        self.idle.set()
        self.started = time.time()
        self._executor_load = load
        self.connections: Connections | None = None
        """The open connections; the server sets this when it starts."""
        self._stream_room: Room | None = None

    def begin_draining(self) -> None:
        self.draining = True

    def is_beyond_bound(self, transport: asyncio.BaseTransport | None) -> bool:
        return self.connections is not None and self.connections.is_spare(transport)

    def room_for_results(self) -> Room:
        """A bound for the unread results of one caller."""
        return Room(max(self.settings.max_unread_bytes, self.load().num_slots * UNREAD_BYTES_PER_SLOT))

    @asynccontextmanager
    async def room_for_stream(self, limits: Limits, *, is_rich: bool, wait_s: float) -> AsyncIterator[None]:
        """Reserve memory for twice a program's output, since the result repeats the stream. All streams share one
        bound; ApiError if nothing is free in time."""
        self._stream_room = room = self._stream_room or self.room_for_results()
        max_bytes = 2 * (NUM_OUTPUTS * limits.output_bytes) + (MAX_DISPLAY_BYTES if is_rich else 0)
        try:
            async with asyncio.timeout(wait_s):
                reserved_bytes = await room.wait_for(max_bytes)
        except TimeoutError:
            message = "over capacity: too much streamed output waits for its readers"
            raise overloaded(message, self.settings.retry_after_s) from None
        try:
            yield
        finally:
            room.give_back(reserved_bytes)

    def load(self) -> Load:
        """The load that the executor reports. Without a report, all requests in flight count as queued."""
        return self._executor_load() if self._executor_load else Load(0, 0, self.num_in_flight)

    @contextmanager
    def admitted(self, num_executions: int = 1, refusal_status: int = 503) -> Iterator[None]:
        """Admit `num_executions` for the duration of the block; ApiError at once if there is no room."""
        wait_s = self.settings.retry_after_s
        if self.draining:
            raise overloaded("the service is shutting down and takes no new work", wait_s, refusal_status)
        if num_executions > self.settings.max_in_flight:
            limit = self.settings.max_in_flight
            raise ApiError(422, "invalid", f"at most {limit} executions fit here at once: send them in smaller batches")
        if self.num_in_flight + num_executions > self.settings.max_in_flight:
            message = f"over capacity: {self.num_in_flight} executions are in flight"
            raise overloaded(message, wait_s, refusal_status)
        self.num_in_flight += num_executions
        self.idle.clear()
        try:
            yield
        finally:
            self.num_in_flight -= num_executions
            if not self.num_in_flight:
                self.idle.set()

    async def run(self, request: Request, on_output: OnOutput | None = None) -> Execution:
        """Run one execution. Raises only Overloaded, when the executor's queue is full."""
        if on_output is not None:
            return await self.counted(lambda: self.executor.run(request, on_output))
        return await self.counted(lambda: self.executor.run(request))

    async def run_cell(self, session: Session, cell: CellRequest, on_output: OnOutput | None = None) -> Execution:
        limits = cell.limits.to_limits()
        return await self.counted(
            lambda: session.run(cell.code, cell.stdin, limits, rich=cell.rich, on_output=on_output)
        )

    async def run_when_possible(self, request: Request) -> Execution:
        """Run one execution of a batch; waits for room in a full queue, up to the request's own deadline."""
        deadline = time.monotonic() + request.queue_s
        while True:
            try:
                return await self.run(request)
            except Overloaded as error:
                left_s = deadline - time.monotonic()
                if left_s <= error.retry_after_s:
                    message = f"no place in the queue within {request.queue_s:g} s"
                    execution = Execution(ExecutionStatus.QUEUE_TIMEOUT, queue_s=request.queue_s, message=message)
                    self.metrics.count_execution(execution)
                    return execution
                await asyncio.sleep(error.retry_after_s)
                request = replace(request, queue_s=max(deadline - time.monotonic(), 1e-3))

    def begin(
        self, run: RunRequest, execute: Callable[[Request], Awaitable[Execution]], flow: str = ""
    ) -> "asyncio.Future[Outcome] | bytes":
        """The run's kept result as JSON, or the execution that computes it, which runs with the same idempotency key
        share. A caller that gets an execution must `leave` it."""

        if run.files or run.fetch_files:
            try:
                check_files(run.files, tuple(run.fetch_files))
            except UserError as error:
                raise ApiError(409, "invalid", str(error)) from None

        async def act() -> Outcome:
            execution = await execute(run.to_request(flow))
            return EXECUTION.dump_json(execution), not execution.status.is_sandbox_fault

        if run.idempotency_key is None:
            return asyncio.ensure_future(act())
        try:
            return self.once.join(run.idempotency_key, digest(run), act)
        except KeyConflict:
            raise conflict(run.idempotency_key) from None

    def leave(self, run: RunRequest, task: "asyncio.Future[Outcome]") -> None:
        """Leave an execution, which is cancelled when nobody waits for it."""
        if run.idempotency_key is None:
            task.cancel()
        else:
            self.once.leave(run.idempotency_key, task)

    async def run_once(self, run: RunRequest) -> bytes:
        begun = self.begin(run, self.run)
        if isinstance(begun, bytes):
            return begun
        try:
            return (await asyncio.shield(begun))[0]
        finally:
            self.leave(run, begun)

    async def grade(self, grade: GradeRequest) -> GradeResult:
        assert self.grader is not None, "the operation exists only with a grader"
        try:
            if grade.answer is not None:
                graded = await self.grader.grade_answer(grade.answer, grade.gold)
            else:
                graded = await self.grader.grade(grade.text or "", gold=grade.gold)
        except InfrastructureError:
            raise
        except Exception:
            logger.exception("the grader raised")
            raise InfrastructureError("the grader failed; the log says how") from None
        return GradeResult(graded.verdict, graded.answer, graded.method, graded.message)

    async def counted(self, execute: Callable[[], Awaitable[Execution]]) -> Execution:
        """Execute and count. The result is encodable as UTF-8; a failure of the executor is a result too."""
        try:
            execution = _encodable(await execute())
        except Overloaded:
            raise
        except InfrastructureError as error:
            execution = Execution(ExecutionStatus.INFRASTRUCTURE, message=str(error))
        except Exception:
            logger.exception("the executor raised")
            execution = Execution(ExecutionStatus.INFRASTRUCTURE, message="the executor failed; the log says how")
        self.metrics.count_execution(execution)
        return execution


def _encodable(execution: Execution) -> Execution:
    """Replace what UTF-8 cannot encode (a lone surrogate from a `repr` or a file name)."""
    try:
        for text in (execution.stdout, execution.stderr, execution.value or "", execution.message):
            if not text.isascii():
                text.encode()
        return execution
    except UnicodeEncodeError:
        return replace(
            execution,
            stdout=_replace_unencodable(execution.stdout),
            stderr=_replace_unencodable(execution.stderr),
            value=None if execution.value is None else _replace_unencodable(execution.value),
            message=_replace_unencodable(execution.message),
        )


def _replace_unencodable(text: str) -> str:
    return text.encode(errors="replace").decode()


def conflict(key: str) -> ApiError:
    message = f"idempotency_key: {key!r} was used before with a different body; use a new key for a new request"
    return ApiError(409, "conflict", message)
