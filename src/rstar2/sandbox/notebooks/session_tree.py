"""A session's slot: a tree of parked interpreters, each with the state that one cell left.

A cell runs in a fork of the state it starts from. If the cell ends, the fork parks and is the new state; if the fork
dies or hits a limit, the old state is still there. Parked states are stopped (SIGSTOP), so they run nothing between
cells. Their messages are untrusted: user code ran in them. This controller is the init of the process namespace, holds
the only sockets and deadlines, and never waits for a state without a deadline.

Several cells, of branches that share nothing, may start from one state. So the state must learn nothing of them: it
gets the fork's descriptors and one byte, and is stopped again before the fork gets the code.
"""

import _socket
import array
import contextlib
import errno
import os
import select
import signal
import socket
import struct
import time
from dataclasses import dataclass

from rstar2.sandbox.isolation import linux
from rstar2.sandbox.notebooks import scratch_files, state_loop
from rstar2.sandbox.notebooks.scratch_fingerprint import as_user, scratch_fingerprint, scratch_usage
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
"""How long killed processes may take to exit: a hundred of them on a busy machine take seconds."""
_CREDENTIALS = struct.Struct("=iII")
_NO_FLAGS = Flag(0)


class _SpoiledError(Exception):
    """A cell left processes that cannot be ended, or started so many that process ids wrapped around."""


class _StateLostError(Exception):
    """A parked state did not answer as expected."""


@dataclass(frozen=True)
class _State:
    pid: int
    channel: _socket.socket


@dataclass
class _Cell:
    """One running cell, as the controller sees it."""

    started: float
    channel: _socket.socket
    pid: int
    process_fd: int
    watch: Watch
    inodes: tuple[int, ...]
    """The inodes of the descriptors that the cell was given."""
    input_fd: int
    """A descriptor of the cell's stdin; -1 if it has no stdin."""
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
    """Answer the host until it exits. Never returns. The filters are for system calls; empty: none."""
    caller = socket.socket(fileno=socket_fd)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # without a uid of their own, cells could send it
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
                except Exception:  # the cell caused it, whatever it is, and the host must know
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
        self._empty_scratch = scratch_usage()
        self._swept_to = 1
        self._streams: tuple[Stream, ...] = ()

    def start_root(
        self, limits: RequestHeader, base_data_bytes: int, base_address_bytes: int, cell_filter: bytes
    ) -> None:
        ours, theirs = socket.socketpair()
        ours.settimeout(_HANDSHAKE_S)
        pid = os.fork()
        if pid == 0:
            try:
                ours.close()
                self._caller.close()
                state_loop.confine_root(limits, self._uid, base_data_bytes, base_address_bytes)
                tid_address = state_loop.tid_address()
                if cell_filter:
                    linux.install_seccomp_filter(cell_filter)
                interpreter.reseed()
                state_loop.run(theirs, interpreter.new_main().__dict__, tid_address)
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
        """Put, read or list files, while all states are stopped."""
        error_number, content = 0, b""
        try:
            with as_user(self._uid):
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
        return _with_data(error_number, scratch_fingerprint(self._empty_scratch, self._uid), content)

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
            _discard_input(cell.input_fd)
        if not cell.flags:
            _read_done(cell)
            for stream in streams:
                stream.drain()
        cell.flags |= cut_flags(streams)
        cell.kept = cell.kept and not cell.flags
        if cell.kept:
            if not self._pid_namespace:
                os.kill(cell.pid, signal.SIGSTOP)
            cell.channel.settimeout(_HANDSHAKE_S)
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
            if stream.length:
                stream.buffer.clear()
        return reply

    def _start(self, base: _State, header: RequestHeader, code: bytes, stdin: bytes) -> _Cell:
        """Start a cell: send the base state the descriptors for its fork; the kernel reports the fork's process id.
        Then stop the base again and send the fork the code."""
        ours, theirs = _socket.socketpair()  # without Python's class around it, which takes as long as the call
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        ours.settimeout(_HANDSHAKE_S)
        input_read, input_write = os.pipe()
        pipes = [os.pipe() for _ in range(3)]
        read_ends = [read_end for read_end, _ in pipes]
        their_pipes = [input_read, *(write_end for _, write_end in pipes)]
        given = [theirs.fileno(), *their_pipes]
        input_fd = os.dup(input_read) if stdin else -1
        process_fd = -1
        try:
            os.kill(base.pid, signal.SIGCONT)
            packed = array.array("i", given).tobytes()
            base.channel.sendmsg([state_loop.FORK], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, packed)])
            # While the base forks:
            inodes = tuple(os.fstat(fd).st_ino for fd in given)
            theirs.close()  # so that the end of the state is seen at once
            while their_pipes:
                os.close(their_pipes.pop())
            start_streams(self._streams, read_ends, header)
            pid = _receive_hello(ours)
            if self._pid_namespace and pid <= self._swept_to:
                raise _StateLostError  # the base itself, or another state, and no fork
            _wait_until_forked(base, pid)
            os.kill(base.pid, signal.SIGSTOP)
            process_fd = os.pidfd_open(pid)
            watch = Watch(
                *(self._caller, header, self._streams, memoryview(stdin), input_write),
                end_fds=(ours.fileno(), process_fd),  # the process too: others may hold its channel open
                question_prefix=wire.no_state(),
            )
            _wait_until_stopped(base.pid)
            ours.sendall(state_loop.RUN.pack(len(code), header.cpu_s, len(stdin)) + code)
            ours.setblocking(False)
        except BaseException:
            for fd in (*their_pipes, input_write, input_fd, *read_ends, process_fd):
                if fd >= 0:
                    os.close(fd)
            theirs.close()
            ours.close()
            with contextlib.suppress(ProcessLookupError):
                os.kill(base.pid, signal.SIGSTOP)
            raise
        # The cell's time begins here: while the base waits for a core to fork, the cell does not run yet.
        return _Cell(time.monotonic(), ours, pid, process_fd, watch, inodes, input_fd)

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
        """End the processes that the cell left running: all that are not parked and younger than the last sweep.
        Process ids increase; if they wrapped, or a process does not end, the tree ends, and the host rebuilds it.
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
        fingerprint = scratch_fingerprint(self._empty_scratch, self._uid)
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


def _receive_hello(channel: _socket.socket) -> int:
    """Receive the fork's process id, which the kernel attaches; the message itself is not trusted."""
    data, ancillary, _, _ = channel.recvmsg(1, socket.CMSG_SPACE(_CREDENTIALS.size))
    for level, kind, content in ancillary:
        if data == state_loop.HELLO and level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            pid: int = _CREDENTIALS.unpack(content[: _CREDENTIALS.size])[0]
            return pid
    raise _StateLostError


def _wait_until_forked(base: _State, pid: int) -> None:
    """Wait until the base has closed the fork's descriptors: stopped earlier, it would park with them open."""
    try:
        if base.channel.recv(1):
            return
    except OSError:
        pass
    _kill(pid)
    raise _StateLostError


def _wait_until_stopped(pid: int) -> None:
    """Wait until a state has stopped. A signal takes a moment, and much longer if one of its threads waits for a
    child."""
    until = time.monotonic() + _HANDSHAKE_S
    while os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        if time.monotonic() > until:
            raise _StateLostError
        time.sleep(0.0001)


def _discard_input(input_fd: int) -> None:
    """Discard what a cell left unread of its stdin. Otherwise the branches of the cell's state would compete for it."""
    if input_fd >= 0:
        while os.read(input_fd, 1 << 16):
            pass
        os.close(input_fd)


def _read_done(cell: _Cell) -> None:
    try:
        message = cell.channel.recv(state_loop.DONE.size)
    except OSError:
        return
    if len(message) == state_loop.DONE.size:
        _, code, cell.cpu_us, cell.max_rss_kib = state_loop.DONE.unpack(message)
        cell.wait_status = (code & 0xFF) << 8
        cell.kept = True


def _kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _kill_process(pid: int) -> bool:
    """Kill a process. False for the id of a thread, which has no process descriptor: a plain kill would end the
    thread's process."""
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
    """Wait for a killed process to end; one that its parent has not reaped has ended."""
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
