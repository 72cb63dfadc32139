"""The portable twin of `_fork.c`: the same loops in Python, for machines without a compiler.

Slower (an ordinary fork copies the page tables of the warm interpreter) and otherwise the same, which the tests hold
it to: the whole attack suite runs on both.
"""

import array
import contextlib
import os
import resource
import select
import signal
import socket
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rstar2.sandbox import inside, linux
from rstar2.sandbox.wire import (
    MAX_CODE_BYTES,
    MAX_OUTPUT_BYTES,
    MAX_STDIN_BYTES,
    REPLY,
    REQUEST,
    SLOT_ANSWER,
    SLOT_MESSAGE,
    Flag,
    RequestHeader,
)

_YOUNG_S, _OLD_NICE = 0.1, 19
_VALUE_FD = 3
_MAX_FDS = 4
_CUT_FLAGS = (Flag.STDOUT_CUT, Flag.STDERR_CUT, Flag.VALUE_CUT)


SlotFacts = tuple[int, int, bool, int, int]
"""Socket, uid (< 0: stay who we are), whether in a process namespace of its own, bytes of data and of address space
that are the interpreter's own."""


def park(
    control_fd: int,
    own_namespace_fd: int,
    slot_main: Callable[[bytes, tuple[int, ...]], SlotFacts],
    rehearse: Callable[[], None],
    run: Callable[[bytes], int],
    twisters: tuple[tuple[int, int], ...],  # noqa: ARG001 - here their own seed functions are called
) -> None:
    """Fork a slot for each message until the other side is gone."""
    control = socket.socket(fileno=control_fd)

    def serve_as_slot(message: bytes, fds: tuple[int, ...]) -> None:
        control.close()
        facts = slot_main(message, fds)
        rehearse()
        _serve(facts, run)

    while True:
        message, ancillary, _, _ = control.recvmsg(64, socket.CMSG_SPACE(4 * _MAX_FDS))
        if not message:
            return
        fds = array.array("i")
        for _, _, data in ancillary:
            fds.frombytes(data[: len(data) - len(data) % 4])
        try:
            answer = _fork_slot(own_namespace_fd, lambda: serve_as_slot(message, tuple(fds)))  # noqa: B023
        except OSError as error:
            answer = -(error.errno or 1)
        for fd in fds:
            os.close(fd)
        control.send(SLOT_ANSWER.pack(SLOT_MESSAGE.unpack(message)[2], answer))


def _fork_slot(own_namespace_fd: int, become_slot: Callable[[], None]) -> int:
    if own_namespace_fd >= 0:
        linux.unshare(linux.CLONE_NEWPID)
    try:
        pid = os.fork()
    finally:
        if own_namespace_fd >= 0 and os.getpid() != 1:
            linux.setns(own_namespace_fd, linux.CLONE_NEWPID)
    if pid:
        return pid
    try:
        become_slot()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(113)


@dataclass
class _Stream:
    fd: int
    limit: int
    data: bytearray
    cut: bool = False

    def drain(self) -> bool:
        """Read what is there; False when the writers are all gone."""
        while True:
            room = self.limit - len(self.data)
            try:
                piece = os.read(self.fd, min(room, 1 << 16) or 1)
            except BlockingIOError:
                return True
            if not piece:
                return False
            if not room:
                self.cut = True
                return True
            self.data += piece


@dataclass(frozen=True)
class _Slot:
    caller: socket.socket
    run: Callable[[bytes], int]
    uid: int
    pid_namespace: bool
    base_data_bytes: int
    base_address_bytes: int
    scratch: tuple[int, ...]


def _serve(facts: SlotFacts, run: Callable[[bytes], int]) -> None:
    """Answer requests until the caller is gone or the scratch directory is no longer as it was. Never returns."""
    socket_fd, uid, pid_namespace, base_data_bytes, base_address_bytes = facts
    caller = socket.socket(fileno=socket_fd)
    slot = _Slot(caller, run, uid, pid_namespace, base_data_bytes, base_address_bytes, _scratch_state())
    with contextlib.suppress(OSError):
        while (header_bytes := _receive(caller, REQUEST.size)) is not None:
            header = RequestHeader.unpack(header_bytes)
            if header.code_len > MAX_CODE_BYTES or header.stdin_len > MAX_STDIN_BYTES:
                os._exit(122)
            if header.output_bytes > MAX_OUTPUT_BYTES:
                os._exit(122)
            code, stdin = _receive(caller, header.code_len), _receive(caller, header.stdin_len)
            if code is None or stdin is None:
                break
            reply, flags = _execute(slot, header, code, stdin)
            del code, stdin  # a later child inherits this memory
            caller.sendall(reply)
            if Flag.SCRATCH_DIRTY in flags:
                break
    os._exit(0)


def _receive(caller: socket.socket, length: int) -> bytes | None:
    data = bytearray()
    while len(data) < length:
        piece = caller.recv(min(length - len(data), 1 << 20))
        if not piece:
            return None
        data += piece
    return bytes(data)


def _scratch_state() -> tuple[int, ...]:
    usage, facts = os.statvfs("."), Path().stat()
    return usage.f_files - usage.f_ffree, facts.st_mode, facts.st_mtime_ns, facts.st_ctime_ns


def _execute(slot: _Slot, header: RequestHeader, code: bytes, stdin: bytes) -> tuple[bytes, Flag]:
    input_read, input_write = os.pipe()
    pipes = [os.pipe() for _ in range(3)]
    for read_end, _ in pipes:
        os.set_blocking(read_end, False)
    started, cpu_before = time.monotonic(), _children_cpu_s()
    child = os.fork()
    if child == 0:
        _run_child(slot, header, code, input_read, [write_end for _, write_end in pipes])
    os.close(input_read)
    for _, write_end in pipes:
        os.close(write_end)
    streams = [_Stream(read_end, header.output_bytes, bytearray()) for read_end, _ in pipes]
    flags = _collect(slot, header, child, input_write, stdin, streams, started)
    _kill_all(slot, child)
    _, status, used = os.wait4(child, 0)
    if slot.pid_namespace:
        with contextlib.suppress(ChildProcessError):
            while True:
                os.wait()
    for stream, flag in zip(streams, _CUT_FLAGS, strict=True):
        if not stream.cut:
            stream.drain()
        os.close(stream.fd)
        if stream.cut:
            flags |= flag
    if _scratch_state() != slot.scratch:
        flags |= Flag.SCRATCH_DIRTY
    lengths = [len(stream.data) for stream in streams]
    wall_us, cpu_us = (time.monotonic() - started) * 1e6, (_children_cpu_s() - cpu_before) * 1e6
    numbers = REPLY.pack(status, flags, *lengths, int(wall_us), int(cpu_us), used.ru_maxrss)
    return b"".join([numbers, *(bytes(stream.data) for stream in streams)]), flags


def _run_child(slot: _Slot, header: RequestHeader, code: bytes, stdin_fd: int, write_ends: list[int]) -> None:
    try:
        os.setsid()
        os.dup2(stdin_fd, 0)
        for number, write_end in enumerate(write_ends, start=1):
            os.dup2(write_end, number, inheritable=number != _VALUE_FD)
        os.closerange(_VALUE_FD + 1, 1 << 16)
        apply_limits(header, slot.base_data_bytes, slot.base_address_bytes)
        if slot.uid >= 0:
            os.setresgid(slot.uid, slot.uid, slot.uid)
            os.setresuid(slot.uid, slot.uid, slot.uid)
        inside.reseed()
        os._exit(slot.run(code))
    finally:
        os._exit(117)


def apply_limits(header: RequestHeader, base_data_bytes: int, base_address_bytes: int) -> None:
    """Before the uid changes: after that only lowering is allowed."""
    pairs = {
        resource.RLIMIT_CPU: (header.cpu_s, header.cpu_s + 1),
        resource.RLIMIT_FSIZE: (header.file_bytes,) * 2,
        resource.RLIMIT_NPROC: (header.num_processes,) * 2,
        resource.RLIMIT_DATA: (base_data_bytes + header.data_bytes,) * 2,
    }
    if header.address_bytes:
        pairs[resource.RLIMIT_AS] = (base_address_bytes + header.address_bytes,) * 2
    for kind, values in pairs.items():
        resource.setrlimit(kind, values)


def _collect(
    slot: _Slot,
    header: RequestHeader,
    child: int,
    input_write: int,
    stdin: bytes,
    streams: list[_Stream],
    started: float,
) -> Flag:
    """Feed stdin and drain output until the child ends, a limit is hit or the caller is gone."""
    child_fd = os.pidfd_open(child)
    os.set_blocking(input_write, False)
    poller = select.poll()
    poller.register(child_fd, select.POLLIN)
    poller.register(slot.caller, select.POLLIN | select.POLLRDHUP)
    poller.register(input_write, select.POLLOUT)
    open_streams = {stream.fd: stream for stream in streams}
    for fd in open_streams:
        poller.register(fd, select.POLLIN)
    pending: memoryview | None = memoryview(stdin)
    deadline, old_at = started + header.wall_ms / 1000, started + _YOUNG_S
    try:
        while True:
            now = time.monotonic()
            if now >= deadline:
                return Flag.TIMED_OUT
            if now >= old_at:
                kind, who = (os.PRIO_USER, slot.uid) if slot.uid >= 0 else (os.PRIO_PGRP, child)
                with contextlib.suppress(OSError):
                    os.setpriority(kind, who, _OLD_NICE)
                old_at = float("inf")
            for fd, _ in poller.poll((min(deadline, old_at) - now) * 1000 + 1):
                if fd == slot.caller.fileno():
                    _kill_all(slot, child)
                    os._exit(0)
                if fd == input_write and pending is not None:
                    pending = _feed(input_write, pending)
                    if pending is None:
                        poller.unregister(input_write)
                        os.close(input_write)
                elif fd in open_streams and not open_streams[fd].drain():
                    poller.unregister(fd)
                    del open_streams[fd]
                elif fd == child_fd:
                    return Flag(0)
            if any(stream.cut for stream in streams):
                return Flag(0)
    finally:
        os.close(child_fd)
        if pending is not None:
            os.close(input_write)


def _feed(fd: int, pending: memoryview) -> memoryview | None:
    """Write what the pipe takes; None when all of it is written or nobody reads any more."""
    try:
        rest = pending[os.write(fd, pending) :] if pending else pending
    except BlockingIOError:
        return pending
    except OSError:
        return None
    return rest if rest else None


def _kill_all(slot: _Slot, child: int) -> None:
    """kill(-1) reaches all of the slot's process namespace at once: no fork can slip through it."""
    with contextlib.suppress(ProcessLookupError):
        if slot.pid_namespace:
            os.kill(-1, signal.SIGKILL)
        else:
            os.kill(child, signal.SIGKILL)
            os.killpg(child, signal.SIGKILL)


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
