"""Notebook sessions, the host's side: the cells of a session, and the process tree that holds its state, if any.

A session is its list of cells. A tree is a live slot that holds the states of some of them. Whenever a session's last
state is lost or changed (its tree was evicted or killed, or files in the shared scratch directory changed), the cells
are replayed in a new tree before anything else happens; the caller notices nothing but the delay.
"""

import asyncio
import contextlib
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import cycle

from rstar2.sandbox.execution import Execution, ExecutionStatus, Limits
from rstar2.sandbox.isolation.guarantees import FIRST_SESSION_NUMBER, NUM_UIDS_PER_BLOCK
from rstar2.sandbox.slots import wire
from rstar2.sandbox.slots.dispatcher import GRACE_S
from rstar2.sandbox.slots.slot import MemoryAccount, SlotChannel, kill_quietly, socket_pair
from rstar2.sandbox.slots.slot_factory import SlotFactory
from rstar2.sandbox.slots.starvation import WallClock, tasks_below

_TEMPLATE_WAIT_S = 30.0
_UID_NUMBERS = cycle(range(FIRST_SESSION_NUMBER, NUM_UIDS_PER_BLOCK))
"""Shared by all executors of this process: two slots with one uid would share its process limit."""
_STATE_LOST = -1
_MAX_STATES, _MAX_SESSIONS_IN_TREE = 40, 8
"""Well below the processes that `session_tree` allows for parked states."""
_SPARE_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class _Cell:
    """One cell that is part of a session, and the state that it left in some tree."""

    code: str
    stdin: str
    limits: Limits
    state: int
    fingerprint: int
    """The fingerprint of the scratch directory at the end of the cell."""


_ROOT = _Cell("", "", Limits(), state=0, fingerprint=0)


class _LostError(Exception):
    """The tree's process has exited."""


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
    waiting: asyncio.Future[tuple[bytes, bytes]] | None = None

    async def run(self, base: int, code: str, stdin: str, limits: Limits) -> tuple[Execution, int | None]:
        """The result, and the new state if the cell left one."""
        new = self.next_state
        self.next_state += 1
        self.last_used = time.monotonic()
        self.memory.begin(limits.memory_bytes)
        body = wire.encode_request(
            code.encode("utf-8", "surrogatepass"),
            stdin.encode("utf-8", "surrogatepass"),
            limits,
            has_memory_group=self.memory.group is not None,
        )
        clock = WallClock(limits.wall_s, limits.longest_s)
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
        finally:
            self.waiting = None
            self.last_used = time.monotonic()
        kept, self.fingerprint = wire.SESSION_REPLY.unpack_from(header)
        reply = header[wire.SESSION_REPLY.size :]
        wait_status = wire.REPLY.unpack(reply)[0]
        if wait_status == _STATE_LOST:
            raise _DamagedError
        killed_for_memory = bool(wait_status & 0x7F) and self.memory.was_killed()
        execution, _ = wire.decode_reply(
            reply, data, limits, killed_for_memory=killed_for_memory, is_starved=clock.is_starved
        )
        if kept:
            self.states.add(new)
            self._drop_oldest()
        return execution, new if kept else None

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

    def drop(self, state: int) -> None:
        self.states.discard(state)
        if self.channel.is_open:
            self.channel.send(wire.SESSION_REQUEST.pack(wire.OPERATION_DROP, state, 0))


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
    def num_live(self) -> int:
        return len(self._trees) - (self._spare is not None)

    def open(self, cells: tuple[_Cell, ...] = (), tree: _Tree | None = None) -> "LocalSession":
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
        number = next(_UID_NUMBERS)
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
                        raise _LostError
                    await asyncio.sleep(0.02)
            tree: _Tree
            channel = SlotChannel(
                asyncio.get_running_loop(),
                ours,
                prefix_bytes=wire.SESSION_REPLY.size,
                on_reply=lambda header, body: _resolve(tree, lambda waiting: waiting.set_result((header, body))),
                on_lost=lambda: self._on_lost(tree),
            )
            tree = _Tree(channel, memory)
            self._trees.add(tree)
            undo.pop_all()
        channel.send(wire.encode_request(b"", b"", limits, has_memory_group=group is not None))
        return tree

    def _on_lost(self, tree: _Tree) -> None:
        _resolve(tree, lambda waiting: waiting.set_exception(_LostError()))
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


class LocalSession:
    """Satisfies `Session`."""

    def __init__(self, sessions: LocalSessions, cells: tuple[_Cell, ...], tree: _Tree | None) -> None:
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
    def _head(self) -> _Cell:
        return self._cells[-1] if self._cells else _ROOT

    @property
    def head_state(self) -> int:
        return self._head.state

    async def run(self, code: str, stdin: str = "", limits: Limits | None = None) -> Execution:
        limits = limits or Limits()
        if max(len(code), len(stdin)) > wire.MAX_CODE_BYTES:
            message = f"a cell and its stdin are limited to {wire.MAX_CODE_BYTES} bytes"
            return Execution(ExecutionStatus.ERROR, message=message)
        self._check_open()
        queued_at = time.monotonic()
        async with self._turn:
            self._check_open()
            try:
                execution, state, tree = await self._run_on_head(code, stdin, limits)
            except (_LostError, OSError) as error:
                self._leave_tree()
                message = "the session's worker was lost during this cell; the session is as it was before it"
                message += f" ({error})" if isinstance(error, OSError) else ""
                return Execution(ExecutionStatus.INFRASTRUCTURE, message=message)
            except asyncio.CancelledError:
                # The cell may be running: its tree goes, and with it the cell; the state before it can be rebuilt.
                if self.tree is not None:
                    self._sessions.end_tree(self.tree)
                raise
            if state is not None:
                self._cells = (*self._cells, _Cell(code, stdin, limits, state, tree.fingerprint))
            queue_s = time.monotonic() - queued_at - execution.wall_s
            return replace(execution, queue_s=max(0.0, queue_s))

    async def _run_on_head(self, code: str, stdin: str, limits: Limits) -> tuple[Execution, int | None, _Tree]:
        """Run a cell on the last state. A state that does not answer is rebuilt; one that does not answer even then was
        damaged by the cell that left it, which is forgotten as if it had crashed."""
        is_rebuilt = False
        while True:
            try:
                tree = await self._tree_with_state(limits)
                async with tree.lock:
                    execution, state = await tree.run(self.head_state, code, stdin, limits)
                return execution, state, tree
            except _DamagedError:
                if self.tree is not None:
                    self._sessions.end_tree(self.tree)
                if is_rebuilt:
                    if not self._cells:
                        raise _LostError from None
                    self._cells = self._cells[:-1]
                is_rebuilt = not is_rebuilt

    async def _tree_with_state(self, limits: Limits) -> _Tree:
        """A tree in which this session's last state exists and its files are as that state left them."""
        tree = self.tree
        is_there = tree is not None and tree.channel.is_open and self.head_state in tree.states
        if tree is not None and is_there and tree.fingerprint == self._head.fingerprint:
            return tree
        self._leave_tree()
        most = max((cell.limits.memory_bytes for cell in self._cells), default=0)
        tree = await self._sessions.take_tree(replace(limits, memory_bytes=max(limits.memory_bytes, most)))
        try:
            await self._replay(tree)
        except BaseException:
            self._sessions.end_tree(tree)
            raise
        self.tree = tree
        tree.sessions.add(self)
        return tree

    async def _replay(self, tree: _Tree) -> None:
        rebuilt: list[_Cell] = []
        async with tree.lock:
            state = 0
            for index, cell in enumerate(self._cells):
                try:
                    execution, new = await tree.run(state, cell.code, cell.stdin, cell.limits)
                except _DamagedError:
                    self._cells = (*self._cells[: max(0, index - 1)], *self._cells[index:])
                    raise
                if execution.status.is_sandbox_fault:
                    raise _LostError
                if new is not None:
                    state = new
                rebuilt.append(replace(cell, state=state, fingerprint=tree.fingerprint))
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
            has_room = self.tree is not None and len(self.tree.sessions) < _MAX_SESSIONS_IN_TREE
            return self._sessions.open(self._cells, self.tree if has_room else None)

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
