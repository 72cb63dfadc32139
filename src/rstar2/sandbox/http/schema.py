"""The native wire format: requests reject unknown fields, and results are the dataclasses themselves.

Validation is strict (no "1" for 1) and every size is bounded here, so handlers see only valid requests.
"""

import hashlib
from dataclasses import dataclass
from typing import Annotated, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    TypeAdapter,
    model_validator,
)

from rstar2.records import Verdict
from rstar2.sandbox.execution import (
    GIB,
    MAX_OUTPUT_BYTES,
    MIB,
    MIN_MEMORY_BYTES,
    Content,
    Execution,
    FileInfo,
    Limits,
)
from rstar2.sandbox.executor import Request
from rstar2.sandbox.file_paths import MAX_FILES

MAX_CODE_CHARS = 4 * MIB
MAX_STDIN_CHARS = 16 * MIB
MAX_ANSWER_CHARS = 1 * MIB
MAX_BATCH = 65_536
MAX_WALL_S = 3600.0
MAX_QUEUE_S = 7200.0
_DEFAULTS = Limits()


def _to_integer(value: object) -> object:
    """Accept 2.0 as 2: JSON does not distinguish them, but strict validation does."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Integer = Annotated[int, BeforeValidator(_to_integer)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Code = Annotated[str, Field(max_length=MAX_CODE_CHARS)]
Stdin = Annotated[str, Field(max_length=MAX_STDIN_CHARS)]
Rich = Annotated[
    bool, Field(description="Return what a notebook would show: `displays`, and the exception in `error`.")
]
IdempotencyKey = Annotated[
    str | None,
    Field(min_length=1, max_length=128, description="The same key with the same body is executed once."),
]


FilePath = Annotated[str, Field(description="Relative to the working directory.")]


class StrictRequest(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class LenientRequest(BaseModel):
    """A request of the drop-in endpoints: fields that we do not know are their callers' business."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


class LimitsModel(StrictRequest):
    """The limits of one execution. The program and its children share all but the CPU time of each process."""

    wall_s: Seconds = Field(_DEFAULTS.wall_s, le=MAX_WALL_S)
    cpu_s: Seconds = Field(_DEFAULTS.cpu_s, le=MAX_WALL_S)
    memory_bytes: Integer = Field(_DEFAULTS.memory_bytes, ge=MIN_MEMORY_BYTES, le=1024 * GIB)
    num_processes: Integer = Field(_DEFAULTS.num_processes, ge=1, le=4096)
    output_bytes: Integer = Field(_DEFAULTS.output_bytes, ge=1, le=MAX_OUTPUT_BYTES)
    file_bytes: Integer = Field(_DEFAULTS.file_bytes, ge=1, le=16 * GIB)

    def to_limits(self) -> Limits:
        return Limits(
            self.wall_s, self.cpu_s, self.memory_bytes, self.num_processes, self.output_bytes, self.file_bytes
        )


_NO_LIMITS_GIVEN = LimitsModel()


class RunRequest(StrictRequest):
    code: Code
    stdin: Stdin = ""
    limits: LimitsModel = _NO_LIMITS_GIVEN
    queue_s: Seconds = Field(120.0, le=MAX_QUEUE_S, description="How long it may wait for a worker.")
    rich: Rich = False
    files: dict[str, Content] = Field(
        default={}, max_length=MAX_FILES, description="Put into the working directory: relative path to base64."
    )
    fetch_files: list[str] = Field(
        default=[], max_length=MAX_FILES, description="Paths of files to return when it has ended."
    )
    idempotency_key: IdempotencyKey = None

    def to_request(self, flow: str = "") -> Request:
        limits = _DEFAULTS if self.limits is _NO_LIMITS_GIVEN else self.limits.to_limits()
        return Request(
            *(self.code, self.stdin, limits, self.queue_s, flow, self.rich, self.files, tuple(self.fetch_files))
        )


class BatchRequest(StrictRequest):
    runs: list[RunRequest] = Field(min_length=1, max_length=MAX_BATCH)


class SessionRequest(StrictRequest):
    """An empty session; nothing to choose."""


class CellRequest(StrictRequest):
    code: Code
    stdin: Stdin = ""
    limits: LimitsModel = _NO_LIMITS_GIVEN
    rich: Rich = False
    idempotency_key: IdempotencyKey = None


class PutFileRequest(StrictRequest):
    path: FilePath
    content: Content = Field(description="In base64.")
    idempotency_key: IdempotencyKey = None


class ReadFileRequest(StrictRequest):
    path: FilePath


class ForkRequest(StrictRequest):
    idempotency_key: IdempotencyKey = None


class RollbackRequest(StrictRequest):
    num_cells: Integer = Field(1, ge=1, le=1_000_000)
    idempotency_key: IdempotencyKey = None


class NodeRequest(StrictRequest):
    url: Annotated[str, Field(min_length=1, max_length=1024, description="Where the gateway reaches the node.")]


class GradeRequest(StrictRequest):
    """An answer, or the text of a turn whose answer is to be found, against the gold answer."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [
                {"required": [name], "properties": {name: {"type": "string"}, other: {"type": "null"}}}
                for name, other in (("answer", "text"), ("text", "answer"))
            ]
        }
    )

    gold: str = Field(min_length=1, max_length=MAX_ANSWER_CHARS)
    answer: Annotated[str, Field(max_length=MAX_ANSWER_CHARS)] | None = None
    text: Annotated[str, Field(max_length=MAX_ANSWER_CHARS)] | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if (self.answer is None) == (self.text is None):
            raise ValueError("give either answer or text, and not both")
        return self


@dataclass(frozen=True, slots=True)
class ErrorBody:
    """Every answer that is not a success: a word for programs, a sentence for people, and the fields at fault."""

    error: str
    message: str
    detail: list[dict[str, JsonValue]]


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One finished run of a batch: its place in the request, and its result or why it was refused."""

    index: int
    result: Execution | None = None
    error: ErrorBody | None = None


@dataclass(frozen=True, slots=True)
class SessionInfo:
    id: str
    num_cells: int


@dataclass(frozen=True, slots=True)
class CellResult:
    num_cells: int
    result: Execution


@dataclass(frozen=True, slots=True)
class FileResult:
    path: str
    content: Content


@dataclass(frozen=True, slots=True)
class FileList:
    files: list[FileInfo]


@dataclass(frozen=True, slots=True)
class StreamLine:
    """A piece of the output of a running program; last its result, or why there is none."""

    stream: str | None = None
    """`stdout` or `stderr`."""
    text: str | None = None
    num_cells: int | None = None
    """The number of cells of the session; sent with the result of a cell."""
    result: Execution | None = None
    error: ErrorBody | None = None


@dataclass(frozen=True, slots=True)
class GradeResult:
    verdict: Verdict
    answer: str | None
    """The answer that was compared; None if no answer was found."""
    method: str
    """The method that decided."""
    message: str


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A node as its gateway knows it."""

    url: str
    state: str
    """`joining`, `ready`, `suspect`, `lost` or `draining`; only a ready node gets calls."""
    num_slots: int
    num_outstanding: int
    """Calls that the node was sent and has not answered."""
    num_answered: int
    num_rerun: int
    """Calls that were rerun elsewhere because this node failed them."""
    num_failures: int
    """Consecutive probes or calls that the node did not answer."""
    silent_s: float
    """Seconds since the node's last answer."""
    message: str


def digest(model: StrictRequest) -> bytes:
    """A digest of the fields, whatever their bytes: "the same body" for an idempotency key."""
    return hashlib.blake2b(model.model_dump_json(exclude={"idempotency_key"}).encode(), digest_size=16).digest()


RUN = TypeAdapter(RunRequest)
BATCH = TypeAdapter(BatchRequest)
SESSION = TypeAdapter(SessionRequest)
CELL = TypeAdapter(CellRequest)
FORK = TypeAdapter(ForkRequest)
ROLLBACK = TypeAdapter(RollbackRequest)
GRADE = TypeAdapter(GradeRequest)
PUT_FILE = TypeAdapter(PutFileRequest)
READ_FILE = TypeAdapter(ReadFileRequest)
FILE_RESULT = TypeAdapter(FileResult)
FILE_LIST = TypeAdapter(FileList)
STREAM_LINE = TypeAdapter(StreamLine)
NODE = TypeAdapter(NodeRequest)
EXECUTION = TypeAdapter(Execution)
BATCH_LINE = TypeAdapter(BatchLine)
SESSION_INFO = TypeAdapter(SessionInfo)
CELL_RESULT = TypeAdapter(CellResult)
GRADE_RESULT = TypeAdapter(GradeResult)
NODE_INFO = TypeAdapter(NodeInfo)
ERROR = TypeAdapter(ErrorBody)
