"""Notebooks on a pool: a session is its list of cells, and the node that holds their state may change.

A session stays on the node that holds its state. When that node is lost, leaves or forgets the session, its cells are
replayed on another node before the next operation; the caller notices only the delay. A cell counts once: a cell that
may have run on a failed node is rerun only on a state without it.
"""

import asyncio
import contextlib
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from rstar2.errors import InfrastructureError, UserError
from rstar2.sandbox.client import UnusableService
from rstar2.sandbox.execution import Execution, ExecutionStatus, FileInfo, Limits, OnOutput
from rstar2.sandbox.executor import Session
from rstar2.sandbox.file_paths import check_path, check_size
from rstar2.sandbox.output_relay import OutputRelay
from rstar2.sandbox.pool.node import Node, NodeState
from rstar2.sandbox.pool.node_table import CLOSE_DEADLINE_S, POLL_S, NodeTable

T = TypeVar("T")
MAX_TRIES = 4
NODE_WAIT_S = 120.0
"""How long a cell waits for a ready node."""


@dataclass(frozen=True, slots=True)
class _Cell:
    code: str
    stdin: str
    limits: Limits
    rich: bool = False


@dataclass(frozen=True, slots=True)
class _PutFile:
    path: str
    data: bytes


_Step = _Cell | _PutFile


@dataclass(frozen=True, slots=True)
class _Place:
    """The node that holds the state, and its session."""

    node: Node
    session: Session


class _RefusedError(Exception):
    """The node refused the caller's request."""

    def __init__(self, error: UserError) -> None:
        super().__init__(str(error))
        self.error = error


class PoolSession:
    """Satisfies `Session`."""

    def __init__(self, table: NodeTable, cells: tuple[_Step, ...] = (), place: _Place | None = None) -> None:
        self.id = uuid.uuid4().hex
        self._table = table
        self._cells = cells
        self._place = place
        self._turn = asyncio.Lock()
        self._is_closed = False

    @property
    def num_cells(self) -> int:
        return len(self._cells)

    @property
    def node(self) -> str | None:
        """The name of the node that holds the state; None if no node does."""
        return self._place.node.name if self._place else None

    async def run(
        self,
        code: str,
        stdin: str = "",
        limits: Limits | None = None,
        *,
        rich: bool = False,
        on_output: OnOutput | None = None,
    ) -> Execution:
        cell = _Cell(code, stdin, limits or Limits(), rich)
        relay = None if on_output is None else OutputRelay(on_output)
        num_tries = 0

        async def run(failed: set[str], until: float) -> Execution:
            nonlocal num_tries
            num_tries += 1
            return await self._run_here_or_elsewhere(cell, relay, failed, until)

        try:
            execution = await self._retry(run)
        except InfrastructureError as error:
            return Execution(ExecutionStatus.INFRASTRUCTURE, message=str(error), num_attempts=MAX_TRIES)
        return replace(execution, num_attempts=execution.num_attempts + num_tries - 1)

    async def put_file(self, path: str, data: bytes) -> None:
        check_path(path)
        check_size(len(data))

        async def put(failed: set[str], until: float) -> None:
            await self._use(failed, until, lambda session: session.put_file(path, data))
            self._cells = (*self._cells, _PutFile(path, data))

        await self._retry(put)

    async def read_file(self, path: str) -> bytes:
        check_path(path)
        return await self._retry(
            lambda failed, until: self._use(failed, until, lambda session: session.read_file(path))
        )

    async def list_files(self) -> list[FileInfo]:
        return await self._retry(lambda failed, until: self._use(failed, until, lambda session: session.list_files()))

    async def _use(self, failed: set[str], until: float, use: Callable[[Session], Coroutine[Any, Any, T]]) -> T:
        place = self._usable_place() or await self._rebuild(failed, until)
        try:
            return await self._table.visit(place.node, use(place.session))
        except UnusableService:
            raise
        except UserError as refused:  # the caller's mistake, which other nodes would refuse too
            raise _RefusedError(refused) from None

    async def _retry(self, act: Callable[[set[str], float], Awaitable[T]]) -> T:
        """Act on this session's node, or on others if that fails. An implausible answer counts as a failure of the
        node."""
        async with self._turn:
            self._check_open()
            failed: set[str] = set()
            until = time.monotonic() + NODE_WAIT_S
            error: Exception = InfrastructureError("it was never tried")
            for _ in range(MAX_TRIES):
                try:
                    return await act(failed, until)
                except _RefusedError as refused:
                    raise refused.error from None
                except (InfrastructureError, ValueError) as raised:
                    error = raised if isinstance(raised, InfrastructureError) else InfrastructureError(str(raised))
                    if (place := self._leave_place()) is not None:
                        self._table.suspect(place.node, str(raised))
                        failed.add(place.node.name)
                except BaseException:
                    # The cell may still run or be done: rebuild the state before it from the earlier cells.
                    self._leave_place()
                    raise
            raise error

    async def fork(self) -> "PoolSession":
        async with self._turn:
            self._check_open()
            place = self._usable_place()
            if place is not None:
                # A fork that fails costs a replay when it is first used, and nothing else.
                with contextlib.suppress(InfrastructureError, ValueError):
                    forked = await self._table.visit(place.node, place.session.fork())
                    return PoolSession(self._table, self._cells, _Place(place.node, forked))
            return PoolSession(self._table, self._cells)

    async def rollback(self, num_cells: int = 1) -> None:
        async with self._turn:
            self._check_open()
            if not 0 <= num_cells <= len(self._cells):
                raise ValueError(f"cannot roll back {num_cells} cells: the session has {len(self._cells)}")
            place, num_before = self._usable_place(), len(self._cells)
            self._cells = self._cells[: num_before - num_cells]
            if place is None:
                return
            if place.session.num_cells != num_before:  # a replayed cell ended differently than before
                self._leave_place()
                return
            try:
                await self._table.visit(place.node, place.session.rollback(num_cells))
            except (InfrastructureError, ValueError):
                self._leave_place()
            except BaseException:
                self._leave_place()
                raise

    async def close(self) -> None:
        async with self._turn:
            self._is_closed = True
            place, self._place = self._place, None
            if place is not None and not place.node.lost.is_set():
                with contextlib.suppress(TimeoutError, InfrastructureError, ValueError):
                    async with asyncio.timeout(CLOSE_DEADLINE_S):
                        await self._table.visit(place.node, place.session.close())

    async def _run_here_or_elsewhere(
        self, cell: _Cell, relay: OutputRelay | None, failed: set[str], until: float
    ) -> Execution:
        place = self._usable_place() or await self._rebuild(failed, until)
        num_before = place.session.num_cells
        execution = await self._run_cell(place, cell, relay)
        # A node also forgets the last cell when the state that the cell left turns out to be damaged.
        num_after = place.session.num_cells
        if not 0 <= num_after <= num_before + 1:
            raise InfrastructureError(f"the node says that there are {num_after} cells, and there were {num_before}")
        is_kept = execution.ok or num_after > num_before
        num_forgotten = max(0, num_before + is_kept - num_after)
        self._cells = (*self._cells[: len(self._cells) - num_forgotten], *((cell,) if is_kept else ()))
        return execution

    async def _run_cell(self, place: _Place, cell: _Cell, relay: OutputRelay | None = None) -> Execution:
        on_output = None if relay is None else relay.restarted()
        running = place.session.run(cell.code, cell.stdin, cell.limits, rich=cell.rich, on_output=on_output)
        execution = await self._table.visit(place.node, running)
        if execution.status is ExecutionStatus.INFRASTRUCTURE:
            raise InfrastructureError(execution.message)
        return execution

    async def _rebuild(self, failed: set[str], until: float) -> _Place:
        """Rebuild the session's state on another node by replaying its cells."""
        node = await self._wait_for_node(failed, until)
        try:
            session = await self._table.visit(node, node.executor.session())
        except (InfrastructureError, ValueError):
            failed.add(node.name)
            raise
        self._place = place = _Place(node, session)
        if session.num_cells:
            raise InfrastructureError(f"the node says that a new session has {session.num_cells} cells")
        for step in self._cells:
            if isinstance(step, _Cell):
                await self._run_cell(place, step)
            else:
                try:
                    await self._table.visit(node, session.put_file(step.path, step.data))
                except UnusableService:
                    raise
                except UserError:
                    pass  # a cell did not leave the same files as before
        return place

    async def _wait_for_node(self, failed: set[str], until: float) -> Node:
        while (node := self._table.choose(failed)) is None:
            if time.monotonic() > until:
                raise InfrastructureError(f"no sandbox node was ready for the session within {NODE_WAIT_S:g} s")
            await asyncio.sleep(POLL_S)
        return node

    def _usable_place(self) -> _Place | None:
        """The place of the state, if usable; otherwise it is released, and the state rebuilt when needed."""
        if self._place is not None and self._place.node.state in (NodeState.LOST, NodeState.DRAINING):
            self._leave_place()
        return self._place

    def _leave_place(self) -> _Place | None:
        """Release the node; it closes its part of the session in the background."""
        place, self._place = self._place, None
        if place is not None:
            self._table.close_later(place.node, place.session)
        return place

    def _check_open(self) -> None:
        if self._is_closed:
            raise ValueError("the session is closed")
