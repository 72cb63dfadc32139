"""The nodes of a pool: which of them may get work, and what happens to those that do not answer.

Invariant: only a ready node is chosen; the calls of a lost or removed node are handed to `on_lost` at once.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Collection, Coroutine, Iterator
from typing import Any, TypeVar

from rstar2.errors import InfrastructureError, UserError
from rstar2.sandbox.executor import Executor, Session
from rstar2.sandbox.pool.choice import choose
from rstar2.sandbox.pool.node import HealthConfig, Node, NodeReport, NodeState, Probe, state_after

logger = logging.getLogger(__name__)
T = TypeVar("T")
POLL_S = 0.02
CLOSE_DEADLINE_S = 5.0


class NodeLost(InfrastructureError):  # noqa: N818
    """The node was lost while it worked for the caller."""

    def __init__(self, node: Node) -> None:
        super().__init__(f"the sandbox node {node.name} was lost: {node.message}")


class NodeTable:
    def __init__(
        self,
        health: HealthConfig,
        rng: random.Random,
        *,
        on_change: Callable[[], None],
        on_lost: Callable[[Node], None],
    ) -> None:
        self._health = health
        self._rng = rng
        self._on_change = on_change
        self._on_lost = on_lost
        self._nodes: dict[str, Node] = {}
        self._watchers: dict[Node, asyncio.Task[None]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def __iter__(self) -> Iterator[Node]:
        return iter(self._nodes.values())

    def __len__(self) -> int:
        return len(self._nodes)

    def get(self, name: str) -> Node | None:
        return self._nodes.get(name)

    def add(self, name: str, executor: Executor, num_slots: int, probe: Probe | None, *, is_fixed: bool) -> Node:
        if name in self._nodes:
            raise UserError(f"node: there is one named {name} already")
        if num_slots < 1:
            raise UserError(f"num_slots: node {name} must have at least 1, not {num_slots}")
        state = NodeState.READY if probe is None else NodeState.JOINING
        node = self._nodes[name] = Node(name, executor, num_slots, probe, is_fixed, state)
        if probe is not None:
            self._watchers[node] = asyncio.create_task(self._watch(node, probe), name=f"watch {name}")
        self._on_change()
        return node

    def choose(self, avoid: Collection[str] = ()) -> Node | None:
        chosen = choose([node.candidate() for node in self], self._rng, avoid)
        return self._nodes[chosen.name] if chosen else None

    async def visit(self, node: Node, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of the work on the node; NodeLost as soon as the node is lost."""
        task, lost = asyncio.ensure_future(work), asyncio.ensure_future(node.lost.wait())
        node.num_outstanding += 1
        try:
            await asyncio.wait((task, lost), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise NodeLost(node)
            return task.result()
        finally:
            node.num_outstanding -= 1
            for waiter in (task, lost):
                waiter.cancel()
            self._on_change()

    def suspect(self, node: Node, reason: str) -> None:
        """Suspect a failed node: it is probed before it gets more."""
        if node.probe is not None and node.state is NodeState.READY:
            node.state, node.message = NodeState.SUSPECT, reason
            node.wake.set()

    def lose(self, node: Node, reason: str) -> None:
        if node.state is not NodeState.LOST:
            logger.warning("the sandbox node %s is lost: %s", node.name, reason)
            self._end(node, reason)

    def start_leaving(self, node: Node) -> None:
        node.is_leaving = True
        if node.state is not NodeState.LOST:
            node.state = NodeState.DRAINING

    async def finish_leaving(self, node: Node, deadline_s: float) -> bool:
        """Remove the node once it has no calls left. Returns whether it finished in time; else the rest is rerun."""
        until = time.monotonic() + deadline_s
        while node.num_outstanding and node.state is not NodeState.LOST and time.monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)
        is_done = not node.num_outstanding
        self.drop(node, "it left before it had finished")
        return is_done

    async def close(self) -> None:
        for node in list(self):
            self.drop(node, "the pool was closed")
        await asyncio.gather(*self._closing, return_exceptions=True)

    def close_later(self, node: Node, session: Session) -> None:
        """Close a session in the background, unless its node is lost."""
        if node.state is not NodeState.LOST:
            self._start_closing(session)

    def _end(self, node: Node, reason: str) -> None:
        node.state, node.message = NodeState.LOST, reason
        node.lost.set()
        self._on_lost(node)
        self._on_change()

    def _start_closing(self, thing: Executor | Session) -> None:
        closing = asyncio.create_task(_close(thing), name="close what a sandbox node holds")
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def drop(self, node: Node, reason: str) -> None:
        """Remove the node; its calls are rerun elsewhere."""
        if self._nodes.get(node.name) is not node:
            return
        del self._nodes[node.name]
        if (watcher := self._watchers.pop(node, None)) is not None:
            watcher.cancel()
        self._end(node, reason)
        self._start_closing(node.executor)

    async def _watch(self, node: Node, probe: Probe) -> None:
        while True:
            node.wake.clear()
            report, reason = await self._ask(probe)
            self._record_probe(node, report, reason)
            is_old = time.monotonic() - node.last_seen > self._health.forget_after_s
            if node.state is NodeState.LOST and is_old and not node.is_fixed:
                self.drop(node, reason)
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._health.period_s):
                    await node.wake.wait()

    async def _ask(self, probe: Probe) -> tuple[NodeReport | None, str]:
        deadline_s = self._health.deadline_s
        try:
            async with asyncio.timeout(deadline_s):
                return await probe(), ""
        except TimeoutError:
            return None, f"it did not answer within {deadline_s:g} s"
        except Exception as error:
            # Whatever the error is, the node did not answer.
            return None, str(error) or repr(error)

    def _record_probe(self, node: Node, report: NodeReport | None, reason: str) -> None:
        node.num_failures = 0 if report else node.num_failures + 1
        node.message = reason
        if report is not None:
            node.report, node.num_slots, node.last_seen = report, max(1, report.num_slots), time.monotonic()
        state = state_after(report, node.num_failures, self._health, node.state)
        if state is NodeState.LOST:
            self.lose(node, reason)
            return
        if node.state is NodeState.LOST:
            node.lost = asyncio.Event()
        node.state = NodeState.DRAINING if node.is_leaving else state
        self._on_change()


async def _close(thing: Executor | Session) -> None:
    with contextlib.suppress(TimeoutError, InfrastructureError, ValueError):  # ValueError: it has nothing to close
        async with asyncio.timeout(CLOSE_DEADLINE_S):
            await thing.close()
