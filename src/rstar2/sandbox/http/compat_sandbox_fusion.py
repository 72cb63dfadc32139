"""SandboxFusion's `/run_code` and `/run_jupyter`, so that verl's and ReTool's recipes can point here.

Fields and statuses are SandboxFusion's: `Success`, `Failed` (the program's doing) and `SandboxError` (ours, or a
language that is not here), with 200 whenever the body is valid. Being over capacity is 504: the one code on which
verl's client tries again.
"""

import time
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated, Any, Literal

from aiohttp import web
from pydantic import Field, JsonValue, TypeAdapter

from rstar2.sandbox.execution import MAX_OUTPUT_BYTES, MIB, Execution, ExecutionStatus, Limits
from rstar2.sandbox.executor import Overloaded, Request, Session
from rstar2.sandbox.http.errors import overloaded
from rstar2.sandbox.http.notebook_error import NotebookError, split_traceback
from rstar2.sandbox.http.operation import Answer, Operation, json_response, read_body
from rstar2.sandbox.http.schema import MAX_WALL_S, Code, Lenient, Stdin, Whole
from rstar2.sandbox.http.scratch_files import framed, new_mark, split_output
from rstar2.sandbox.http.service import Service

MAX_FILES = 1024
MAX_CELLS = 4096
FILES_OUTPUT_BYTES = MAX_OUTPUT_BYTES
"""Fetched files come back through stdout, so there must be room for them."""
MIN_MEMORY_BYTES = 64 * MIB
"""Below this no interpreter with numpy runs; SandboxFusion's callers mean the program's own use."""

# fmt: off
Language = Literal[
    "python", "cpp", "nodejs", "go", "go_test", "java", "php", "csharp", "bash", "typescript", "sql", "rust", "cuda",
    "lua", "R", "perl", "D_ut", "ruby", "scala", "julia", "pytest", "junit", "kotlin_script", "jest", "verilog",
    "python_gpu", "lean", "swift", "racket",
]
# fmt: on
Timeout = Annotated[float, Field(allow_inf_nan=False)]
Paths = Annotated[list[str], Field(max_length=MAX_FILES)]


class RunStatus(StrEnum):
    SUCCESS = "Success"
    FAILED = "Failed"
    SANDBOX_ERROR = "SandboxError"


class CommandRunStatus(StrEnum):
    FINISHED = "Finished"
    ERROR = "Error"
    TIME_LIMIT_EXCEEDED = "TimeLimitExceeded"


class RunCodeRequest(Lenient):
    compile_timeout: Timeout = Field(10, description="Accepted; Python is not compiled.")
    run_timeout: Timeout = 10
    memory_limit_MB: Whole = Field(-1, description="Not positive: the service's default.")
    code: Code
    stdin: Stdin | None = None
    language: Language = Field("python", description="Only `python` is run; others get `SandboxError`.")
    files: dict[str, str | None] = Field(default={}, max_length=MAX_FILES, description="Path to base64.")
    fetch_files: Paths = Field(default=[])


class RunJupyterRequest(Lenient):
    cells: list[Code] = Field(max_length=MAX_CELLS)
    cell_timeout: Timeout = Field(0, description="Not positive: none of its own.")
    total_timeout: Timeout = 45
    memory_limit_MB: Whole = -1
    kernel: Literal["python3"] = "python3"
    files: dict[str, str] = Field(default={}, max_length=MAX_FILES)
    fetch_files: Paths = Field(default=[])


@dataclass(frozen=True, slots=True)
class CommandRunResult:
    status: CommandRunStatus
    execution_time: float | None = None
    return_code: int | None = None
    stdout: str | None = None
    stderr: str | None = None


@dataclass(frozen=True, slots=True)
class RunCodeResponse:
    status: RunStatus
    message: str = ""
    compile_result: CommandRunResult | None = None
    run_result: CommandRunResult | None = None
    executor_pod_name: str | None = None
    files: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CellRunResult:
    stdout: str
    stderr: str
    display: list[dict[str, JsonValue]]
    error: list[dict[str, JsonValue]]


@dataclass(frozen=True, slots=True)
class RunJupyterResponse:
    status: RunStatus
    message: str = ""
    driver: CommandRunResult | None = None
    cells: list[CellRunResult] = field(default_factory=list)
    executor_pod_name: str | None = None
    files: dict[str, str] = field(default_factory=dict)


RUN_CODE = TypeAdapter(RunCodeRequest)
RUN_JUPYTER = TypeAdapter(RunJupyterRequest)
RUN_CODE_RESPONSE = TypeAdapter(RunCodeResponse)
RUN_JUPYTER_RESPONSE = TypeAdapter(RunJupyterResponse)


def limits_of(timeout_s: float, memory_limit_mb: int) -> Limits:
    wall_s = min(max(timeout_s, 1e-3), MAX_WALL_S)
    limits = Limits(wall_s=wall_s, cpu_s=wall_s)
    if memory_limit_mb <= 0:
        return limits
    return replace(limits, memory_bytes=max(min(memory_limit_mb, 1 << 20) * MIB, MIN_MEMORY_BYTES))


def code_response(execution: Execution, files: dict[str, str]) -> RunCodeResponse:
    """SandboxFusion's account of an execution."""
    if execution.status.is_ours:
        failed = CommandRunResult(CommandRunStatus.ERROR, stderr=execution.message)
        return RunCodeResponse(RunStatus.SANDBOX_ERROR, execution.message, run_result=failed)
    if execution.status is ExecutionStatus.TIMEOUT:
        status, return_code = CommandRunStatus.TIME_LIMIT_EXCEEDED, None
    else:
        status, return_code = CommandRunStatus.FINISHED, _return_code(execution)
    result = CommandRunResult(status, execution.wall_s, return_code, execution.stdout, execution.stderr)
    return RunCodeResponse(RunStatus.SUCCESS if execution.ok else RunStatus.FAILED, run_result=result, files=files)


def _return_code(execution: Execution) -> int:
    if execution.signal is not None:
        return -execution.signal
    return execution.exit_code or (0 if execution.ok else 1)


def cell_result(execution: Execution) -> CellRunResult:
    """A cell's outcome as a kernel's messages would have it: an error apart from stderr, a value as display data."""
    stderr, error = execution.stderr, None
    if not execution.ok:
        stderr, error = split_traceback(execution.stderr)
        error = error or NotebookError(f"Cell{execution.status.title().replace('_', '')}", execution.message, [])
    return CellRunResult(
        stdout=execution.stdout,
        stderr=stderr,
        display=[] if execution.value is None else [{"text/plain": execution.value}],
        error=[]
        if error is None
        else [{"ename": error.ename, "evalue": error.evalue, "traceback": [*error.traceback]}],
    )


class SandboxFusionApi:
    def __init__(self, service: Service) -> None:
        self._service = service

    def operations(self) -> list[Operation]:
        def post(path: str, handler: Any, summary: str, body: TypeAdapter[Any], answer: TypeAdapter[Any]) -> Operation:
            answers = {200: Answer("What happened; see `status`.", answer)}
            return Operation("POST", path, handler, summary, answers, body, refusals=(504,), tag="SandboxFusion")

        return [
            post("/run_code", self.run_code, "Run a program.", RUN_CODE, RUN_CODE_RESPONSE),
            post("/run_jupyter", self.run_jupyter, "Run the cells of a notebook.", RUN_JUPYTER, RUN_JUPYTER_RESPONSE),
        ]

    async def run_code(self, request: web.Request) -> web.Response:
        body = await read_body(self._service, request, RUN_CODE)
        with self._service.admitted(refusal_status=504):
            try:
                response = await self._run_code(body)
            except Overloaded as error:
                raise overloaded(str(error), error.retry_after_s, status=504) from None
        return json_response(RUN_CODE_RESPONSE.dump_json(response))

    async def run_jupyter(self, request: web.Request) -> web.Response:
        body = await read_body(self._service, request, RUN_JUPYTER)
        with self._service.admitted(refusal_status=504):
            try:
                session = await self._service.executor.session()
                try:
                    response = await self._run_cells(session, body)
                finally:
                    await session.close()
            except Overloaded as error:
                raise overloaded(str(error), error.retry_after_s, status=504) from None
        return json_response(RUN_JUPYTER_RESPONSE.dump_json(response))

    async def _run_code(self, body: RunCodeRequest) -> RunCodeResponse:
        if body.language != "python":
            message = f"language {body.language!r} cannot be run here: this service runs only 'python'"
            return RunCodeResponse(RunStatus.SANDBOX_ERROR, message)
        limits, mark = limits_of(body.run_timeout, body.memory_limit_MB), new_mark()
        if not body.files and not body.fetch_files:
            execution = await self._service.run(Request(body.code, body.stdin or "", limits))
            return code_response(execution, {})
        try:
            code = framed(body.code, body.files, body.fetch_files, mark)
        except ValueError as error:
            return RunCodeResponse(RunStatus.SANDBOX_ERROR, str(error))
        limits = replace(limits, output_bytes=FILES_OUTPUT_BYTES)
        execution = await self._service.run(Request(code, body.stdin or "", limits))
        stdout, files = split_output(execution.stdout, mark)
        return code_response(replace(execution, stdout=stdout), files)

    async def _run_cells(self, session: Session, body: RunJupyterRequest) -> RunJupyterResponse:
        """One cell after another, also after one that raised, until the total time is up."""
        started = time.monotonic()
        mark = new_mark()

        async def run(code: str, limits: Limits) -> Execution:
            return await self._service.counted(lambda: session.run(code, "", limits))

        def left_s() -> float:
            return body.total_timeout - (time.monotonic() - started)

        cells: list[CellRunResult] = []
        files: dict[str, str] = {}
        own_limits = Limits(output_bytes=FILES_OUTPUT_BYTES)
        try:
            before = framed(None, body.files, [], mark) if body.files else None
        except ValueError as error:
            return RunJupyterResponse(RunStatus.SANDBOX_ERROR, str(error))
        if before is not None and not (written := await run(before, own_limits)).ok:
            return RunJupyterResponse(RunStatus.SANDBOX_ERROR, f"files: {written.message or written.stderr}")
        for code in body.cells:
            timeout_s = min(left_s(), body.cell_timeout) if body.cell_timeout > 0 else left_s()
            execution = await run(code, limits_of(timeout_s, body.memory_limit_MB))
            if execution.status.is_ours:
                return RunJupyterResponse(RunStatus.SANDBOX_ERROR, execution.message)
            if left_s() <= 0:
                driver = CommandRunResult(CommandRunStatus.TIME_LIMIT_EXCEEDED, time.monotonic() - started)
                return RunJupyterResponse(RunStatus.FAILED, driver=driver)
            cells.append(cell_result(execution))
        if body.fetch_files:
            fetched = await run(framed(None, {}, body.fetch_files, mark), own_limits)
            _, files = split_output(fetched.stdout, mark)
        driver = CommandRunResult(CommandRunStatus.FINISHED, time.monotonic() - started, 0, "", "")
        return RunJupyterResponse(RunStatus.SUCCESS, driver=driver, cells=cells, files=files)
