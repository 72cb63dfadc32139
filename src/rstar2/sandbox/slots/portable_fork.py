"""The portable twin of `_fork.c`: the same loops in Python, for machines without a compiler.

Slower (an ordinary fork copies the page tables of the warm interpreter) and otherwise the same, which the tests hold
it to: the whole attack suite runs on both.
"""

import array
import contextlib
import math
import mmap
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

from rstar2.sandbox.execution import MAX_OUTPUT_BYTES
from rstar2.sandbox.isolation import linux
from rstar2.sandbox.slots import interpreter
from rstar2.sandbox.slots.wire import (
    GOODBYE,
    MAX_CODE_BYTES,
    MAX_STDIN_BYTES,
    MORE_TIME,
    REPLY,
    REQUEST,
    SLOT_ANSWER,
    SLOT_MESSAGE,
    Flag,
    RequestHeader,
    question,
)

_OLD_NICE = 19
_VALUE_FD = 3
_MAX_FDS = 4
_CUT_FLAGS = (Flag.STDOUT_CUT, Flag.STDERR_CUT, Flag.VALUE_CUT)


SlotFacts = tuple[int, int, bool, int, int]
"""Socket, uid (< 0: stay who we are), whether in a process namespace of its own, bytes of data and of address space
that are the interpreter's own."""


def park(
    control_fd: int,
    proc_fd: int,  # noqa: ARG001 - for what the fast path does with its memory
    new_namespaces: bool,
    slot_main: Callable[[bytes, tuple[int, ...]], SlotFacts],
    filter_program: bytes,
    rehearse: Callable[[], None],
    run: Callable[[bytes], int],
    twisters: tuple[tuple[int, int], ...],  # noqa: ARG001 - here their own seed functions are called
) -> bool:
    """Fork a slot for each message, as the init of a new process namespace if so asked. Returns whether it was told to
    end, or found itself abandoned."""
    control = socket.socket(fileno=control_fd)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # slots are reaped by nobody; their end is seen on their sockets

    def serve_as_slot(message: bytes, fds: tuple[int, ...]) -> None:
        try:
            control.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            facts = slot_main(message, fds)
            rehearse()
            if filter_program:
                linux.install_seccomp_filter(filter_program)
            _serve(facts, run)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(113)

    while True:
        try:
            message, ancillary, _, _ = control.recvmsg(64, socket.CMSG_SPACE(4 * _MAX_FDS))
        except OSError:
            return False
        if not message:
            return False
        if message == GOODBYE:
            return True
        fds = array.array("i")
        for _, _, data in ancillary:
            fds.frombytes(data[: len(data) - len(data) % 4])
        try:
            pid = linux.fork_into_new_pid_namespace() if new_namespaces else os.fork()
            if pid == 0:
                serve_as_slot(message, tuple(fds))
        except OSError as error:
            pid = -(error.errno or 1)
        for fd in fds:
            os.close(fd)
        try:
            control.send(SLOT_ANSWER.pack(SLOT_MESSAGE.unpack(message)[2], pid))
        except OSError:  # the host was killed between its question and the answer
            return False


class _Buffer:
    """Memory that is not part of Python's heap. Unless `inherited`, forks do not have it at all."""

    def __init__(self, num_bytes: int, *, inherited: bool) -> None:
        self._map = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if not inherited:
            self._map.madvise(mmap.MADV_DONTFORK)
        self.view = memoryview(self._map)

    def clear(self) -> None:
        self._map.madvise(mmap.MADV_DONTNEED)


@dataclass
class _Stream:
    buffer: _Buffer
    fd: int = -1
    limit: int = 0
    length: int = 0
    cut: bool = False

    def start(self, fd: int, limit: int) -> None:
        self.fd, self.limit, self.length, self.cut = fd, limit, 0, False

    def drain(self) -> bool:
        """Read what is there; False when the writers are all gone."""
        while True:
            room = self.limit - self.length
            try:
                if room:
                    got = os.readv(self.fd, [self.buffer.view[self.length : self.limit]])
                else:
                    got = len(os.read(self.fd, 1))
            except BlockingIOError:
                return True
            if not got:
                return False
            if not room:
                self.cut = True
                return True
            self.length += got


@dataclass(frozen=True)
class _Slot:
    caller: socket.socket
    run: Callable[[bytes], int]
    uid: int
    pid_namespace: bool
    base_data_bytes: int
    base_address_bytes: int
    scratch: tuple[int, ...]
    code: _Buffer
    stdin: _Buffer
    streams: tuple[_Stream, ...]


def _serve(facts: SlotFacts, run: Callable[[bytes], int]) -> None:
    """Answer requests until the caller is gone or the scratch directory is no longer as it was. Never returns.

    A later child inherits this interpreter's heap and frames, so nothing of a request or a reply ever enters them."""
    socket_fd, uid, pid_namespace, base_data_bytes, base_address_bytes = facts
    caller = socket.socket(fileno=socket_fd)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # where it has the uid of its programs, they could send it
    slot = _Slot(
        *(caller, run, uid, pid_namespace, base_data_bytes, base_address_bytes, _scratch_state()),
        code=_Buffer(MAX_CODE_BYTES, inherited=True),
        stdin=_Buffer(MAX_STDIN_BYTES, inherited=False),
        streams=tuple(_Stream(_Buffer(MAX_OUTPUT_BYTES + 1, inherited=False)) for _ in range(3)),
    )
    header_bytes = bytearray(REQUEST.size)
    with contextlib.suppress(OSError, EOFError):
        while True:
            _receive(caller, memoryview(header_bytes))
            header = RequestHeader.unpack(bytes(header_bytes))
            if header.code_len > MAX_CODE_BYTES or header.stdin_len > MAX_STDIN_BYTES:
                os._exit(122)
            if header.output_bytes > MAX_OUTPUT_BYTES:
                os._exit(122)
            _receive(caller, slot.code.view[: header.code_len])
            _receive(caller, slot.stdin.view[: header.stdin_len])
            numbers, flags = _execute(slot, header)
            _send(caller, numbers, slot.streams)
            for buffer in (slot.stdin, *(stream.buffer for stream in slot.streams)):
                buffer.clear()
            if Flag.SCRATCH_DIRTY in flags:
                break
    os._exit(0)


def _receive(caller: socket.socket, place: memoryview) -> None:
    while place:
        got = caller.recv_into(place)
        if not got:
            raise EOFError
        place = place[got:]


def _send(caller: socket.socket, numbers: bytes, streams: tuple[_Stream, ...]) -> None:
    caller.sendall(numbers)
    for stream in streams:
        caller.sendall(stream.buffer.view[: stream.length])


def _scratch_state() -> tuple[int, ...]:
    """Empty where it cannot even be looked at, which equals no state that a slot starts with."""
    try:
        usage, facts = os.statvfs("."), Path().stat()
    except OSError:
        return ()
    return usage.f_files - usage.f_ffree, facts.st_mode, facts.st_mtime_ns, facts.st_ctime_ns


def _execute(slot: _Slot, header: RequestHeader) -> tuple[bytes, Flag]:
    input_read, input_write = os.pipe()
    pipes = [os.pipe() for _ in range(3)]
    for (read_end, _), stream in zip(pipes, slot.streams, strict=True):
        os.set_blocking(read_end, False)
        stream.start(read_end, header.output_bytes + (stream is slot.streams[-1]))  # the value has a tag before it
    started, cpu_before = time.monotonic(), _children_cpu_s()
    child = os.fork()
    if child == 0:
        _run_child(slot, header, input_read, [write_end for _, write_end in pipes])
    slot.code.clear()
    os.close(input_read)
    for _, write_end in pipes:
        os.close(write_end)
    flags = _collect(slot, header, child, input_write, started)
    _kill_all(slot, child)
    _, status, used = os.wait4(child, 0)
    if slot.pid_namespace:
        with contextlib.suppress(ChildProcessError):
            while True:
                os.wait()
    for stream, flag in zip(slot.streams, _CUT_FLAGS, strict=True):
        if not stream.cut:
            stream.drain()
        os.close(stream.fd)
        if stream.cut:
            flags |= flag
    if _scratch_state() != slot.scratch:
        flags |= Flag.SCRATCH_DIRTY
    lengths = [stream.length for stream in slot.streams]
    wall_us, cpu_us = (time.monotonic() - started) * 1e6, (_children_cpu_s() - cpu_before) * 1e6
    return REPLY.pack(status, flags, *lengths, used.ru_maxrss, int(wall_us), int(cpu_us)), flags


def _run_child(slot: _Slot, header: RequestHeader, stdin_fd: int, write_ends: list[int]) -> None:
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.dup2(stdin_fd, 0)
        for number, write_end in enumerate(write_ends, start=1):
            os.dup2(write_end, number, inheritable=number != _VALUE_FD)
        os.closerange(_VALUE_FD + 1, 1 << 16)
        apply_limits(header, slot.base_data_bytes, slot.base_address_bytes)
        if slot.uid >= 0:
            os.setresgid(slot.uid, slot.uid, slot.uid)
            os.setresuid(slot.uid, slot.uid, slot.uid)
        interpreter.reseed()
        os._exit(slot.run(bytes(slot.code.view[: header.code_len])))
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
    for kind, (soft, hard) in pairs.items():
        _, most = resource.getrlimit(kind)
        if most != resource.RLIM_INFINITY:  # a lower one of the machine's own holds
            soft, hard = min(soft, most), min(hard, most)
        resource.setrlimit(kind, (soft, hard))


def _collect(
    slot: _Slot,
    header: RequestHeader,
    child: int,
    input_write: int,
    started: float,
) -> Flag:
    """Feed stdin and drain output until the child ends, a limit is hit or the caller is gone."""
    child_fd = os.pidfd_open(child)
    os.set_blocking(input_write, False)
    poller = select.poll()
    poller.register(child_fd, select.POLLIN)
    poller.register(slot.caller, select.POLLIN | select.POLLRDHUP)
    poller.register(input_write, select.POLLOUT)
    open_streams = {stream.fd: stream for stream in slot.streams}
    for fd in open_streams:
        poller.register(fd, select.POLLIN)
    pending: memoryview | None = slot.stdin.view[: header.stdin_len]
    last, old_at = started + header.longest_ms / 1000, started + header.young_ms / 1000
    ask_at, is_asking = started + header.wall_ms / 1000, False
    try:
        while True:
            now = time.monotonic()
            if now >= last:
                return Flag.TIMED_OUT
            if now >= ask_at:
                slot.caller.sendall(question(now - started))
                ask_at, is_asking = math.inf, True
            if now >= old_at:
                kind, who = (os.PRIO_USER, slot.uid) if slot.uid >= 0 else (os.PRIO_PGRP, child)
                with contextlib.suppress(OSError):
                    os.setpriority(kind, who, _OLD_NICE)
                old_at = math.inf
            for fd, _ in poller.poll((min(last, ask_at, old_at) - now) * 1000 + 1):
                if fd == slot.caller.fileno():
                    more_ms = _receive_more_time(slot) if is_asking else None
                    if more_ms is None:
                        _kill_all(slot, child)
                        os._exit(0)
                    ask_at, is_asking = time.monotonic() + more_ms / 1000, False
                    if not more_ms:
                        return Flag.TIMED_OUT
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
            if any(stream.cut for stream in slot.streams):
                return Flag(0)
    finally:
        os.close(child_fd)
        if pending is not None:
            os.close(input_write)
        if is_asking:  # the program's end has overtaken the answer
            _kill_all(slot, child)
            _receive_more_time(slot)


def _receive_more_time(slot: _Slot) -> int | None:
    """None if the caller is gone."""
    answer = bytearray(MORE_TIME.size)
    try:
        _receive(slot.caller, memoryview(answer))
    except (OSError, EOFError):
        return None
    more_ms: int = MORE_TIME.unpack(answer)[0]
    return more_ms


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
