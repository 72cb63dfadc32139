"""The bytes to and from a slot mean the same on both sides, and a reply becomes the right typed result."""

import signal
import struct
from dataclasses import replace

import pytest

from rstar2.sandbox.execution import _BOUNDS, GIB, ExecutionStatus, Limits
from rstar2.sandbox.slots import wire
from rstar2.sandbox.slots.wire import Flag, RequestHeader

pytestmark = pytest.mark.unit
S = ExecutionStatus


def exited(code: int) -> int:
    return code << 8


def reply(
    wait_status: int = 0,
    flags: Flag = Flag(0),  # noqa: B008 - immutable
    out: bytes = b"",
    err: bytes = b"",
    value: bytes = b"",
) -> tuple[bytes, bytes]:
    header = wire.REPLY.pack(wait_status, flags, len(out), len(err), len(value), 2048, 1_500_000, 250_000)
    return header, out + err + value


def test_layouts_are_those_of_the_c_structs() -> None:
    """`=` packs without padding; the C structs have none because every field lies on a multiple of its size."""
    for layout in (wire.REQUEST, wire.REPLY):
        assert layout.size == struct.calcsize("@" + layout.format[1:])
    assert (wire.REQUEST.size, wire.REPLY.size) == (64, 40)


def test_a_request_comes_back_as_it_was_sent() -> None:
    limits = Limits(2.5, 3.2, 64 << 20, 7, 1000, 2000)
    data = wire.encode_request(b"code", b"input", limits, has_memory_group=True, young_s=0.1)
    header = RequestHeader.unpack(data[: wire.REQUEST.size])
    assert header == RequestHeader(4, 5, 2500, 4, 64 << 20, 0, 2000, 7, 1000, 25_000, 100, 1001, 0)
    assert data[wire.REQUEST.size :] == b"codeinput"
    assert header.pack() == data[: wire.REQUEST.size]


@pytest.mark.parametrize(
    ("limits", "field", "expected"),
    [
        (Limits(wall_s=0.0001), "wall_ms", 1),
        (Limits(cpu_s=0.01), "cpu_s", 1),
    ],
)
def test_limits_are_rounded_up(limits: Limits, field: str, expected: int) -> None:
    data = wire.encode_request(b"", b"", limits, has_memory_group=True)
    assert getattr(RequestHeader.unpack(data), field) == expected


def test_the_largest_limits_can_be_sent() -> None:
    largest = Limits(
        **{name: kind(most) for name, (_, most) in _BOUNDS.items() for kind in [type(getattr(Limits(), name))]}
    )
    assert len(wire.encode_request(b"", b"", largest, has_memory_group=False)) == wire.REQUEST.size


def test_without_a_memory_group_address_space_is_bounded() -> None:
    data = wire.encode_request(b"", b"", Limits(memory_bytes=GIB), has_memory_group=False)
    assert RequestHeader.unpack(data).address_bytes == 2 * GIB


def test_a_reply_becomes_an_execution() -> None:
    header, body = reply(0, out=b"out", err=b"error", value=b"42")
    execution, flags = wire.decode_reply(header, body, Limits(), killed_for_memory=False)
    assert flags == Flag(0)
    assert (execution.status, execution.stdout, execution.stderr, execution.value) == (S.OK, "out", "error", "42")
    assert (execution.exit_code, execution.signal, execution.message) == (0, None, "")
    assert (execution.wall_s, execution.cpu_s, execution.peak_memory_bytes) == (1.5, 0.25, 2 << 20)
    assert not (execution.stdout_cut or execution.stderr_cut or execution.value_cut)


def test_bytes_that_are_no_text_are_replaced() -> None:
    header, body = reply(0, out=b"a\xff\x00b", err=b"\xed\xa0\x80", value=b"\xc3")
    execution, _ = wire.decode_reply(header, body, Limits(), killed_for_memory=False)
    assert execution.stdout == "a\ufffd\x00b"
    assert set(execution.stderr) == {"\ufffd"}
    assert execution.value == "\ufffd"


def test_no_value_is_none() -> None:
    execution, _ = wire.decode_reply(*reply(0), Limits(), killed_for_memory=False)
    assert execution.value is None


@pytest.mark.parametrize(
    ("flag", "field"),
    [(Flag.STDOUT_CUT, "stdout_cut"), (Flag.STDERR_CUT, "stderr_cut"), (Flag.VALUE_CUT, "value_cut")],
)
def test_each_stream_tells_that_it_was_cut(flag: Flag, field: str) -> None:
    execution, _ = wire.decode_reply(*reply(signal.SIGKILL, flag), Limits(), killed_for_memory=False)
    assert execution.status is S.OUTPUT_LIMIT
    cuts = {name: getattr(execution, name) for name in ("stdout_cut", "stderr_cut", "value_cut")}
    assert cuts == {name: name == field for name in cuts}


@pytest.mark.parametrize(
    ("wait_status", "flags", "killed", "expected"),
    [
        (exited(0), Flag(0), False, (S.OK, 0, None)),
        (exited(0), Flag.USED_UP, False, (S.OK, 0, None)),
        (exited(1), Flag(0), False, (S.ERROR, 1, None)),
        (exited(255), Flag(0), False, (S.ERROR, 255, None)),
        (signal.SIGSEGV, Flag(0), False, (S.SIGNAL, None, signal.SIGSEGV)),
        (signal.SIGABRT | 0x80, Flag(0), False, (S.SIGNAL, None, signal.SIGABRT)),
        (signal.SIGKILL, Flag(0), False, (S.SIGNAL, None, signal.SIGKILL)),
        (signal.SIGKILL, Flag(0), True, (S.MEMORY, None, signal.SIGKILL)),
        (signal.SIGXCPU, Flag(0), False, (S.TIMEOUT, None, signal.SIGXCPU)),
        (signal.SIGKILL, Flag.TIMED_OUT, False, (S.TIMEOUT, None, None)),
        (signal.SIGKILL, Flag.STDOUT_CUT, False, (S.OUTPUT_LIMIT, None, None)),
        (signal.SIGRTMIN + 3, Flag(0), False, (S.SIGNAL, None, signal.SIGRTMIN + 3)),
    ],
)
def test_endings(wait_status: int, flags: Flag, killed: bool, expected: tuple[S, int | None, int | None]) -> None:
    status, message, code, number = wire.classify(wait_status, flags, Limits(), killed_for_memory=killed, cpu_s=0.0)
    assert (status, code, number) == expected
    assert bool(message) == (status not in (S.OK, S.ERROR))


@pytest.mark.parametrize(
    ("flags", "is_starved", "wall_s", "expected"),
    [
        (Flag.TIMED_OUT, True, 2.0, S.INFRASTRUCTURE),  # 0.25 s of CPU, less than a quarter of its limit
        (Flag.TIMED_OUT, True, 1.0, S.TIMEOUT),
        (Flag.TIMED_OUT, False, 2.0, S.TIMEOUT),
        (Flag.STDOUT_CUT, True, 2.0, S.OUTPUT_LIMIT),  # another limit stopped it first
    ],
)
def test_one_that_was_hardly_run_by_the_bound(flags: Flag, is_starved: bool, wall_s: float, expected: S) -> None:
    header, body = reply(signal.SIGKILL, flags)
    limits = Limits(wall_s=wall_s)
    execution, _ = wire.decode_reply(header, body, limits, killed_for_memory=False, is_starved=is_starved)
    assert execution.status is expected


def test_messages_name_the_limit() -> None:
    limits = replace(Limits(), wall_s=1.5, cpu_s=2, memory_bytes=77 << 20, output_bytes=99)
    assert "1.5 s" in wire.classify(9, Flag.TIMED_OUT, limits, killed_for_memory=False, cpu_s=0.0)[1]
    assert "2 s" in wire.classify(signal.SIGXCPU, Flag(0), limits, killed_for_memory=False, cpu_s=0.0)[1]
    assert f"{77 << 20} bytes" in wire.classify(9, Flag(0), limits, killed_for_memory=True, cpu_s=0.0)[1]
    assert "99 bytes" in wire.classify(9, Flag.STDERR_CUT, limits, killed_for_memory=False, cpu_s=0.0)[1]
    assert "SIGSEGV" in wire.classify(11, Flag(0), limits, killed_for_memory=False, cpu_s=0.0)[1]
