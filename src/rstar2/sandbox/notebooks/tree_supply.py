"""Makes trees, one in advance, and evicts the least recently used ones when there are too many."""

import asyncio
import contextlib
import math
import time

from rstar2.sandbox.execution import Limits
from rstar2.sandbox.isolation.uids import SESSION_NUMBERS
from rstar2.sandbox.notebooks.live_tree import LiveTree, LostError
from rstar2.sandbox.slots import wire
from rstar2.sandbox.slots.slot import MemoryAccount, SlotChannel, socket_pair
from rstar2.sandbox.slots.slot_factory import SlotFactory

_TEMPLATE_WAIT_S = 30.0
SPARE_LIMITS = Limits()


class UnavailableError(Exception):
    """This machine has no worker for the session. No cell can cause it."""


class TreeSupply:
    """The live trees of all sessions of one executor."""

    def __init__(self, factory: SlotFactory, *, max_live: int) -> None:
        self._factory = factory
        self._max_live = max_live
        self.live: set[LiveTree] = set()
        self._spare: LiveTree | None = None
        self._next_number = 0
        self._last_lost_at = -math.inf
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def num_live(self) -> int:
        return len(self.live) - (self._spare is not None)

    async def take(self, limits: Limits) -> LiveTree:
        """The spare tree if its limits suffice, else a new one; the next spare is made in the background. A spare
        that is older than the last loss is not used: what ended that tree may have ended the spare too, unnoticed."""
        spare, self._spare = self._spare, None
        names = ("memory_bytes", "num_processes", "file_bytes")
        is_fit = all(getattr(limits, name) <= getattr(SPARE_LIMITS, name) for name in names)
        if spare is not None and not (is_fit and spare.channel.is_open and spare.made_at > self._last_lost_at):
            self.end(spare)
            spare = None
        tree = spare or await self._make_tree(limits)
        asyncio.get_running_loop().call_soon(self._make_spare)
        return tree

    def _make_spare(self) -> None:
        if self._spare is None and not self._is_closed:
            making = asyncio.create_task(self._make_tree(SPARE_LIMITS), name="make a spare session")
            making.add_done_callback(self._keep_spare)

    def _keep_spare(self, making: "asyncio.Task[LiveTree]") -> None:
        if making.cancelled() or making.exception() is not None:
            return
        if self._spare is None and not self._is_closed:
            self._spare = making.result()
        else:
            self.end(making.result())

    async def _make_tree(self, limits: Limits) -> LiveTree:
        """Make a tree. OSError if the machine refuses a resource; nothing is left behind then."""
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
                        raise UnavailableError("no template was ready")
                    await asyncio.sleep(0.02)
            tree: LiveTree
            channel = SlotChannel(
                asyncio.get_running_loop(),
                ours,
                prefix_bytes=wire.SESSION_REPLY.size,
                on_reply=lambda header, body: tree.take_message(header, body),
                on_lost=lambda: self._on_lost(tree),
            )
            tree = LiveTree(channel, memory, can_renice=self._factory.can_renice)
            self.live.add(tree)
            undo.pop_all()
        channel.send(wire.encode_request(b"", b"", limits, has_memory_group=group is not None))
        return tree

    def _on_lost(self, tree: LiveTree) -> None:
        self._last_lost_at = time.monotonic()
        lost = LostError(for_memory=tree.memory.was_killed())
        tree.resolve(lambda waiting: waiting.set_exception(lost))
        self.end(tree)

    def end(self, tree: LiveTree) -> None:
        tree.channel.close()
        if tree in self.live:
            self.live.remove(tree)
            if tree.memory.group is not None:
                self._factory.retire_memory_group(tree.memory.group)
        for session in tree.sessions:
            session.tree = None
        tree.sessions.clear()

    def _evict(self) -> None:
        idle = sorted(
            (tree for tree in self.live if tree.sessions and not tree.lock.locked()), key=lambda tree: tree.last_used
        )
        for tree in idle[: max(0, len(self.live) - self._max_live + 1)]:
            self.end(tree)

    async def close(self) -> None:
        self._is_closed = True
        self._spare = None
        for tree in list(self.live):
            self._on_lost(tree)
