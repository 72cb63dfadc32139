"""The limits of an execution, and its result."""

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any

from rstar2.records import Fault, ToolStatus

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
STARVED_FACTOR = 10
"""Enough for a program that shares its core with nine others."""


class ExecutionStatus(StrEnum):
    """How an execution ended. The last two are faults of the sandbox: they may be retried and are never scored."""

    OK = "ok"
    ERROR = "error"
    """The program raised, or exited with a code other than 0."""
    TIMEOUT = "timeout"
    """The program used up its wall-clock or CPU limit: see `starvation.py`."""
    MEMORY = "memory"
    """The program was killed at its memory limit, or raised MemoryError."""
    OUTPUT_LIMIT = "output_limit"
    """The program wrote more than its limit; the output up to the limit is kept."""
    SIGNAL = "signal"
    """A signal ended the program: a segmentation fault, an abort, a signal it sent itself."""
    QUEUE_TIMEOUT = "queue_timeout"
    """The program never started: no worker was free before the queue deadline."""
    INFRASTRUCTURE = "infrastructure"
    """The worker was lost, and so was the retry; or the machine was too busy to run the program."""

    @property
    def is_sandbox_fault(self) -> bool:
        return self in (ExecutionStatus.QUEUE_TIMEOUT, ExecutionStatus.INFRASTRUCTURE)


_TOOL_STATUS = {
    ExecutionStatus.ERROR: ToolStatus.RAISED,
    ExecutionStatus.TIMEOUT: ToolStatus.TIMED_OUT,
    ExecutionStatus.MEMORY: ToolStatus.OUT_OF_MEMORY,
    ExecutionStatus.OUTPUT_LIMIT: ToolStatus.OUTPUT_TOO_LONG,
    ExecutionStatus.SIGNAL: ToolStatus.RAISED,
    ExecutionStatus.QUEUE_TIMEOUT: ToolStatus.INFRASTRUCTURE_FAULT,
    ExecutionStatus.INFRASTRUCTURE: ToolStatus.INFRASTRUCTURE_FAULT,
}


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one execution. The program and its children share all but the CPU time."""

    wall_s: float = 10.0
    """Time that the program runs or sleeps. Waiting for a core does not count, up to `longest_s`."""
    cpu_s: float = 10.0
    """CPU time of each single process, as Linux counts it; the wall-clock limit bounds their total."""
    memory_bytes: int = 1 * GIB
    num_processes: int = 32
    output_bytes: int = 1 * MIB
    """The maximum size of stdout, of stderr and of the value, each."""
    file_bytes: int = 32 * MIB
    """The maximum size of one file in the scratch directory; the sandbox's own setting bounds all files together."""

    def __post_init__(self) -> None:
        for name, (minimum, maximum) in _BOUNDS.items():
            value = getattr(self, name)
            if not (value > 0 and minimum <= value <= maximum):
                raise ValueError(f"limits.{name} must be between {minimum:g} and {maximum:g}, not {value}")

    @property
    def longest_s(self) -> float:
        """The time after which the program is stopped even if it only waited for a core."""
        return STARVED_FACTOR * self.wall_s


MIN_MEMORY_BYTES, MAX_OUTPUT_BYTES = 16 * MIB, 16 * MIB
_DAY_S = 86_400.0
_BOUNDS: dict[str, tuple[float, float]] = {
    "wall_s": (0, _DAY_S),
    "cpu_s": (0, _DAY_S),
    "memory_bytes": (MIN_MEMORY_BYTES, 1024 * GIB),
    "num_processes": (1, 32_768),
    "output_bytes": (1, MAX_OUTPUT_BYTES),
    "file_bytes": (1, 1024 * GIB),
}


OnOutput = Callable[[str, str], None]
"""A callback for the output of a running program: the stream ("stdout" or "stderr") and a piece of text. It is called
in the event loop, and must not block."""


class _AsBase64:
    """Makes bytes base64 text in JSON."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        plain = core_schema.no_info_after_validator_function(_from_base64, core_schema.str_schema())
        return core_schema.json_or_python_schema(
            json_schema=plain,
            python_schema=handler(source),
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda data: base64.b64encode(data).decode(), return_schema=core_schema.str_schema(), when_used="json"
            ),
        )

    def __get_pydantic_json_schema__(self, _: Any, __: Any) -> dict[str, str]:
        return {"type": "string", "format": "byte"}


def _from_base64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


Content = Annotated[bytes, _AsBase64()]


@dataclass(frozen=True, slots=True)
class Display:
    """One item that a notebook would show besides printed text."""

    data: Mapping[str, str]
    """The item's representations by MIME type; binary ones, such as images, in base64. `text/plain` is always there."""
    is_result: bool = False
    """True for the value of the last expression; False for `display(...)` and figures."""


@dataclass(frozen=True, slots=True)
class ProgramError:
    """The exception that ended a program."""

    name: str
    value: str
    traceback: str


@dataclass(frozen=True, slots=True)
class FileInfo:
    path: str
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Execution:
    """The result of one execution."""

    status: ExecutionStatus
    stdout: str = ""
    stderr: str = ""
    value: str | None = None
    """The last expression's value as a notebook would show it; None if there is none, or it is None."""
    exit_code: int | None = None
    signal: int | None = None
    wall_s: float = 0.0
    cpu_s: float = 0.0
    queue_s: float = 0.0
    peak_memory_bytes: int = 0
    stdout_cut: bool = False
    stderr_cut: bool = False
    value_cut: bool = False
    num_attempts: int = 1
    message: str = ""
    """A sentence that explains the status where needed: which limit was reached, or what failed."""
    displays: tuple[Display, ...] = ()
    """The items that a notebook would show, in order; empty unless rich results were requested."""
    error: ProgramError | None = None
    """The uncaught exception, if rich results were requested; `stderr` then leaves it out."""
    files: Mapping[str, Content] = field(default_factory=dict)
    """The requested files that the program left behind."""

    @property
    def ok(self) -> bool:
        return self.status is ExecutionStatus.OK

    @property
    def tool_status(self) -> ToolStatus:
        if self.ok:
            return ToolStatus.OK if self.stdout or self.value is not None else ToolStatus.NO_OUTPUT
        return _TOOL_STATUS[self.status]

    @property
    def fault(self) -> Fault:
        return self.tool_status.fault
