"""Notebook sessions, the host's side: the cells of a session, and the process tree that holds its state, if any.

A session is its list of cells. A tree is a live slot that holds the states of some of them. Whenever a session's last
state is lost or changed (its tree was evicted or killed, or files in the shared scratch directory changed), the cells
are replayed in a new tree before anything else happens; the caller notices nothing but the delay. So it is, too, when a
session is forked or rolled back to a state that shares something with its own forks: memory, descriptors.

A cell whose tree is lost is rerun once. If that ends the same way, the cell did it: it is the cell's own error, because
a fault of ours on demand would be a way to never be scored.
"""

import asyncio
import contextlib
import os
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from rstar2.errors import InfrastructureError, UserError
from rstar2.sandbox.execution import MIB, Execution, ExecutionStatus, FileInfo, Limits, OnOutput
from rstar2.sandbox.file_paths import check_path, check_size
from rstar2.sandbox.isolation.uids import SESSION_NUMBERS
from rstar2.sandbox.output_relay import OutputRelay
from rstar2.sandbox.slots import processes, wire
from rstar2.sandbox.slots.dispatcher import GRACE_S, TICK_S, YOUNG_S
from rstar2.sandbox.slots.slot import MemoryAccount, SlotChannel, kill_quietly, socket_pair
from rstar2.sandbox.slots.slot_factory import SlotFactory
from rstar2.sandbox.slots.starvation import WallClock, tasks_below

_TEMPLATE_WAIT_S = 30.0
_CPU_GRACE_S = 1.0
"""As for programs: the kernel's first signal comes at the limit, the host's kill this much later."""
_MAX_STATES, _MAX_SESSIONS_IN_TREE = 40, 8
"""Well below the processes that `session_tree` allows for parked states."""
_SPARE_LIMITS = Limits()
FILES_S = 10.0
"""How long a tree may take for its files, before the grace period."""
MAX_PUT_BYTES = 64 * MIB
"""Of all files that were put into one session: they are kept to rebuild it."""


@dataclass(frozen=True, slots=True)
class _Cell:
    """One cell that is part of a session, and the state that it left in some tree."""

    code: str
    stdin: str
    limits: Limits
    rich: bool = False
    state: int = 0
    fingerprint: int = 0
    """The fingerprint of the scratch directory at the end of the cell."""


@dataclass(frozen=True, slots=True)
class _PutFile:
    """A file that is part of a session, on the state of the cell before it."""

    path: str
    data: bytes
    state: int = 0
    fingerprint: int = 0


_Step = _Cell | _PutFile
_ROOT = _Cell("", "", Limits())


class _LostError(Exception):
    """The tree's process has exited."""

    def __init__(self, *, for_memory: bool = False) -> None:
        super().__init__()
        self.for_memory = for_memory


class _UnavailableError(Exception):
    """This machine has no worker for the session. No cell can cause it."""


class _FileError(Exception):
    """A file cannot be put, read or listed, for a reason that lies in the session's own files."""

    def __init__(self, number: int) -> None:
        super().__init__(os.strerror(number))
        self.number = number


class _DamagedError(Exception):
    """The tree runs, but a state in it no longer answers: one of its cells damaged it."""


@dataclass(eq=False)
class _Tree:
    """One live slot. Runs one cell at a time."""

    channel: SlotChannel
    memory: MemoryAccount
    pid: int = 0
    next_state: int = 1
    fingerprint: int = 0
    last_used: float = field(default_factory=time.monotonic)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    sessions: set["LocalSession"] = field(default_factory=set)
    states: set[int] = field(default_factory=lambda: {0})
    inner_pids: dict[int, int] = field(default_factory=dict)
    """The process of each state, by its id inside."""
    outer_pids: dict[int, int] = field(default_factory=dict)
    """The same by the id here, of those that were looked at."""
    given_inodes: dict[int, frozenset[int]] = field(default_factory=dict)
    """Of the descriptors that each state was given."""
    newest: int = 0
    """The state after which nothing ran in this tree; 0: none."""
    own_mappings: frozenset[bytes] | None = None
    """What the controller, in which no cell runs, has mapped as shared: files of the C library, to be read only."""
    can_renice: bool = False
    waiting: asyncio.Future[tuple[bytes, bytes]] | None = None
    relay: OutputRelay | None = None
    """Where the output of the running cell goes."""

    async def run(self, base: int, cell: _Cell, relay: OutputRelay | None = None) -> tuple[Execution, int | None]:
        """The result, and the new state if the cell left one."""
        limits = cell.limits
        new = self.next_state
        self.next_state += 1
        self.newest = 0
        self.last_used = time.monotonic()
        self.memory.begin(limits.memory_bytes)
        body = wire.encode_request(
            wire.encode_source(cell.code, rich=cell.rich, files={}, fetch_files=()),
            cell.stdin.encode("utf-8", "surrogatepass"),
            limits,
            has_memory_group=self.memory.group is not None,
            is_streamed=relay is not None,
        )
        if relay is not None:
            relay.restart()
        self.relay = relay
        clock = WallClock(limits.wall_s, limits.longest_s)
        watch = _CellWatch(self, limits)
        try:
            header, data = await self._ask(
                wire.SESSION_REQUEST.pack(wire.OPERATION_RUN, base, new) + body, limits.wall_s
            )
            while (asked_after_s := wire.asked_after_s(header[wire.SESSION_REPLY.size :])) is not None:
                more_s = clock.more_s(asked_after_s, tasks_below(self.pid) if self.pid else ())
                header, data = await self._ask(wire.encode_more_time(more_s), more_s)
        except TimeoutError:
            kill_quietly(self.pid)
            raise _LostError from None
        except _LostError as lost:
            if not lost.for_memory:
                raise
            message = f"stopped at its memory limit of {limits.memory_bytes} bytes"
            return Execution(ExecutionStatus.MEMORY, message=message, signal=9), None
        finally:
            watch.end()
            self.waiting = self.relay = None
            self.last_used = time.monotonic()
        kept, self.fingerprint, inner_pid, *inodes = wire.SESSION_REPLY.unpack_from(header)
        reply = header[wire.SESSION_REPLY.size :]
        wait_status = wire.REPLY.unpack(reply)[0]
        if wait_status == wire.STATE_LOST:
            raise _DamagedError
        if wait_status == wire.TREE_SPOILED:
            message = "the cell left processes that could not be ended, so it counts as crashed"
            return Execution(ExecutionStatus.ERROR, message=message), None
        killed_for_memory = bool(wait_status & 0x7F) and self.memory.was_killed()
        execution, _ = wire.decode_reply(
            reply, data, limits, killed_for_memory=killed_for_memory, is_starved=clock.is_starved
        )
        if kept:
            self.states.add(new)
            self.inner_pids[new] = inner_pid
            self.given_inodes[new] = frozenset(inodes)
            self.newest = new
            self._drop_oldest()
        return execution, new if kept else None

    async def use_files(self, operation: int, path: str = "", data: bytes = b"") -> bytes:
        """What the controller answers. OSError if it cannot do it."""
        self.last_used = time.monotonic()
        name = path.encode()
        message = wire.FILE_REQUEST.pack(len(name), len(data)) + name + data
        try:
            header, content = await self._ask(wire.SESSION_REQUEST.pack(operation, 0, 0) + message, FILES_S)
        except TimeoutError:
            kill_quietly(self.pid)
            raise _LostError from None
        finally:
            self.waiting = None
        _, self.fingerprint, *_ = wire.SESSION_REPLY.unpack_from(header)
        error_number = wire.REPLY.unpack_from(header, wire.SESSION_REPLY.size)[0]
        if error_number:
            raise _FileError(error_number)
        return content

    def take_message(self, header: bytes, body: bytes) -> None:
        relay, reply = self.relay, header[wire.SESSION_REPLY.size :]
        if relay is not None and (output := wire.partial_output(reply, body)) is not None:
            relay.receive(*output)
            return
        _resolve(self, lambda waiting: waiting.set_result((header, body)))

    async def _ask(self, message: bytes, expected_s: float) -> tuple[bytes, bytes]:
        self.waiting = asyncio.get_running_loop().create_future()
        self.channel.send(message)
        async with asyncio.timeout(expected_s + 3 * GRACE_S):
            return await self.waiting

    def _drop_oldest(self) -> None:
        """States count against the slot's limit of processes; what a rollback needs can be rebuilt."""
        heads = {session.head_state for session in self.sessions} | {0, max(self.states)}
        for state in sorted(self.states - heads)[: max(0, len(self.states) - _MAX_STATES)]:
            self.drop(state)

    def is_separable(self, state: int) -> bool:
        """Whether sessions that continue from this state share nothing."""
        if state == _ROOT.state:
            return True
        inner_pid = self.inner_pids.get(state, 0)
        pid = self.outer_pids.get(state) or (processes.pid_outside(self.pid, inner_pid) if self.pid else None)
        if pid is None:
            return False
        self.outer_pids[state] = pid
        try:
            if self.own_mappings is None:
                self.own_mappings = processes.shared_mappings(self.pid)
        except OSError:
            return False
        inodes, is_newest = self.given_inodes.get(state, frozenset()), state == self.newest
        return processes.shares_nothing(pid, inner_pid, inodes, self.own_mappings, is_newest=is_newest)

    def is_as_left(self, state: int) -> bool:
        """Whether a state is as its own cell left it. What ran in the tree since then must not have reached it."""
        return state in (_ROOT.state, self.newest) or self.is_separable(state)

    def drop(self, state: int) -> None:
        self.states.discard(state)
        self.inner_pids.pop(state, None)
        self.outer_pids.pop(state, None)
        self.given_inodes.pop(state, None)
        if self.channel.is_open:
            self.channel.send(wire.SESSION_REQUEST.pack(wire.OPERATION_DROP, state, 0))


class _CellWatch:
    """Keeps from outside what a cell could lift from inside: the CPU limit of each process, its share of the cores, and
    the memory limit where the kernel does not keep it. Looks for the first time after a moment, so that short cells
    cost nothing."""

    def __init__(self, tree: _Tree, limits: Limits) -> None:
        self._tree = tree
        self._cpu_s = limits.cpu_s + _CPU_GRACE_S
        self._loop = asyncio.get_running_loop()
        self._started_at = time.monotonic()
        self._reniced: list[int] = []
        self._next = self._loop.call_later(TICK_S, self._look)

    def _look(self) -> None:
        tree, elapsed_s = self._tree, time.monotonic() - self._started_at
        tree.memory.look(tree.pid)
        if tree.pid and elapsed_s > YOUNG_S:
            running = list(processes.running_below(tree.pid, youngest_s=elapsed_s))
            for process in running:
                if process.cpu_s > self._cpu_s:
                    processes.kill(process.pid)
            if tree.can_renice and not self._reniced:
                self._reniced = [process.pid for process in running]
                processes.renice(self._reniced, processes.LOW_NICE)
        self._next = self._loop.call_later(TICK_S if tree.memory.group is None else YOUNG_S, self._look)

    def end(self) -> None:
        self._next.cancel()
        processes.renice(self._reniced, 0)


class LocalSessions:
    """Makes trees, one ahead of need, and ends the least recently used ones when there are too many."""

    def __init__(self, factory: SlotFactory, *, max_live: int) -> None:
        self._factory = factory
        self._max_live = max_live
        self._trees: set[_Tree] = set()
        self._spare: _Tree | None = None
        self._next_number = 0
        self._open: set[LocalSession] = set()
        self._is_closed = False

    @property
    def num_open(self) -> int:
        return len(self._open)

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def num_live(self) -> int:
        return len(self._trees) - (self._spare is not None)

    def open(self, cells: tuple[_Step, ...] = (), tree: _Tree | None = None) -> "LocalSession":
        session = LocalSession(self, cells, tree)
        self._open.add(session)
        return session

    def forget(self, session: "LocalSession") -> None:
        self._open.discard(session)

    async def take_tree(self, limits: Limits) -> _Tree:
        """The spare, if its limits suffice; the next spare is made in the background."""
        spare, self._spare = self._spare, None
        names = ("memory_bytes", "num_processes", "file_bytes")
        is_fit = all(getattr(limits, name) <= getattr(_SPARE_LIMITS, name) for name in names)
        if spare is not None and not (is_fit and spare.channel.is_open):
            self.end_tree(spare)
            spare = None
        tree = spare or await self._make_tree(limits)
        asyncio.get_running_loop().call_soon(self._make_spare)
        return tree

    def _make_spare(self) -> None:
        if self._spare is None and not self._is_closed:
            making = asyncio.create_task(self._make_tree(_SPARE_LIMITS), name="make a spare session")
            making.add_done_callback(self._keep_spare)

    def _keep_spare(self, making: "asyncio.Task[_Tree]") -> None:
        if making.cancelled() or making.exception() is not None:
            return
        if self._spare is None and not self._is_closed:
            self._spare = making.result()
        else:
            self.end_tree(making.result())

    async def _make_tree(self, limits: Limits) -> _Tree:
        """OSError where the machine refuses what it needs; nothing is left behind then."""
        self._evict()
        number = SESSION_NUMBERS.draw()
        self._next_number += 1
        group = self._factory.make_memory_group(f"session-{self._next_number}")
        with contextlib.ExitStack() as undo:
            if group is not None:
                undo.callback(self._factory.retire_memory_group, group)
            memory = MemoryAccount(group)
            memory.begin(limits.memory_bytes)
            ours, theirs = socket_pair()
            undo.callback(ours.close)

            def on_answer(pid: int) -> None:
                if pid > 0:
                    tree.pid = pid
                else:
                    self._on_lost(tree)

            with theirs:
                deadline = time.monotonic() + _TEMPLATE_WAIT_S
                while not self._factory.fork_slot(wire.KIND_SESSION, number, theirs, group, on_answer):
                    if time.monotonic() > deadline:
                        raise _UnavailableError("no template was ready")
                    await asyncio.sleep(0.02)
            tree: _Tree
            channel = SlotChannel(
                asyncio.get_running_loop(),
                ours,
                prefix_bytes=wire.SESSION_REPLY.size,
                on_reply=lambda header, body: tree.take_message(header, body),
                on_lost=lambda: self._on_lost(tree),
            )
            tree = _Tree(channel, memory, can_renice=self._factory.can_renice)
            self._trees.add(tree)
            undo.pop_all()
        channel.send(wire.encode_request(b"", b"", limits, has_memory_group=group is not None))
        return tree

    def _on_lost(self, tree: _Tree) -> None:
        lost = _LostError(for_memory=tree.memory.was_killed())
        _resolve(tree, lambda waiting: waiting.set_exception(lost))
        self.end_tree(tree)

    def end_tree(self, tree: _Tree) -> None:
        tree.channel.close()
        if tree in self._trees:
            self._trees.remove(tree)
            if tree.memory.group is not None:
                self._factory.retire_memory_group(tree.memory.group)
        for session in tree.sessions:
            session.tree = None
        tree.sessions.clear()

    def _evict(self) -> None:
        idle = sorted(
            (tree for tree in self._trees if tree.sessions and not tree.lock.locked()), key=lambda tree: tree.last_used
        )
        for tree in idle[: max(0, len(self._trees) - self._max_live + 1)]:
            self.end_tree(tree)

    async def close(self) -> None:
        self._is_closed = True
        self._spare = None
        for tree in list(self._trees):
            self._on_lost(tree)


def _resolve(tree: _Tree, settle: Callable[[asyncio.Future[tuple[bytes, bytes]]], None]) -> None:
    if tree.waiting is not None and not tree.waiting.done():
        settle(tree.waiting)


def _without_last_cell(steps: tuple[_Step, ...]) -> tuple[_Step, ...]:
    last = max((index for index, step in enumerate(steps) if isinstance(step, _Cell)), default=-1)
    return steps[:last] + steps[last + 1 :] if last >= 0 else steps


class LocalSession:
    """Satisfies `Session`."""

    def __init__(self, sessions: LocalSessions, cells: tuple[_Step, ...], tree: _Tree | None) -> None:
        self.id = uuid.uuid4().hex
        self._sessions = sessions
        self._cells = cells
        self.tree = tree
        self._turn = asyncio.Lock()
        self._is_closed = False
        if tree is not None:
            tree.sessions.add(self)

    @property
    def num_cells(self) -> int:
        return len(self._cells)

    @property
    def _head(self) -> _Step:
        return self._cells[-1] if self._cells else _ROOT

    @property
    def head_state(self) -> int:
        return self._head.state

    async def run(
        self,
        code: str,
        stdin: str = "",
        limits: Limits | None = None,
        *,
        rich: bool = False,
        on_output: OnOutput | None = None,
    ) -> Execution:
        if max(len(code), len(stdin)) > wire.MAX_CODE_BYTES:
            message = f"a cell and its stdin are limited to {wire.MAX_CODE_BYTES} bytes"
            return Execution(ExecutionStatus.ERROR, message=message)
        cell = _Cell(code, stdin, limits or Limits(), rich)
        relay = None if on_output is None else OutputRelay(on_output)
        self._check_open()
        queued_at = time.monotonic()
        async with self._turn:
            self._check_open()
            try:
                execution = await self._run_twice_at_most(cell, relay)
            except (_UnavailableError, OSError) as error:
                self._leave_tree()
                message = f"there is no worker for the session, which is as it was before this cell: {error}"
                return Execution(ExecutionStatus.INFRASTRUCTURE, message=message)
            except asyncio.CancelledError:
                # The cell may be running: its tree goes, and with it the cell; the state before it can be rebuilt.
                if self.tree is not None:
                    self._sessions.end_tree(self.tree)
                raise
            if relay is not None:
                relay.finish(execution)
            queue_s = time.monotonic() - queued_at - execution.wall_s
            return replace(execution, queue_s=max(0.0, queue_s))

    async def put_file(self, path: str, data: bytes) -> None:
        check_path(path)
        check_size(len(data))
        num_kept = sum(len(step.data) for step in self._cells if isinstance(step, _PutFile))
        if num_kept + len(data) > MAX_PUT_BYTES:
            raise UserError(f"content: at most {MAX_PUT_BYTES} bytes of files can be put into one session")
        await self._use_files(wire.OPERATION_PUT, path, data)

    async def read_file(self, path: str) -> bytes:
        check_path(path)
        return await self._use_files(wire.OPERATION_READ, path)

    async def list_files(self) -> list[FileInfo]:
        return wire.decode_files(await self._use_files(wire.OPERATION_LIST))

    async def _use_files(self, operation: int, path: str = "", data: bytes = b"") -> bytes:
        async with self._turn:
            self._check_open()
            try:
                return await self._use_files_of_head(operation, path, data)
            except _FileError as error:
                raise UserError(
                    f"path: {path!r}: {error}" if path else f"the files cannot be listed: {error}"
                ) from None
            except (_UnavailableError, OSError) as error:
                self._leave_tree()
                raise InfrastructureError(f"there is no worker for the session: {error}") from None
            except asyncio.CancelledError:
                if self.tree is not None:
                    self._sessions.end_tree(self.tree)
                raise

    async def _use_files_of_head(self, operation: int, path: str, data: bytes) -> bytes:
        num_lost = 0
        while True:
            try:
                tree = await self._tree_with_state(_SPARE_LIMITS)
                async with tree.lock:
                    if not self._is_current(tree):
                        continue
                    content = await tree.use_files(operation, path, data)
                    if operation == wire.OPERATION_PUT:
                        put = _PutFile(path, data, self.head_state, tree.fingerprint)
                        self._cells = (*self._cells, put)
                    return content
            except _DamagedError:
                continue  # the cell that did it is forgotten
            except _LostError:
                self._leave_tree()
                num_lost += 1
                if self._sessions.is_closed:
                    raise _UnavailableError("the sandbox was closed") from None
                if num_lost > 1:
                    raise UserError("the session's worker was lost, twice, before its files could be used") from None

    async def _run_twice_at_most(self, cell: _Cell, relay: OutputRelay | None) -> Execution:
        num_lost = 0
        while True:
            try:
                execution, state, tree = await self._run_on_head(cell, relay)
            except _LostError:
                self._leave_tree()
                num_lost += 1
                if self._sessions.is_closed:
                    raise _UnavailableError("the sandbox was closed") from None
                if num_lost > 1:
                    message = "the session's worker was lost in this cell, twice; the session is as it was before it"
                    return Execution(ExecutionStatus.ERROR, message=message, num_attempts=num_lost)
                continue
            if state is not None:
                self._cells = (*self._cells, replace(cell, state=state, fingerprint=tree.fingerprint))
            return replace(execution, num_attempts=num_lost + 1)

    async def _run_on_head(self, cell: _Cell, relay: OutputRelay | None = None) -> tuple[Execution, int | None, _Tree]:
        """Run a cell on the last state. A state that does not answer is rebuilt; one that does not answer even then was
        damaged by the cell that left it, which is forgotten as if it had crashed."""
        is_rebuilt = False
        while True:
            try:
                tree = await self._tree_with_state(cell.limits)
                async with tree.lock:
                    if not self._is_current(tree):
                        continue  # another branch had its turn first
                    execution, state = await tree.run(self.head_state, cell, relay)
                return execution, state, tree
            except _DamagedError:
                if self.tree is not None:
                    self._sessions.end_tree(self.tree)
                if is_rebuilt:
                    if not any(isinstance(step, _Cell) for step in self._cells):
                        raise _UnavailableError("a new one does not answer") from None
                    self._cells = _without_last_cell(self._cells)
                is_rebuilt = not is_rebuilt

    async def _tree_with_state(self, limits: Limits) -> _Tree:
        """A tree in which this session's last state exists and its files are as that state left them."""
        if self.tree is not None and self._is_current(self.tree):
            return self.tree
        self._leave_tree()
        most = max((step.limits.memory_bytes for step in self._cells if isinstance(step, _Cell)), default=0)
        tree = await self._sessions.take_tree(replace(limits, memory_bytes=max(limits.memory_bytes, most)))
        try:
            await self._replay(tree)
        except BaseException:
            self._sessions.end_tree(tree)
            raise
        self.tree = tree
        tree.sessions.add(self)
        return tree

    def _is_current(self, tree: _Tree) -> bool:
        """Whether the next cell can run in this tree: true only until another session's does."""
        is_there = tree is self.tree and tree.channel.is_open and self.head_state in tree.states
        return is_there and tree.fingerprint == self._head.fingerprint and tree.is_as_left(self.head_state)

    async def _replay(self, tree: _Tree) -> None:
        rebuilt: list[_Step] = []
        async with tree.lock:
            state = 0
            for index, step in enumerate(self._cells):
                if isinstance(step, _PutFile):
                    with contextlib.suppress(_FileError):  # a cell did not leave the same files as before
                        await tree.use_files(wire.OPERATION_PUT, step.path, step.data)
                else:
                    try:
                        execution, new = await tree.run(state, step)
                    except _DamagedError:
                        self._cells = (*_without_last_cell(self._cells[:index]), *self._cells[index:])
                        raise
                    if execution.status.is_sandbox_fault:
                        raise _UnavailableError(execution.message)
                    if new is not None:
                        state = new
                rebuilt.append(replace(step, state=state, fingerprint=tree.fingerprint))
        self._cells = tuple(rebuilt)

    def _leave_tree(self) -> None:
        tree, self.tree = self.tree, None
        if tree is not None:
            tree.sessions.discard(self)
            if not tree.sessions:
                self._sessions.end_tree(tree)

    async def fork(self) -> "LocalSession":
        async with self._turn:
            self._check_open()
            tree = self.tree
            has_room = tree is not None and len(tree.sessions) < _MAX_SESSIONS_IN_TREE
            can_share = has_room and tree is not None and tree.is_separable(self.head_state)
            return self._sessions.open(self._cells, tree if can_share else None)

    async def rollback(self, num_cells: int = 1) -> None:
        async with self._turn:
            self._check_open()
            if not 0 <= num_cells <= len(self._cells):
                raise ValueError(f"cannot roll back {num_cells} cells: the session has {len(self._cells)}")
            kept = self._cells[: len(self._cells) - num_cells]
            forgotten = self._cells[len(kept) :]
            self._cells = kept
            if self.tree is not None:
                wanted = {cell.state for session in self.tree.sessions for cell in session._cells}
                for cell in forgotten:
                    if cell.state not in wanted:
                        self.tree.drop(cell.state)

    async def close(self) -> None:
        async with self._turn:
            self._is_closed = True
            self._leave_tree()
            self._sessions.forget(self)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ValueError("the session is closed")
