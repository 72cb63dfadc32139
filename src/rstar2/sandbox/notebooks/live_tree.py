"""The host's end of one tree of parked states: a live slot that runs one cell at a time."""

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from rstar2.sandbox.execution import Execution, ExecutionStatus, Limits
from rstar2.sandbox.notebooks.parked_state import ParkedState, shared_mappings
from rstar2.sandbox.notebooks.steps import ROOT, Cell
from rstar2.sandbox.output_relay import OutputRelay
from rstar2.sandbox.slots import processes, wire
from rstar2.sandbox.slots.dispatcher import GRACE_S, TICK_S, YOUNG_S
from rstar2.sandbox.slots.slot import MemoryAccount, SlotChannel, kill_quietly
from rstar2.sandbox.slots.starvation import WallClock, tasks_below

_CPU_GRACE_S = 1.0
"""As for programs, the kernel signals a process at its CPU limit; the host kills it this much later."""
_MAX_STATES = 40
"""The maximum number of parked states, far below `session_tree`'s limit on processes."""
_FILES_S = 10.0
"""How long a tree may take for an operation on files, before the grace period."""


class LostError(Exception):
    """The tree's process has exited."""

    def __init__(self, *, for_memory: bool = False) -> None:
        super().__init__()
        self.for_memory = for_memory


class FileError(Exception):
    """A file cannot be put, read or listed because of the session's own files."""

    def __init__(self, number: int) -> None:
        super().__init__(os.strerror(number))
        self.number = number


class DamagedError(Exception):
    """The tree is alive, but one of its states no longer answers: a cell damaged it."""


class TreeUser(Protocol):
    """A session that keeps its states in a tree."""

    tree: "LiveTree | None"

    @property
    def head_state(self) -> int: ...

    @property
    def states(self) -> set[int]: ...


@dataclass(eq=False)
class LiveTree:
    """One live slot. Runs one cell at a time."""

    channel: SlotChannel
    memory: MemoryAccount
    pid: int = 0
    next_state: int = 1
    fingerprint: int = 0
    made_at: float = field(default_factory=time.monotonic)
    last_used: float = field(default_factory=time.monotonic)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    sessions: set[TreeUser] = field(default_factory=set)
    states: dict[int, ParkedState] = field(default_factory=lambda: {ROOT.state: ParkedState(0, ())})
    newest: int = 0
    """The state after which no cell has run in this tree; 0: none."""
    own_mappings: frozenset[bytes] | None = None
    """The shared mappings of the controller, in which no cell runs: read-only files of the C library."""
    can_renice: bool = False
    waiting: asyncio.Future[tuple[bytes, bytes]] | None = None
    unwanted: list[int] = field(default_factory=list)
    """States to drop when no request is in flight. A branch may drop its states while another branch's cell runs; the
    controller would take such a message for the answer to its question, or for the exit of its host."""
    relay: OutputRelay | None = None
    """Receives the output of the running cell."""

    async def run(self, base: int, cell: Cell, relay: OutputRelay | None = None) -> tuple[Execution, int | None]:
        """Run a cell on a state; returns the result and the new state, if any."""
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
            raise LostError from None
        except LostError as lost:
            if not lost.for_memory:
                raise
            message = f"stopped at its memory limit of {limits.memory_bytes} bytes"
            return Execution(ExecutionStatus.MEMORY, message=message, signal=9), None
        finally:
            watch.end()
            self.relay = None
            self._end_request()
        kept, self.fingerprint, inner_pid, *inodes = wire.SESSION_REPLY.unpack_from(header)
        reply = header[wire.SESSION_REPLY.size :]
        wait_status = wire.REPLY.unpack(reply)[0]
        if wait_status == wire.STATE_LOST:
            raise DamagedError
        if wait_status == wire.TREE_SPOILED:
            message = "the cell left processes that could not be ended, so it counts as crashed"
            return Execution(ExecutionStatus.ERROR, message=message), None
        killed_for_memory = bool(wait_status & 0x7F) and self.memory.was_killed()
        execution, _ = wire.decode_reply(
            reply, data, limits, killed_for_memory=killed_for_memory, is_starved=clock.is_starved
        )
        if killed_for_memory and self.memory.ends_slot:
            self.channel.close()  # its sessions rebuild their states in another tree
        elif kept:
            self.states[new] = ParkedState(inner_pid, tuple(inodes))
            self.newest = new
            self._drop_oldest()
        return execution, new if kept and self.channel.is_open else None

    async def use_files(self, operation: int, path: str = "", data: bytes = b"") -> bytes:
        """Ask the controller to use files. FileError if it cannot."""
        self.last_used = time.monotonic()
        name = path.encode()
        message = wire.FILE_REQUEST.pack(len(name), len(data)) + name + data
        try:
            header, content = await self._ask(wire.SESSION_REQUEST.pack(operation, 0, 0) + message, _FILES_S)
        except TimeoutError:
            kill_quietly(self.pid)
            raise LostError from None
        finally:
            self._end_request()
        _, self.fingerprint, *_ = wire.SESSION_REPLY.unpack_from(header)
        error_number = wire.REPLY.unpack_from(header, wire.SESSION_REPLY.size)[0]
        if error_number:
            raise FileError(error_number)
        return content

    def take_message(self, header: bytes, body: bytes) -> None:
        relay, reply = self.relay, header[wire.SESSION_REPLY.size :]
        if relay is not None and (output := wire.partial_output(reply, body)) is not None:
            relay.receive(*output)
            return
        self.resolve(lambda waiting: waiting.set_result((header, body)))

    def resolve(self, settle: Callable[[asyncio.Future[tuple[bytes, bytes]]], None]) -> None:
        """Settle the request in flight, if there is one."""
        if self.waiting is not None and not self.waiting.done():
            settle(self.waiting)

    async def _ask(self, message: bytes, expected_s: float) -> tuple[bytes, bytes]:
        if not self.channel.is_open:
            raise LostError
        self.waiting = asyncio.get_running_loop().create_future()
        self.channel.send(message)
        async with asyncio.timeout(expected_s + 3 * GRACE_S):
            return await self.waiting

    def _end_request(self) -> None:
        self.waiting = None
        self.last_used = time.monotonic()
        self._send_drops()

    def _drop_oldest(self) -> None:
        """Drop the oldest states, which count against the slot's process limit; a rollback can rebuild them."""
        heads = {session.head_state for session in self.sessions} | {ROOT.state, max(self.states)}
        for state in sorted(self.states.keys() - heads)[: max(0, len(self.states) - _MAX_STATES)]:
            self.drop(state)

    def is_separable(self, state: int) -> bool:
        """Whether sessions on this state would share nothing."""
        if state == ROOT.state:
            return True
        parked = self.states.get(state)
        if parked is None or not self.pid:
            return False
        try:
            if self.own_mappings is None:
                self.own_mappings = shared_mappings(self.pid)
        except OSError:
            return False
        return parked.shares_nothing(self.pid, self.own_mappings, is_newest=state == self.newest)

    def is_as_left(self, state: int) -> bool:
        """Whether a state is as its own cell left it, that is, no later cell in the tree can have changed it."""
        return state in (ROOT.state, self.newest) or self.is_separable(state)

    def drop(self, state: int) -> None:
        self.states.pop(state, None)
        self.unwanted.append(state)
        if self.waiting is None:
            self._send_drops()

    def _send_drops(self) -> None:
        requests = [wire.SESSION_REQUEST.pack(wire.OPERATION_DROP, state, 0) for state in self.unwanted]
        self.unwanted.clear()
        if requests and self.channel.is_open:
            self.channel.send(b"".join(requests))


class _CellWatch:
    """Enforces from outside what a cell could evade: the CPU limit of each process, its share of the cores and, without
    a memory group, the memory limit. It first checks after a moment, so that short cells cost nothing."""

    def __init__(self, tree: LiveTree, limits: Limits) -> None:
        self._tree = tree
        self._cpu_s = limits.cpu_s + _CPU_GRACE_S
        self._loop = asyncio.get_running_loop()
        self._started_at = time.monotonic()
        self._reniced: list[int] = []
        self._next = self._loop.call_later(TICK_S, self._check_limits)

    def _check_limits(self) -> None:
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
        self._next = self._loop.call_later(TICK_S if tree.memory.group is None else YOUNG_S, self._check_limits)

    def end(self) -> None:
        self._next.cancel()
        processes.renice(self._reniced, 0)
