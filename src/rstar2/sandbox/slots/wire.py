"""The binary protocol between the host and its slots: one request and one reply at a time. `_fork.c` has the same
layout.

The program controls everything in a reply except its numbers; it is bounded, decoded with replacement, and decides
nothing.
"""

import math
import os
import signal
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from enum import IntFlag
from operator import attrgetter

from rstar2.sandbox.execution import (
    GIB,
    MAX_OUTPUT_BYTES,
    MIB,
    Display,
    Execution,
    ExecutionStatus,
    FileInfo,
    Limits,
    ProgramError,
)
from rstar2.sandbox.slots import interpreter, report
from rstar2.sandbox.slots.starvation import ENOUGH_SHARE

MAX_CODE_BYTES, MAX_STDIN_BYTES = 8 * MIB, 32 * MIB
MAX_SOURCE_BYTES = 25 * MIB
"""The size limit of the code together with its files."""
STREAM_EVERY_S = 0.02
"""The interval at which a running program's output is passed on: longer than the time between prints."""

REQUEST = struct.Struct("=IIIIQQQIIIIII")
REPLY = struct.Struct("=iIIIIIQQ")
MORE_TIME = struct.Struct("=I")
"""The answer to a slot that asked at its wall limit (`Flag.AT_LIMIT`): milliseconds until it asks again; 0: stop the
program. Each question gets one answer."""
SLOT_MESSAGE = struct.Struct("=BiI")
"""The message to a template: kind of slot, uid of its programs (-1: the slot's own), serial number."""
GOODBYE = b"."
"""The message that tells a template to exit cleanly."""
SLOT_ANSWER = struct.Struct("=Ii")
"""The answer of a template: serial number, and the slot's process id or minus an errno."""
KIND_STATELESS, KIND_SESSION = 0, 1
SESSION_REQUEST = struct.Struct("=BII")
"""The message to a session's slot: operation, the state it starts from (or concerns), the state it makes. A run is
followed by a `REQUEST` with code and stdin; the first message on the socket is a bare `REQUEST` with the session's
limits."""
OPERATION_RUN, OPERATION_DROP, OPERATION_PUT, OPERATION_READ, OPERATION_LIST = range(5)
FILE_REQUEST = struct.Struct("=II")
"""Follows a file operation: the lengths of path and content, then both. The reply's wait status is an errno, and its
first output the file's content or the list (`encode_files`)."""
NUM_CELL_DESCRIPTORS = 5
SESSION_REPLY = struct.Struct(f"=BQI{NUM_CELL_DESCRIPTORS}Q")
"""Whether the new state was kept, the fingerprint of the scratch directory, the state's process id inside its namespace
and the inodes of its given descriptors; a `REPLY` with its bytes follows."""
STATE_LOST, TREE_SPOILED = -1, -2
"""Values instead of a wait status: the base state of a cell no longer answers; the cell did something after which the
controller could not continue, and has exited."""


class Flag(IntFlag):
    TIMED_OUT = 1
    STDOUT_CUT = 2
    STDERR_CUT = 4
    VALUE_CUT = 8
    USED_UP = 16
    """The program left files or used-up process ids in its slot, which has therefore exited."""
    AT_LIMIT = 32
    """The message is a question: may the program continue?"""
    PARTIAL = 64
    """The message is new output of the running program."""


@dataclass(frozen=True, slots=True)
class RequestHeader:
    code_len: int
    stdin_len: int
    wall_ms: int
    cpu_s: int
    data_bytes: int
    address_bytes: int
    file_bytes: int
    num_processes: int
    output_bytes: int
    longest_ms: int
    """The time after which the slot stops the program without asking."""
    young_ms: int
    """The time after which the slot lowers the program's CPU share."""
    value_bytes: int
    """The maximum number of bytes on the value's descriptor."""
    stream_ms: int
    """The interval at which the slot streams output; 0: never."""

    def pack(self) -> bytes:
        return REQUEST.pack(*_fields_of(self))

    @classmethod
    def unpack(cls, data: bytes) -> "RequestHeader":
        return cls(*REQUEST.unpack(data))


_fields_of = attrgetter(*(field.name for field in fields(RequestHeader)))


def encode_request(
    code: bytes,
    stdin: bytes,
    limits: Limits,
    *,
    has_memory_group: bool,
    longest_s: float | None = None,
    young_s: float = math.inf,
    is_streamed: bool = False,
) -> bytes:
    longest_ms = math.ceil((limits.longest_s if longest_s is None else longest_s) * 1000)
    header = RequestHeader(
        code_len=len(code),
        stdin_len=len(stdin),
        wall_ms=math.ceil(limits.wall_s * 1000),
        cpu_s=max(1, math.ceil(limits.cpu_s)),
        data_bytes=limits.memory_bytes,
        # Without a memory group, shared memory is bounded by address space alone; the room above the limit is for
        # what threads and allocators reserve and never touch.
        address_bytes=0 if has_memory_group else limits.memory_bytes + GIB,
        file_bytes=limits.file_bytes,
        num_processes=limits.num_processes,
        output_bytes=limits.output_bytes,
        longest_ms=longest_ms,
        young_ms=math.ceil(min(young_s * 1000, longest_ms)),
        value_bytes=MAX_OUTPUT_BYTES if code[:1] == interpreter.ASKED else limits.output_bytes + 1,  # a tag comes first
        stream_ms=math.ceil(STREAM_EVERY_S * 1000) if is_streamed else 0,
    )
    return header.pack() + code + stdin


def no_state(fingerprint: int = 0) -> bytes:
    """The first part of a session's message when there is no new state."""
    return SESSION_REPLY.pack(0, fingerprint, 0, *[0] * NUM_CELL_DESCRIPTORS)


def question(elapsed_s: float) -> bytes:
    """The message that a slot sends at its program's wall limit."""
    return REPLY.pack(0, Flag.AT_LIMIT, 0, 0, 0, 0, int(elapsed_s * 1e6), 0)


def partial(elapsed_s: float, num_stdout: int, num_stderr: int) -> bytes:
    """The header before a piece of a running program's output."""
    return REPLY.pack(0, Flag.PARTIAL, num_stdout, num_stderr, 0, 0, int(elapsed_s * 1e6), 0)


def encode_more_time(more_s: float) -> bytes:
    return MORE_TIME.pack(math.ceil(more_s * 1000))


def encode_source(code: str, *, rich: bool, files: Mapping[str, bytes], fetch_files: tuple[str, ...]) -> bytes:
    """Encode the code and its options for the interpreter in the slot."""
    source = code.encode("utf-8", "surrogatepass")
    if rich or files or fetch_files or source[:1] == interpreter.ASKED:
        return interpreter.with_asked(source, rich=rich, files=dict(files), fetch_files=fetch_files)
    return source


def partial_output(header: bytes, body: bytes) -> tuple[bytes, bytes] | None:
    """The new output in a message; None if the message is something else."""
    _, bits, out_len, *_ = REPLY.unpack(header)
    return (body[:out_len], body[out_len:]) if bits & Flag.PARTIAL else None


def asked_after_s(header: bytes) -> float | None:
    """How long the program has been running, if the message is a slot's question; else None."""
    _, bits, *_, wall_us, _ = REPLY.unpack(header)
    return wall_us / 1e6 if bits & Flag.AT_LIMIT else None


def decode_reply(
    header: bytes,
    body: bytes,
    limits: Limits,
    *,
    killed_for_memory: bool,
    is_starved: bool = False,
    fetch_files: tuple[str, ...] = (),
) -> tuple[Execution, Flag]:
    """The slot's reply as a typed result. `is_starved`: the program was stopped before it used its time."""
    wait_status, bits, out_len, err_len, value_len, max_rss_kib, wall_us, cpu_us = REPLY.unpack(header)
    flags = Flag(bits)
    stdout, stderr = body[:out_len], body[out_len : out_len + err_len]
    value = body[out_len + err_len : out_len + err_len + value_len]
    tag, found = value[:1], None
    ran_out = tag == interpreter.TAG_OUT_OF_MEMORY
    if tag == report.TAG_RECORDS:
        found = report.read(value[1:], frozenset(fetch_files))
        value, ran_out = found.value or b"", found.ran_out_of_memory
    elif tag in (interpreter.TAG_VALUE, interpreter.TAG_OUT_OF_MEMORY):
        value = value[1:]
    ran_out = ran_out and os.WIFEXITED(wait_status)
    status, message, exit_code, signal_number = classify(
        wait_status, flags, limits, killed_for_memory=killed_for_memory or ran_out, cpu_s=cpu_us / 1e6
    )
    if Flag.TIMED_OUT in flags and is_starved and cpu_us / 1e6 < ENOUGH_SHARE * limits.wall_s:
        status = ExecutionStatus.INFRASTRUCTURE
        message = f"the machine was too busy: {cpu_us / 1e6:.2f} s of CPU in {wall_us / 1e6:.2f} s"
    execution = Execution(
        status=status,
        stdout=stdout.decode("utf-8", "replace"),
        stderr=stderr.decode("utf-8", "replace"),
        value=value.decode("utf-8", "replace") if value else None,
        exit_code=exit_code,
        signal=signal_number,
        wall_s=wall_us / 1e6,
        cpu_s=cpu_us / 1e6,
        peak_memory_bytes=max_rss_kib << 10,
        stdout_cut=Flag.STDOUT_CUT in flags,
        stderr_cut=Flag.STDERR_CUT in flags,
        value_cut=Flag.VALUE_CUT in flags,
        message=message,
    )
    return execution if found is None else _with_report(execution, found, limits), flags


def _with_report(execution: Execution, found: report.Report, limits: Limits) -> Execution:
    """Add the requested results. The value is limited here, since it shares its descriptor with other records."""
    value = execution.value
    is_cut = value is not None and len(found.value or b"") > limits.output_bytes
    if is_cut:
        value = (found.value or b"")[: limits.output_bytes].decode("utf-8", "replace")
    displays = tuple(
        Display({"text/plain": value or "", **data} if is_result else {"text/plain": "", **data}, is_result)
        for is_result, data in found.displays
    )
    error = None
    if found.error is not None:
        error = ProgramError(*(part.decode("utf-8", "replace") for part in (*found.error, found.traceback)))
    return replace(
        execution,
        value=value,
        value_cut=execution.value_cut or is_cut,
        displays=displays,
        error=error,
        files=found.files,
    )


def encode_files(files: Iterable[FileInfo]) -> bytes:
    return b"".join(f"{file.num_bytes} {file.path}\0".encode() for file in files)


def decode_files(data: bytes) -> list[FileInfo]:
    """Names may hold any character but NUL."""
    lines = (line.partition(b" ") for line in data.split(b"\0") if line)
    return [FileInfo(path.decode("utf-8", "replace"), int(num_bytes)) for num_bytes, _, path in lines]


def classify(
    wait_status: int, flags: Flag, limits: Limits, *, killed_for_memory: bool, cpu_s: float
) -> tuple[ExecutionStatus, str, int | None, int | None]:
    """Status, message, exit code and signal. A limit that was reached explains the signal that ended the program."""
    if Flag.TIMED_OUT in flags:
        return ExecutionStatus.TIMEOUT, f"stopped after its wall-clock limit of {limits.wall_s:g} s", None, None
    if flags & (Flag.STDOUT_CUT | Flag.STDERR_CUT | Flag.VALUE_CUT):
        message = f"stopped after writing more than {limits.output_bytes} bytes"
        return ExecutionStatus.OUTPUT_LIMIT, message, None, None
    out_of_memory = f"stopped at its memory limit of {limits.memory_bytes} bytes"
    if os.WIFSIGNALED(wait_status):
        number = os.WTERMSIG(wait_status)
        if killed_for_memory:
            return ExecutionStatus.MEMORY, out_of_memory, None, number
        if number == signal.SIGXCPU or (number == signal.SIGKILL and cpu_s >= limits.cpu_s):
            return ExecutionStatus.TIMEOUT, f"stopped after its CPU limit of {limits.cpu_s:g} s", None, number
        return ExecutionStatus.SIGNAL, f"ended by {_signal_name(number)}", None, number
    code = os.WEXITSTATUS(wait_status)
    if killed_for_memory and code != 0:
        return ExecutionStatus.MEMORY, out_of_memory, code, None
    return (ExecutionStatus.OK if code == 0 else ExecutionStatus.ERROR), "", code, None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
