"""A session's slot: a tree of parked interpreters, each the state that one cell left.

A cell runs in a fork of the state it starts from. If it ends, the fork parks and is the new state; if it dies or
hits a limit, the old state is still there. Parked states are stopped (SIGSTOP), so nothing of theirs runs between
cells. Their messages are untrusted: user code ran in them. This controller is the init of the process namespace, holds
the only sockets and deadlines, and never waits for a state without one.

A state may be the base of several cells, of branches that share nothing. So it learns nothing of them: it gets the
descriptors of the fork and a byte, and is stopped again before the fork gets the code.
"""

import array
import contextlib
import errno
import hashlib
import os
import random
import resource
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rstar2.sandbox.isolation import confine, linux
from rstar2.sandbox.notebooks import scratch_files
from rstar2.sandbox.slots import interpreter, wire
from rstar2.sandbox.slots.watch import Stream, Watch, close_streams, cut_flags, new_streams, start_streams
from rstar2.sandbox.slots.wire import Flag, RequestHeader

try:
    from rstar2.sandbox.slots import _fork as fast_fork  # type: ignore[attr-defined]
except ImportError:
    fast_fork = None

_ROOT_STATE = 0
_HANDSHAKE_S = 15.0
_DEATH_S = 10.0
"""How long killed processes may take to end: a hundred of them on a busy machine take seconds."""
_EXTRA_PROCESSES = 64
"""Parked states count against the process limit too."""
_CREDENTIALS = struct.Struct("=iII")
_FORK, _HELLO = b"f", b"h"
_DONE = struct.Struct("=BiQI")
"""Marker, exit code, CPU microseconds, peak KiB."""


_NO_FLAGS = Flag(0)


class _SpoiledError(Exception):
    """A cell left processes that do not end, or so many that their ids began anew."""


class _StateLostError(Exception):
    """A state did not answer as a parked state does."""


@dataclass(frozen=True)
class _State:
    pid: int
    channel: socket.socket


@dataclass
class _Cell:
    """One running cell, as the controller sees it."""

    started: float
    channel: socket.socket
    pid: int
    process_fd: int
    watch: Watch
    inodes: tuple[int, ...]
    """Of the descriptors that it was given."""
    flags: Flag = _NO_FLAGS
    wait_status: int = 0
    kept: bool = False
    cpu_us: int = 0
    max_rss_kib: int = 0


# ---- the controller ----


def serve(
    socket_fd: int,
    uid: int,
    pid_namespace: bool,
    base_data_bytes: int,
    base_address_bytes: int,
    *,
    controller_filter: bytes,
    cell_filter: bytes,
) -> None:
    """Answer the host until it exits. Never returns. The filters are of system calls; empty: none."""
    caller = socket.socket(fileno=socket_fd)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # where it has the uid of its cells, they could send it
    try:
        limits = RequestHeader.unpack(_receive(caller, wire.REQUEST.size))
        controller = _Controller(caller, uid, pid_namespace)
        controller.start_root(limits, base_data_bytes, base_address_bytes, cell_filter)
        if controller_filter:
            linux.install_seccomp_filter(controller_filter)
        while True:
            operation, base, new = wire.SESSION_REQUEST.unpack(_receive(caller, wire.SESSION_REQUEST.size))
            if operation == wire.OPERATION_DROP:
                controller.drop(base)
            elif operation != wire.OPERATION_RUN:
                path_len, data_len = wire.FILE_REQUEST.unpack(_receive(caller, wire.FILE_REQUEST.size))
                path, data = _receive(caller, path_len).decode(), _receive(caller, data_len)
                caller.sendall(controller.use_files(operation, path, data))
            else:
                header = RequestHeader.unpack(_receive(caller, wire.REQUEST.size))
                code, stdin = _receive(caller, header.code_len), _receive(caller, header.stdin_len)
                try:
                    reply = controller.run(base, new, header, code, stdin)
                except EOFError:
                    raise
                except Exception:  # whatever it is, the cell caused it, and the host must know
                    caller.sendall(_without_output(wire.TREE_SPOILED))
                    raise EOFError from None
                caller.sendall(reply)
    except (EOFError, OSError):
        pass
    finally:
        os._exit(0)


def _without_output(wait_status: int, fingerprint: int = 0) -> bytes:
    return _with_data(wait_status, fingerprint, b"")


def _with_data(wait_status: int, fingerprint: int, data: bytes) -> bytes:
    return wire.no_state(fingerprint) + wire.REPLY.pack(wait_status, 0, len(data), 0, 0, 0, 0, 0) + data


def _receive(channel: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        piece = channel.recv(min(length - len(data), 1 << 20))
        if not piece:
            raise EOFError
        data += piece
    return bytes(data)


class _Controller:
    def __init__(self, caller: socket.socket, uid: int, pid_namespace: bool) -> None:
        self._caller = caller
        self._uid = uid
        self._pid_namespace = pid_namespace
        self._states: dict[int, _State] = {}
        self._empty_scratch = _scratch_usage()
        self._swept_to = 1
        self._streams: tuple[Stream, ...] = ()

    def start_root(
        self, limits: RequestHeader, base_data_bytes: int, base_address_bytes: int, cell_filter: bytes
    ) -> None:
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            try:
                ours.close()
                self._caller.close()
                _confine_root(limits, self._uid, base_data_bytes, base_address_bytes)
                tid_address = fast_fork.tid_address() if fast_fork is not None else 0
                if cell_filter:
                    linux.install_seccomp_filter(cell_filter)
                interpreter.reseed()
                _state_loop(theirs, interpreter.new_main().__dict__, tid_address)
            finally:
                os._exit(117)
        theirs.close()
        self._states[_ROOT_STATE] = _State(pid, ours)
        self._streams = new_streams()

    def drop(self, number: int) -> None:
        state = self._states.pop(number, None)
        if state is not None:
            state.channel.close()
            _kill(state.pid)
        _reap()

    def use_files(self, operation: int, path: str, data: bytes) -> bytes:
        """Nothing of the session runs meanwhile: its states are stopped."""
        error_number, content = 0, b""
        try:
            with _as_user(self._uid):
                if operation == wire.OPERATION_PUT:
                    scratch_files.put(path, data)
                elif operation == wire.OPERATION_READ:
                    content = scratch_files.read(path)
                else:
                    content = wire.encode_files(scratch_files.listed())
        except OSError as error:
            error_number = error.errno or errno.EIO
        except (RecursionError, MemoryError):
            error_number = errno.ENAMETOOLONG
        return _with_data(error_number, _scratch_fingerprint(self._empty_scratch, self._uid), content)

    def run(self, base: int, new: int, header: RequestHeader, code: bytes, stdin: bytes) -> bytes:
        try:
            cell = self._start(self._states[base], header, code, stdin)
        except (_StateLostError, OSError, EOFError):
            return self._reply(None)
        streams = self._streams
        try:
            cell.flags = cell.watch.until_end(cell.started)
        finally:
            os.close(cell.process_fd)
            cell.watch.close_stdin()
        if not cell.flags:
            _read_done(cell)
            for stream in streams:
                stream.drain()
        cell.flags |= cut_flags(streams)
        cell.kept = cell.kept and not cell.flags
        if cell.kept:
            os.kill(cell.pid, signal.SIGSTOP)
            self._states[new] = _State(cell.pid, cell.channel)
        else:
            cell.channel.close()
            _kill(cell.pid)
            self._wait_for_end(cell)
        self._end_stragglers()
        close_streams(streams)
        if cell.watch.is_asking:  # the cell's end has overtaken the answer
            cell.watch.receive_more_time()
        reply = self._reply(cell)
        for stream in streams:
            stream.buffer.clear()
        return reply

    def _start(self, base: _State, header: RequestHeader, code: bytes, stdin: bytes) -> _Cell:
        """Send the base the descriptors of its fork; the kernel reports the fork's process id. Then, with the base
        stopped again, send the fork the rest."""
        ours, theirs = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        input_read, input_write = os.pipe()
        pipes = [os.pipe() for _ in range(3)]
        given = [theirs.fileno(), input_read, *(write_end for _, write_end in pipes)]
        try:
            base.channel.settimeout(_HANDSHAKE_S)
            os.kill(base.pid, signal.SIGCONT)
            packed = array.array("i", given).tobytes()
            base.channel.sendmsg([_FORK], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, packed)])
            inodes = tuple(os.fstat(fd).st_ino for fd in given)
            theirs.close()  # so that the end of the state is seen at once
            ours.settimeout(_HANDSHAKE_S)
            pid = _receive_hello(ours)
            if self._pid_namespace and pid <= self._swept_to:
                raise _StateLostError  # the base itself, or another state, and no fork
            _wait_until_forked(base, pid)
            _stop(base.pid)
            ours.sendall(header.pack() + code)
        except BaseException:
            for fd in (input_write, *(read_end for read_end, _ in pipes)):
                os.close(fd)
            ours.close()
            raise
        finally:
            theirs.close()
            os.close(input_read)
            for _, write_end in pipes:
                os.close(write_end)
            with contextlib.suppress(ProcessLookupError):
                os.kill(base.pid, signal.SIGSTOP)
        ours.setblocking(False)
        start_streams(self._streams, [read_end for read_end, _ in pipes], header)
        process_fd = os.pidfd_open(pid)
        watch = Watch(
            *(self._caller, header, self._streams, memoryview(stdin), input_write),
            end_fds=(ours.fileno(), process_fd),  # its own end too: other processes may hold its channel
            question_prefix=wire.no_state(),
        )
        # Its time begins here: a state that this machine let wait for its turn to fork has not run the cell yet.
        return _Cell(time.monotonic(), ours, pid, process_fd, watch, inodes)

    def _wait_for_end(self, cell: _Cell) -> None:
        until = time.monotonic() + _DEATH_S
        while True:
            try:
                _, status, used = os.wait4(cell.pid, 0)
                break
            except ChildProcessError:  # its parent has not ended yet, so it is not our child so far
                if time.monotonic() > until:
                    raise _SpoiledError from None
                time.sleep(0.001)
        if not cell.flags:
            cell.wait_status = status
        cell.cpu_us = int((used.ru_utime + used.ru_stime) * 1e6)
        cell.max_rss_kib = used.ru_maxrss

    def _end_stragglers(self) -> None:
        """End whatever the cell left running: all that is not parked and younger than the last sweep. Process ids are
        given out in order; when they no longer are, or a process does not end, the tree ends, and the host rebuilds it.
        """
        if not self._pid_namespace:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGSTOP)  # reaches all at once: from here on no process forks
        parked = {state.pid for state in self._states.values()}
        highest = _latest_pid()
        if highest < self._swept_to:
            raise _SpoiledError
        killed = [pid for pid in range(self._swept_to + 1, highest) if pid not in parked and _kill_process(pid)]
        self._swept_to = highest
        if any(_is_running(pid) for pid in killed):
            raise _SpoiledError
        _reap()

    def _reply(self, cell: _Cell | None) -> bytes:
        fingerprint = _scratch_fingerprint(self._empty_scratch, self._uid)
        if cell is None:
            return _without_output(wire.STATE_LOST, fingerprint)  # it could not even fork, whatever the reason
        bodies = [stream.content for stream in self._streams]
        wall_us = int((time.monotonic() - cell.started) * 1e6)
        numbers = wire.REPLY.pack(
            cell.wait_status,
            cell.flags,
            *map(len, bodies),
            cell.max_rss_kib & 0xFFFFFFFF,
            wall_us,
            cell.cpu_us,
        )
        facts = wire.SESSION_REPLY.pack(cell.kept, fingerprint, cell.pid, *cell.inodes)
        return b"".join([facts, numbers, *bodies])


def _receive_hello(channel: socket.socket) -> int:
    """The kernel attaches the sender's true process id; nothing in the message itself is trusted."""
    data, ancillary, _, _ = channel.recvmsg(1, socket.CMSG_SPACE(_CREDENTIALS.size))
    for level, kind, content in ancillary:
        if data == _HELLO and level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            pid: int = _CREDENTIALS.unpack(content[: _CREDENTIALS.size])[0]
            return pid
    raise _StateLostError


def _wait_until_forked(base: _State, pid: int) -> None:
    """Until the base has closed what was for its fork: one that is stopped earlier would park with it open."""
    try:
        if base.channel.recv(1):
            return
    except OSError:
        pass
    _kill(pid)
    raise _StateLostError


def _stop(pid: int) -> None:
    """Stop a state, and wait until it is: a signal takes a moment, and a thread that waits for a child much longer."""
    os.kill(pid, signal.SIGSTOP)
    until = time.monotonic() + _HANDSHAKE_S
    while os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        if time.monotonic() > until:
            raise _StateLostError
        time.sleep(0.0001)


def _read_done(cell: _Cell) -> None:
    try:
        message = cell.channel.recv(_DONE.size)
    except OSError:
        return
    if len(message) == _DONE.size:
        _, code, cell.cpu_us, cell.max_rss_kib = _DONE.unpack(message)
        cell.wait_status = (code & 0xFF) << 8
        cell.kept = True


def _kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _kill_process(pid: int) -> bool:
    """False for the id of a thread, which has no process descriptor: a plain kill would end the thread's process."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        signal.pidfd_send_signal(fd, signal.SIGKILL)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def _is_running(pid: int) -> bool:
    """Wait for a killed process to end; one that its parent has not reaped counts as ended."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        return not select.select([fd], [], [], _DEATH_S)[0]
    finally:
        os.close(fd)


def _latest_pid() -> int:
    if fast_fork is not None:
        latest: int = fast_fork.latest_pid()
        return latest
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return pid


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _scratch_usage() -> tuple[int, ...]:
    """What a cell can see of the scratch directory besides its entries: files that were made and removed, or that are
    still open, show here."""
    usage, facts = os.statvfs("."), Path().stat()
    return usage.f_ffree, usage.f_bfree, facts.st_mode, facts.st_nlink, facts.st_mtime_ns, facts.st_ctime_ns


def _scratch_fingerprint(when_empty: tuple[int, ...], uid: int) -> int:
    """0 while the scratch directory is untouched, else a digest of what is in it. Read as the cells' user, who alone
    may enter all folders, and by descriptor, because a path may be too long. What cannot be read even so counts as
    changed."""
    usage = _scratch_usage()
    if usage == when_empty:
        return 0
    digest = hashlib.blake2b(repr(usage).encode(), digest_size=8)
    try:
        with _as_user(uid):
            for path, folders, names, folder_fd in os.fwalk(".", onerror=_raise):
                folders.sort()
                for name in sorted([*folders, *names]):
                    facts = os.lstat(name, dir_fd=folder_fd)
                    # The time of change, unlike that of modification, cannot be set back.
                    line = f"{path}/{name}\0{facts.st_mode}\0{facts.st_size}\0{facts.st_ctime_ns}\0{facts.st_ino}\n"
                    digest.update(line.encode("utf-8", "surrogateescape"))
    except (OSError, RecursionError):
        digest.update(os.urandom(8))
    return int.from_bytes(digest.digest(), "little") or 1


@contextlib.contextmanager
def _as_user(uid: int) -> Iterator[None]:
    """With the rights of the session's cells, who alone may enter all of their folders."""
    if uid >= 0:
        os.setresuid(-1, uid, -1)
    try:
        yield
    finally:
        if uid >= 0:
            os.setresuid(-1, 0, -1)


def _raise(error: OSError) -> None:
    raise error


# ---- a state: what runs in the parked interpreters ----


def _confine_root(limits: RequestHeader, uid: int, base_data_bytes: int, base_address_bytes: int) -> None:
    """Hard limits of the session: no cell can raise them, and every cell inherits them."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    confine.limit_open_files()
    values = {
        resource.RLIMIT_DATA: base_data_bytes + limits.data_bytes,
        resource.RLIMIT_FSIZE: limits.file_bytes,
        resource.RLIMIT_NPROC: limits.num_processes + _EXTRA_PROCESSES,
    }
    if limits.address_bytes:
        values[resource.RLIMIT_AS] = base_address_bytes + limits.address_bytes
    for kind, value in values.items():
        resource.setrlimit(kind, (value, value))
    if uid >= 0:
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)


# Bound here, so that a cell that replaces `os.fork` and the like does not break its own session.
_fork, _exit, _waitpid, _dup2, _close, _closerange = os.fork, os._exit, os.waitpid, os.dup2, os.close, os.closerange
_getstate, _setstate = random.getstate, random.setstate
_fork_sibling = fast_fork.fork_sibling if fast_fork is not None else None
_threads: dict[object, object] = threading._active  # type: ignore[attr-defined]
_getrusage, _setrlimit = resource.getrusage, resource.setrlimit


def _make_fork(tid_address: int) -> Callable[[], bool]:
    """Forks a child of the controller, which alone reaps it; whether we are still the one that forked."""

    def fork_cell() -> bool:
        if _fork_sibling is not None and tid_address and len(_threads) == 1:
            return bool(_fork_sibling(tid_address))
        middle = _fork()
        if middle:
            _waitpid(middle, 0)
            return True
        if _fork():
            _exit(0)
        return False

    return fork_cell


def _state_loop(channel: socket.socket, namespace: dict[str, object], tid_address: int) -> None:
    """Park; fork for each cell that arrives. The fork runs the cell and then parks in this same loop."""
    number = 0
    fork_cell = _make_fork(tid_address)
    while True:
        message, ancillary, _, _ = channel.recvmsg(len(_FORK), socket.CMSG_SPACE(4 * 5))
        if message != _FORK or not ancillary:
            _exit(0)
        fds = array.array("i")
        fds.frombytes(ancillary[0][2][:20])
        generator = _getstate()  # a fork hook would reseed it, and a cell's random.seed(1) must hold in the next
        try:
            is_base = fork_cell()
        except BlockingIOError:  # what earlier cells started and never waited for still counts against the limit
            _reap()
            is_base = fork_cell()
        if is_base:
            for fd in fds:
                _close(fd)
            channel.send(_HELLO)
            continue
        _setstate(generator)
        channel.close()
        channel = _take_descriptors(fds)
        channel.send(_HELLO)  # the kernel adds our process id
        header = RequestHeader.unpack(_receive(channel, wire.REQUEST.size))
        source = _receive(channel, header.code_len)
        number += 1
        if sys.stdin is sys.__stdin__:  # what an earlier cell left unread in its buffer was not for this one
            interpreter.open_stdin()
        _setrlimit(resource.RLIMIT_CPU, (header.cpu_s, resource.RLIM_INFINITY))
        code = interpreter.run_cell(source, namespace, f"<cell {number}>")
        _setrlimit(resource.RLIMIT_CPU, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
        used = _getrusage(resource.RUSAGE_SELF)
        code = code if code >= 0 else interpreter.EXIT_RAISED
        channel.send(_DONE.pack(1, code, int((used.ru_utime + used.ru_stime) * 1e6), used.ru_maxrss))


def _take_descriptors(fds: "array.array[int]") -> socket.socket:
    """Streams to 0..3, the channel above them, nothing else open but what earlier cells opened themselves."""
    for target, fd in enumerate(fds[1:]):
        _dup2(fd, target, inheritable=target != interpreter.VALUE_FD)
    for fd in fds[1:]:
        if fd > interpreter.VALUE_FD:
            _close(fd)
    return socket.socket(fileno=fds[0])
