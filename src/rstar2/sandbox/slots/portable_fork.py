"""The loops of `_fork.c` in Python, for machines without a compiler.

They are slower, since an ordinary fork copies the page tables of the warm interpreter, but behave the same: the attack
suite runs on both.
"""

import array
import contextlib
import os
import resource
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
from rstar2.sandbox.slots.watch import (
    Buffer,
    Stream,
    Watch,
    close_streams,
    cut_flags,
    new_streams,
    receive_into,
    start_streams,
)
from rstar2.sandbox.slots.wire import (
    GOODBYE,
    MAX_SOURCE_BYTES,
    MAX_STDIN_BYTES,
    REPLY,
    REQUEST,
    SLOT_ANSWER,
    SLOT_MESSAGE,
    Flag,
    RequestHeader,
)

_OLD_NICE = 19
_MAX_FDS = 4


SlotFacts = tuple[int, int, bool, int, int]
"""Socket, uid (< 0: keep the current one), whether the slot has its own process namespace, and the interpreter's own
bytes of data and of address space."""


def park(
    control_fd: int,
    proc_fd: int,  # noqa: ARG001 - only the fast path uses it
    new_namespaces: bool,
    slot_main: Callable[[bytes, tuple[int, ...]], SlotFacts],
    filter_program: bytes,
    rehearse: Callable[[], None],
    run: Callable[[bytes], int],
    twisters: tuple[tuple[int, int], ...],  # noqa: ARG001 - their own seed functions are called instead
) -> bool:
    """Fork a slot for each message, as the init of a new process namespace if `new_namespaces`. Returns True if it was
    asked to end, False if its host has exited."""
    control = socket.socket(fileno=control_fd)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # slots are not reaped; their sockets report their end

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
        except OSError:  # the host was killed before the answer
            return False


@dataclass(frozen=True)
class _Slot:
    caller: socket.socket
    run: Callable[[bytes], int]
    uid: int
    pid_namespace: bool
    base_data_bytes: int
    base_address_bytes: int
    scratch: tuple[int, ...]
    code: Buffer
    stdin: Buffer
    streams: tuple[Stream, ...]


def _serve(facts: SlotFacts, run: Callable[[bytes], int]) -> None:
    """Answer requests until the caller has closed the socket or a program has left a trace: files, or the ids of its
    processes. Never returns.

    A later child inherits this interpreter's heap and frames, so no part of a request or a reply ever enters them."""
    socket_fd, uid, pid_namespace, base_data_bytes, base_address_bytes = facts
    caller = socket.socket(fileno=socket_fd)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # without a uid of their own, programs could send it
    slot = _Slot(
        *(caller, run, uid, pid_namespace, base_data_bytes, base_address_bytes, _scratch_state()),
        code=Buffer(MAX_SOURCE_BYTES, inherited=True),
        stdin=Buffer(MAX_STDIN_BYTES, inherited=False),
        streams=new_streams(),
    )
    header_bytes = bytearray(REQUEST.size)
    with contextlib.suppress(OSError, EOFError):
        while True:
            receive_into(caller, memoryview(header_bytes))
            header = RequestHeader.unpack(bytes(header_bytes))
            if header.code_len > MAX_SOURCE_BYTES or header.stdin_len > MAX_STDIN_BYTES:
                os._exit(122)
            if header.output_bytes > MAX_OUTPUT_BYTES or header.value_bytes > MAX_OUTPUT_BYTES + 1:
                os._exit(122)
            receive_into(caller, slot.code.view[: header.code_len])
            receive_into(caller, slot.stdin.view[: header.stdin_len])
            numbers, flags = _execute(slot, header)
            caller.sendall(numbers)
            for stream in slot.streams:
                caller.sendall(stream.content)
            for buffer in (slot.stdin, *(stream.buffer for stream in slot.streams)):
                buffer.clear()
            if Flag.USED_UP in flags:
                break
    os._exit(0)


def _scratch_state() -> tuple[int, ...]:
    """The scratch directory's state; empty if unreadable, which equals no state at a slot's start."""
    try:
        usage, facts = os.statvfs("."), Path().stat()
    except OSError:
        return ()
    return usage.f_files - usage.f_ffree, facts.st_mode, facts.st_mtime_ns, facts.st_ctime_ns


def _execute(slot: _Slot, header: RequestHeader) -> tuple[bytes, Flag]:
    input_read, input_write = os.pipe()
    pipes = [os.pipe() for _ in slot.streams]
    start_streams(slot.streams, [read_end for read_end, _ in pipes], header)
    started, cpu_before = time.monotonic(), _children_cpu_s()
    child = os.fork()
    if child == 0:
        _run_child(slot, header, input_read, [write_end for _, write_end in pipes])
    slot.code.clear()
    os.close(input_read)
    for _, write_end in pipes:
        os.close(write_end)
    child_fd = os.pidfd_open(child)

    def lower_share() -> None:
        kind, who = (os.PRIO_USER, slot.uid) if slot.uid >= 0 else (os.PRIO_PGRP, child)
        with contextlib.suppress(OSError):
            os.setpriority(kind, who, _OLD_NICE)

    stdin = slot.stdin.view[: header.stdin_len]
    watch = Watch(slot.caller, header, slot.streams, stdin, input_write, (child_fd,), on_old=lower_share)
    try:
        flags = watch.until_end(started)
    finally:
        _kill_all(slot, child)
    _, status, used = os.wait4(child, 0)
    if slot.pid_namespace:
        with contextlib.suppress(ChildProcessError):
            while True:
                os.wait()
    watch.close_stdin()
    os.close(child_fd)
    close_streams(slot.streams)
    flags |= cut_flags(slot.streams)
    if _scratch_state() != slot.scratch or (slot.pid_namespace and _newest_pid() != child + 1):
        flags |= Flag.USED_UP
    if watch.is_asking:  # the program ended before the answer came
        watch.receive_more_time()
    lengths = [stream.length for stream in slot.streams]
    wall_us, cpu_us = (time.monotonic() - started) * 1e6, (_children_cpu_s() - cpu_before) * 1e6
    return REPLY.pack(status, flags, *lengths, used.ru_maxrss, int(wall_us), int(cpu_us)), flags


def _run_child(slot: _Slot, header: RequestHeader, stdin_fd: int, write_ends: list[int]) -> None:
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.dup2(stdin_fd, 0)
        for number, write_end in enumerate(write_ends, start=1):
            os.dup2(write_end, number, inheritable=number != interpreter.VALUE_FD)
        os.closerange(interpreter.VALUE_FD + 1, 1 << 16)
        apply_limits(header, slot.base_data_bytes, slot.base_address_bytes)
        if slot.uid >= 0:
            os.setresgid(slot.uid, slot.uid, slot.uid)
            os.setresuid(slot.uid, slot.uid, slot.uid)
        interpreter.reseed()
        os._exit(slot.run(bytes(slot.code.view[: header.code_len])))
    finally:
        os._exit(117)


def apply_limits(header: RequestHeader, base_data_bytes: int, base_address_bytes: int) -> None:
    """Set a program's limits, before the uid changes: then they can only be lowered."""
    pairs = {
        resource.RLIMIT_CPU: (header.cpu_s, header.cpu_s + 1),
        resource.RLIMIT_FSIZE: (header.file_bytes,) * 2,
        resource.RLIMIT_NPROC: (header.num_processes,) * 2,
        resource.RLIMIT_DATA: (base_data_bytes + header.data_bytes,) * 2,
    }
    if header.address_bytes:
        pairs[resource.RLIMIT_AS] = (base_address_bytes + header.address_bytes,) * 2
    for kind, (soft, hard) in pairs.items():
        _, hard_limit = resource.getrlimit(kind)
        if hard_limit != resource.RLIM_INFINITY:  # a lower limit of the machine stays
            soft, hard = min(soft, hard_limit), min(hard, hard_limit)
        resource.setrlimit(kind, (soft, hard))


def _newest_pid() -> int:
    """The next process id of this namespace."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return pid


def _kill_all(slot: _Slot, child: int) -> None:
    """Kill an execution. kill(-1) reaches the whole process namespace at once, so no fork escapes it."""
    with contextlib.suppress(ProcessLookupError):
        if slot.pid_namespace:
            os.kill(-1, signal.SIGKILL)
        else:
            os.kill(child, signal.SIGKILL)
            os.killpg(child, signal.SIGKILL)


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
