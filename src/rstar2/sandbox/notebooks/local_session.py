"""Notebook sessions, the host's side: a session's cells, and the process tree that holds its state, if there is one.

A session is its list of cells. A tree is a live slot that holds the states of some of them. Whenever a session's last
state is lost or changed (its tree was evicted or killed, or files in the shared scratch directory changed), the cells
are replayed in a new tree before the next operation; the caller notices only the delay. The same happens when a session
is forked or rolled back to a state that shares memory or descriptors with its own forks.

A cell whose tree is lost is rerun once. If the tree is lost again, the cell is the cause and gets an error of its own:
if it counted as our fault, a cell could choose never to be scored.
"""

import asyncio
import contextlib
import time
import uuid
from dataclasses import replace

from rstar2.errors import InfrastructureError, UserError
from rstar2.sandbox.execution import MIB, Execution, ExecutionStatus, FileInfo, Limits, OnOutput
from rstar2.sandbox.file_paths import check_path, check_size
from rstar2.sandbox.notebooks.live_tree import DamagedError, FileError, LiveTree, LostError
from rstar2.sandbox.notebooks.steps import ROOT, Cell, PutFile, Step, without_last_cell
from rstar2.sandbox.notebooks.tree_supply import SPARE_LIMITS, TreeSupply, UnavailableError
from rstar2.sandbox.output_relay import OutputRelay
from rstar2.sandbox.slots import wire
from rstar2.sandbox.slots.slot_factory import SlotFactory

_MAX_SESSIONS_IN_TREE = 8
"""The maximum of sessions per tree; their head states are not dropped."""
MAX_PUT_BYTES = 64 * MIB
"""The size limit of all files put into one session. They are kept for replays."""


class LocalSessions:
    """The sessions of one executor, and the trees that they share."""

    def __init__(self, factory: SlotFactory, *, max_live: int) -> None:
        self.trees = TreeSupply(factory, max_live=max_live)
        self._open: set[LocalSession] = set()

    @property
    def num_open(self) -> int:
        return len(self._open)

    def open(self, cells: tuple[Step, ...] = (), tree: LiveTree | None = None) -> "LocalSession":
        session = LocalSession(self, cells, tree)
        self._open.add(session)
        return session

    def forget(self, session: "LocalSession") -> None:
        self._open.discard(session)


class LocalSession:
    """Satisfies `Session`."""

    def __init__(self, sessions: LocalSessions, cells: tuple[Step, ...], tree: LiveTree | None) -> None:
        self.id = uuid.uuid4().hex
        self._sessions = sessions
        self._trees = sessions.trees
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
    def _head(self) -> Step:
        return self._cells[-1] if self._cells else ROOT

    @property
    def head_state(self) -> int:
        return self._head.state

    @property
    def states(self) -> set[int]:
        return {step.state for step in self._cells}

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
        cell = Cell(code, stdin, limits or Limits(), rich)
        relay = None if on_output is None else OutputRelay(on_output)
        self._check_open()
        queued_at = time.monotonic()
        async with self._turn:
            self._check_open()
            try:
                execution = await self._run_twice_at_most(cell, relay)
            except (UnavailableError, OSError) as error:
                self._leave_tree()
                message = f"there is no worker for the session, which is as it was before this cell: {error}"
                return Execution(ExecutionStatus.INFRASTRUCTURE, message=message)
            except asyncio.CancelledError:
                # The cell may be running: end its tree, and the cell with it. The state before the cell can be rebuilt.
                if self.tree is not None:
                    self._trees.end(self.tree)
                raise
            if relay is not None:
                relay.finish(execution)
            queue_s = time.monotonic() - queued_at - execution.wall_s
            return replace(execution, queue_s=max(0.0, queue_s))

    async def put_file(self, path: str, data: bytes) -> None:
        check_path(path)
        check_size(len(data))
        num_kept = sum(len(step.data) for step in self._cells if isinstance(step, PutFile))
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
            except FileError as error:
                raise UserError(
                    f"path: {path!r}: {error}" if path else f"the files cannot be listed: {error}"
                ) from None
            except (UnavailableError, OSError) as error:
                self._leave_tree()
                raise InfrastructureError(f"there is no worker for the session: {error}") from None
            except asyncio.CancelledError:
                if self.tree is not None:
                    self._trees.end(self.tree)
                raise

    async def _use_files_of_head(self, operation: int, path: str, data: bytes) -> bytes:
        num_lost = 0
        while True:
            num_cells = len(self._cells)
            try:
                tree = await self._tree_with_state(SPARE_LIMITS)
                async with tree.lock:
                    if not self._is_current(tree):
                        self._leave_tree()
                        continue
                    content = await tree.use_files(operation, path, data)
                    if operation == wire.OPERATION_PUT:
                        put = PutFile(path, data, self.head_state, tree.fingerprint)
                        self._cells = (*self._cells, put)
                    return content
            except DamagedError:  # the cell that did it is forgotten, if there was one
                if len(self._cells) == num_cells:
                    raise UnavailableError("a new one does not answer") from None
            except LostError:
                self._leave_tree()
                num_lost += 1
                if self._trees.is_closed:
                    raise UnavailableError("the sandbox was closed") from None
                if num_lost > 1:
                    raise UserError("the session's worker was lost, twice, before its files could be used") from None

    async def _run_twice_at_most(self, cell: Cell, relay: OutputRelay | None) -> Execution:
        num_lost = 0
        while True:
            try:
                execution, state, tree = await self._run_on_head(cell, relay)
            except LostError:
                self._leave_tree()
                num_lost += 1
                if self._trees.is_closed:
                    raise UnavailableError("the sandbox was closed") from None
                if num_lost > 1:
                    message = "the session's worker was lost in this cell, twice; the session is as it was before it"
                    return Execution(ExecutionStatus.ERROR, message=message, num_attempts=num_lost)
                continue
            if state is not None:
                self._cells = (*self._cells, replace(cell, state=state, fingerprint=tree.fingerprint))
            return replace(execution, num_attempts=num_lost + 1)

    async def _run_on_head(
        self, cell: Cell, relay: OutputRelay | None = None
    ) -> tuple[Execution, int | None, LiveTree]:
        """Run a cell on the last state. A state that does not answer is rebuilt; if the rebuilt state does not answer
        either, the cell that left it damaged it, and is forgotten as if it had crashed."""
        is_rebuilt = False
        while True:
            try:
                tree = await self._tree_with_state(cell.limits)
                async with tree.lock:
                    if not self._is_current(tree):  # another branch had its turn
                        self._leave_tree()
                        continue
                    execution, state = await tree.run(self.head_state, cell, relay)
                return execution, state, tree
            except DamagedError:
                if self.tree is not None:
                    self._trees.end(self.tree)
                if is_rebuilt:
                    if not any(isinstance(step, Cell) for step in self._cells):
                        raise UnavailableError("a new one does not answer") from None
                    self._cells = without_last_cell(self._cells)
                is_rebuilt = not is_rebuilt

    async def _tree_with_state(self, limits: Limits) -> LiveTree:
        """A tree that has this session's last state, rebuilt if need be. Check it with `_is_current` under its lock."""
        if self.tree is not None and self._has_last_state(self.tree):
            return self.tree
        self._leave_tree()
        max_memory_bytes = max((step.limits.memory_bytes for step in self._cells if isinstance(step, Cell)), default=0)
        tree = await self._trees.take(replace(limits, memory_bytes=max(limits.memory_bytes, max_memory_bytes)))
        try:
            await self._replay(tree)
        except BaseException:
            self._trees.end(tree)
            raise
        self.tree = tree
        tree.sessions.add(self)
        return tree

    def _has_last_state(self, tree: LiveTree) -> bool:
        """Whether the tree has this session's last state, and the files are as that state left them."""
        is_there = tree is self.tree and tree.channel.is_open and self.head_state in tree.states
        return is_there and tree.fingerprint == self._head.fingerprint

    def _is_current(self, tree: LiveTree) -> bool:
        """Whether this session's next cell can run in the tree; a cell of another session may make it false."""
        return self._has_last_state(tree) and tree.is_as_left(self.head_state)

    async def _replay(self, tree: LiveTree) -> None:
        rebuilt: list[Step] = []
        async with tree.lock:
            state = 0
            for index, step in enumerate(self._cells):
                if isinstance(step, PutFile):
                    with contextlib.suppress(FileError):  # a cell did not leave the same files as before
                        await tree.use_files(wire.OPERATION_PUT, step.path, step.data)
                else:
                    try:
                        execution, new = await tree.run(state, step)
                    except DamagedError:
                        self._cells = (*without_last_cell(self._cells[:index]), *self._cells[index:])
                        raise
                    if execution.status.is_sandbox_fault:
                        raise UnavailableError(execution.message)
                    if new is not None:
                        state = new
                rebuilt.append(replace(step, state=state, fingerprint=tree.fingerprint))
            tree.newest = state  # also after a cell that did not live: no other session has run here
        self._cells = tuple(rebuilt)

    def _leave_tree(self) -> None:
        tree, self.tree = self.tree, None
        if tree is not None:
            tree.sessions.discard(self)
            if not tree.sessions:
                self._trees.end(tree)

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
                wanted = {state for session in self.tree.sessions for state in session.states}
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
