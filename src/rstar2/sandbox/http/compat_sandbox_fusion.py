"""SandboxFusion's `/run_code` and `/run_jupyter`, so that verl's and ReTool's recipes can use this service.

Fields and statuses are SandboxFusion's: `Success`, `Failed` (the program failed) and `SandboxError` (the sandbox
failed, or does not have the language), with code 200 for every valid body. An overloaded service answers 504: the one
code on which verl's client retries.

SandboxFusion's requests carry files, and the sandbox takes only code. So the program is wrapped in a frame that first
writes the given files, and at the end prints the requested ones behind a random mark. A program that forges the mark
forges only its own result, and paths stay inside its own sandbox.
"""

import base64
import binascii
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Annotated, Literal

from aiohttp import web
from pydantic import Field, JsonValue, TypeAdapter

from rstar2.sandbox.execution import MAX_OUTPUT_BYTES, MIB, Execution, ExecutionStatus, Limits
from rstar2.sandbox.executor import Overloaded, Request, Session
from rstar2.sandbox.http.errors import overloaded
from rstar2.sandbox.http.operations import ApiAnswer, Operation, json_response, read_body
from rstar2.sandbox.http.schema import MAX_WALL_S, Code, Integer, LenientRequest, Stdin
from rstar2.sandbox.http.service import Service

MAX_FILES = 1024
MAX_CELLS = 4096
FILES_OUTPUT_BYTES = MAX_OUTPUT_BYTES
"""The output limit for fetched files, which are sent through stdout."""
MIN_MEMORY_BYTES = 64 * MIB
"""The least memory limit: callers mean the program's own use, without the interpreter and numpy."""

# fmt: off
Language = Literal[
    "python", "cpp", "nodejs", "go", "go_test", "java", "php", "csharp", "bash", "typescript", "sql", "rust", "cuda",
    "lua", "R", "perl", "D_ut", "ruby", "scala", "julia", "pytest", "junit", "kotlin_script", "jest", "verilog",
    "python_gpu", "lean", "swift", "racket",
]
# fmt: on
Timeout = Annotated[float, Field(allow_inf_nan=False)]
Paths = Annotated[list[str], Field(max_length=MAX_FILES)]

_START = re.compile(r'^(Traceback \(most recent call last\):|  File ")', re.MULTILINE)
_FRAME = """
def _framed(code, files, wanted, mark):
    import base64, json, linecache, os, sys
    for path, content in files.items():
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(path, "wb") as file:
            file.write(base64.b64decode(content))
    try:
        if code is not None:
            linecache.cache["main.py"] = (len(code), None, code.splitlines(True), "main.py")
            exec(compile(code, "main.py", "exec"), {{"__name__": "__main__", "__file__": "main.py"}})
    finally:
        if wanted:
            found = {{}}
            for path in filter(os.path.isfile, wanted):
                with open(path, "rb") as file:
                    found[path] = base64.b64encode(file.read()).decode()
            sys.stdout.write(mark + json.dumps(found))
            sys.stdout.flush()
_framed({code!r}, {files!r}, {wanted!r}, {mark!r})
del _framed
"""


class FusionStatus(StrEnum):
    SUCCESS = "Success"
    FAILED = "Failed"
    SANDBOX_ERROR = "SandboxError"


class CommandRunStatus(StrEnum):
    FINISHED = "Finished"
    ERROR = "Error"
    TIME_LIMIT_EXCEEDED = "TimeLimitExceeded"


class RunCodeRequest(LenientRequest):
    compile_timeout: Timeout = Field(10, description="Accepted; Python is not compiled.")
    run_timeout: Timeout = 10
    memory_limit_MB: Integer = Field(-1, description="Not positive: the service's default.")
    code: Code
    stdin: Stdin | None = None
    language: Language = Field("python", description="Only `python` is run; others get `SandboxError`.")
    files: dict[str, str | None] = Field(default={}, max_length=MAX_FILES, description="Path to base64.")
    fetch_files: Paths = Field(default=[])


class RunJupyterRequest(LenientRequest):
    cells: list[Code] = Field(max_length=MAX_CELLS)
    cell_timeout: Timeout = Field(0, description="Zero or less: no limit for a single cell.")
    total_timeout: Timeout = 45
    memory_limit_MB: Integer = -1
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
    status: FusionStatus
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
    status: FusionStatus
    message: str = ""
    driver: CommandRunResult | None = None
    cells: list[CellRunResult] = field(default_factory=list)
    executor_pod_name: str | None = None
    files: dict[str, str] = field(default_factory=dict)


FETCHED = TypeAdapter(Annotated[dict[str, str], Field(max_length=MAX_FILES)])
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
    """Convert an execution to SandboxFusion's result."""
    if execution.status.is_sandbox_fault:
        failed = CommandRunResult(CommandRunStatus.ERROR, stderr=execution.message)
        return RunCodeResponse(FusionStatus.SANDBOX_ERROR, execution.message, run_result=failed)
    if execution.status is ExecutionStatus.TIMEOUT:
        status, return_code = CommandRunStatus.TIME_LIMIT_EXCEEDED, None
    else:
        status, return_code = CommandRunStatus.FINISHED, _return_code(execution)
    result = CommandRunResult(status, execution.wall_s, return_code, execution.stdout, execution.stderr)
    return RunCodeResponse(
        FusionStatus.SUCCESS if execution.ok else FusionStatus.FAILED, run_result=result, files=files
    )


def _return_code(execution: Execution) -> int:
    if execution.signal is not None:
        return -execution.signal
    return execution.exit_code or (0 if execution.ok else 1)


def cell_result(execution: Execution) -> CellRunResult:
    """A cell's result in the form of Jupyter messages: the error separate from stderr, the value as display data."""
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


@dataclass(frozen=True, slots=True)
class NotebookError:
    ename: str
    evalue: str
    traceback: list[str]


def split_traceback(stderr: str) -> tuple[str, NotebookError | None]:
    """Split stderr into what the cell wrote and the error that ended it, which is None without a traceback."""
    start = _START.search(stderr)
    if start is None:
        return stderr, None
    lines = stderr[start.start() :].splitlines()
    last_frame = max(index for index, line in enumerate(lines) if line.startswith(("Traceback", '  File "')))
    index = next((at for at in range(last_frame + 1, len(lines)) if not lines[at].startswith("  ")), len(lines) - 1)
    name, _, first = lines[index].partition(": ")
    message = "\n".join([first, *lines[index + 1 :]])
    return stderr[: start.start()], NotebookError(name.rpartition(".")[2], message, lines)


def new_mark() -> str:
    return f"\n--- files {secrets.token_hex(16)} ---\n"


def framed(code: str | None, files: Mapping[str, str | None], wanted: Sequence[str], mark: str) -> str:
    """Build a program that writes `files`, runs `code` if it is not None, and prints the `wanted` files behind the
    mark. ValueError if a file is not base64."""
    given = {path: content for path, content in files.items() if content is not None}
    for path, content in given.items():
        try:
            base64.b64decode(content)
        except (binascii.Error, ValueError) as error:
            raise ValueError(f"files: {path!r} is not base64: {error}") from None
    return _FRAME.format(code=code, files=given, wanted=list(wanted), mark=mark)


def split_output(stdout: str, mark: str) -> tuple[str, dict[str, str]]:
    """Split stdout into the program's output and the files behind the mark; none if it is missing."""
    printed, found_mark, found = stdout.rpartition(mark)
    if not found_mark:
        return stdout, {}
    try:
        return printed, FETCHED.validate_json(found, strict=True)
    except ValueError:  # the program printed the mark itself, or something behind it
        return printed, {}


class SandboxFusionApi:
    def __init__(self, service: Service) -> None:
        self._service = service

    def operations(self) -> list[Operation]:
        post = partial(Operation, "POST", refusals=(504,), tag="SandboxFusion")
        happened = "What happened; see `status`."
        ran, ran_cells = (ApiAnswer(happened, RUN_CODE_RESPONSE),), (ApiAnswer(happened, RUN_JUPYTER_RESPONSE),)
        return [
            post("/run_code", self.run_code, "Run a program.", ran, RUN_CODE),
            post("/run_jupyter", self.run_jupyter, "Run the cells of a notebook.", ran_cells, RUN_JUPYTER),
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
            return RunCodeResponse(FusionStatus.SANDBOX_ERROR, message)
        limits, mark = limits_of(body.run_timeout, body.memory_limit_MB), new_mark()
        if not body.files and not body.fetch_files:
            execution = await self._service.run(Request(body.code, body.stdin or "", limits))
            return code_response(execution, {})
        try:
            code = framed(body.code, body.files, body.fetch_files, mark)
        except ValueError as error:
            return RunCodeResponse(FusionStatus.SANDBOX_ERROR, str(error))
        limits = replace(limits, output_bytes=FILES_OUTPUT_BYTES)
        execution = await self._service.run(Request(code, body.stdin or "", limits))
        stdout, files = split_output(execution.stdout, mark)
        return code_response(replace(execution, stdout=stdout), files)

    async def _run_cells(self, session: Session, body: RunJupyterRequest) -> RunJupyterResponse:
        """Run the cells in order, continuing after one that raised, until the total time is up."""
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
            return RunJupyterResponse(FusionStatus.SANDBOX_ERROR, str(error))
        if before is not None and not (written := await run(before, own_limits)).ok:
            return RunJupyterResponse(FusionStatus.SANDBOX_ERROR, f"files: {written.message or written.stderr}")
        for code in body.cells:
            timeout_s = min(left_s(), body.cell_timeout) if body.cell_timeout > 0 else left_s()
            execution = await run(code, limits_of(timeout_s, body.memory_limit_MB))
            if execution.status.is_sandbox_fault:
                return RunJupyterResponse(FusionStatus.SANDBOX_ERROR, execution.message)
            if left_s() <= 0:
                driver = CommandRunResult(CommandRunStatus.TIME_LIMIT_EXCEEDED, time.monotonic() - started)
                return RunJupyterResponse(FusionStatus.FAILED, driver=driver)
            cells.append(cell_result(execution))
        if body.fetch_files:
            fetched = await run(framed(None, {}, body.fetch_files, mark), own_limits)
            _, files = split_output(fetched.stdout, mark)
        driver = CommandRunResult(CommandRunStatus.FINISHED, time.monotonic() - started, 0, "", "")
        return RunJupyterResponse(FusionStatus.SUCCESS, driver=driver, cells=cells, files=files)
