"""Many sandboxes as one executor: every call goes to a node with room, and is answered once.

Invariants: a call is in the queue, or with one node, or answered; a node's answer counts only while the call is with
that node, so a caller gets exactly one answer whichever nodes die. A call is rerun only if its node failed, a bounded
number of times and not beyond the caller's queue deadline; a program's own failure is never rerun. A full queue refuses
calls at once.
"""

import asyncio
import itertools
import logging
import math
import random
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import replace
from typing import Self

from rstar2.errors import InfrastructureError, UserError
from rstar2.sandbox.execution import Execution, ExecutionStatus, OnOutput
from rstar2.sandbox.executor import Executor, Overloaded, Request
from rstar2.sandbox.fair_queue import FairQueue
from rstar2.sandbox.http.schema import NodeInfo
from rstar2.sandbox.output_relay import OutputRelay
from rstar2.sandbox.pool.node import CallGroup, HealthConfig, Node, PoolCall, Probe
from rstar2.sandbox.pool.node_table import NodeTable
from rstar2.sandbox.pool.pool_session import PoolSession

logger = logging.getLogger(__name__)
MAX_TRIES = 4
"""If this many nodes fail on a call one after another, the call is most likely the cause."""
TICK_S = 0.05
LEAVE_DEADLINE_S = 60.0
SHORTEST_QUEUE_S = 1e-3


class PoolExecutor:
    """Satisfies `Executor` over any number of nodes, each an `Executor` that belongs to the pool from then on."""

    def __init__(
        self,
        *,
        health: HealthConfig | None = None,
        max_queued: int = 100_000,
        rng: random.Random | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: FairQueue[PoolCall] = FairQueue(max_queued)
        self._flows = itertools.count()
        self._next_expiry = math.inf
        self._will_pump = False
        self._is_closed = False
        self.table = NodeTable(
            health or HealthConfig(),
            rng or random.Random(),
            on_change=self._pump_soon,
            on_lost=self._take_back,
        )
        self._ticker = asyncio.create_task(self._tick(), name="expire queued calls")

    # ---- nodes ----

    def add_node(
        self, name: str, executor: Executor, num_slots: int, probe: Probe | None = None, *, is_fixed: bool = True
    ) -> None:
        """Add a node. With a `probe` it gets calls once it has answered, and is probed from then on; without one it is
        trusted until `lose_node`. Unless `is_fixed`, it is removed when it has been lost for long."""
        self.table.add(name, executor, num_slots, probe, is_fixed=is_fixed)

    async def remove_node(self, name: str, deadline_s: float = LEAVE_DEADLINE_S) -> bool:
        """Send no new calls, wait for running ones, and rerun the rest elsewhere after the deadline. Returns whether
        all finished."""
        node = self._find_node(name)
        self.table.start_leaving(node)
        return await self.table.finish_leaving(node, deadline_s)

    def lose_node(self, name: str) -> None:
        """Mark the node as lost and rerun its calls elsewhere. A node with a probe is used again when it answers."""
        self.table.lose(self._find_node(name), "it was reported as lost")

    def nodes(self) -> Sequence[NodeInfo]:
        return [node.info() for node in self.table]

    @property
    def num_queued(self) -> int:
        return len(self._queue)

    # ---- callers ----

    async def run(self, request: Request, on_output: OnOutput | None = None) -> Execution:
        call = self._submit(request, request.flow)
        call.relay = None if on_output is None else OutputRelay(on_output)
        try:
            return await call.future
        finally:
            self._abandon(call)

    async def run_many(self, requests: Iterable[Request]) -> AsyncIterator[tuple[int, Execution]]:
        """Run as many at a time as the queue has room for; Overloaded if it is full and holds none of them."""
        flow = self._new_flow()
        finished: asyncio.Queue[tuple[int, asyncio.Future[Execution]]] = asyncio.Queue()
        calls: dict[int, PoolCall] = {}

        async def next_finished() -> tuple[int, Execution]:
            index, future = await finished.get()
            del calls[index]
            return index, future.result()

        try:
            for index, request in enumerate(requests):
                while calls and not self._queue.room:
                    yield await next_finished()
                calls[index] = call = self._submit(request, request.flow or flow)
                call.future.add_done_callback(lambda done, index=index: finished.put_nowait((index, done)))  # type: ignore[misc]
            while calls:
                yield await next_finished()
        finally:
            for call in calls.values():
                self._abandon(call)

    async def session(self) -> PoolSession:
        return PoolSession(self.table)

    async def close(self) -> None:
        self._is_closed = True
        self._ticker.cancel()
        await self.table.close()
        for call in self._queue.take_expired(lambda _: True):
            self._fail(call, InfrastructureError("the pool was closed"))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # ---- from the queue to a node ----

    def _submit(self, request: Request, flow: str) -> PoolCall:
        if self._is_closed:
            raise InfrastructureError("the pool is closed")
        if not self._queue.room:
            raise Overloaded(retry_after_s=1.0)
        call = PoolCall(request, flow or self._new_flow(), self._loop.create_future())
        self._queue.push(call.flow, call)
        self._next_expiry = min(self._next_expiry, call.expires_at)
        self._pump_soon()
        return call

    def _pump_soon(self) -> None:
        """Pump at the end of this event-loop step, so that calls submitted together go to a node in one message."""
        if not self._will_pump and not self._is_closed:
            self._will_pump = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._will_pump = False
        together: dict[Node, list[PoolCall]] = {}
        while len(self._queue):
            call = self._queue.pop()
            node = self.table.choose(call.tried)
            if node is None:
                self._queue.push_front(call.flow, call)
                break
            node.num_outstanding += 1
            # A call that failed once is sent alone: if it was the cause, it must not fail others. A call whose output
            # is streamed is sent alone too: a batch returns only results.
            if call.num_failed_tries or call.relay is not None:
                self._give(node, [call])
            else:
                together.setdefault(node, []).append(call)
        for node, calls in together.items():
            self._give(node, calls)

    def _give(self, node: Node, calls: list[PoolCall]) -> None:
        now = time.monotonic()
        error = InfrastructureError(f"the sandbox node {node.name} ended a batch before all of it was answered")
        group = CallGroup(node, dict(enumerate(calls)), error)
        for call in calls:
            call.group, call.given_at = group, now
        node.groups.add(group)
        group.task = asyncio.create_task(self._run_group(group), name=f"calls on {node.name}")
        group.task.add_done_callback(lambda _: self._end_group(group))

    async def _run_group(self, group: CallGroup) -> None:
        node = group.node
        now = time.monotonic()
        requests = [
            replace(call.request, queue_s=max(call.expires_at - now, SHORTEST_QUEUE_S)) for call in group.calls.values()
        ]
        try:
            if len(requests) == 1:
                relay = group.calls[0].relay
                ask = node.executor.run
                execution = await (ask(requests[0]) if relay is None else ask(requests[0], relay.restarted()))
                self._take_answer(group, 0, execution)
            else:
                async for index, execution in node.executor.run_many(requests):
                    self._take_answer(group, index, execution)
        except Overloaded as full:
            self._back_off(group, full.retry_after_s)
        except (InfrastructureError, UserError) as error:
            group.error = error
        except Exception as error:
            logger.exception("the executor of the sandbox node %s raised", node.name)
            group.error = InfrastructureError(f"the sandbox node {node.name} failed: {error!r}")

    def _end_group(self, group: CallGroup) -> None:
        group.node.groups.discard(group)
        for call in group.take_all():
            self._rerun(call, group.node, group.error)
        self._pump_soon()

    def _take_answer(self, group: CallGroup, index: int, execution: Execution) -> None:
        call = group.take(index)
        if call is None:
            return
        if execution.status is ExecutionStatus.INFRASTRUCTURE:
            self._rerun(call, group.node, InfrastructureError(execution.message))
        else:
            group.node.num_answered += 1
            queue_s = execution.queue_s + call.given_at - call.submitted_at
            num_attempts = execution.num_attempts + call.num_failed_tries
            _settle(call, replace(execution, queue_s=queue_s, num_attempts=num_attempts))
        self._pump_soon()

    # ---- failures ----

    def _rerun(self, call: PoolCall, node: Node, error: Exception) -> None:
        """Rerun a call that its node failed on another node, unless it has no time left or has failed too often."""
        if call.future.done():
            return
        self.table.suspect(node, str(error))
        node.num_rerun += 1
        call.tried.add(node.name)
        call.num_failed_tries += 1
        if call.num_failed_tries >= MAX_TRIES or time.monotonic() >= call.expires_at or self._is_closed:
            self._fail(call, error)
        else:
            self._queue.push_front(call.flow, call)
            self._pump_soon()

    def _take_back(self, node: Node) -> None:
        """Rerun the calls of a lost node; its later answers are ignored."""
        error = InfrastructureError(f"the sandbox node {node.name} was lost: {node.message}")
        for group in list(node.groups):
            calls = group.take_all()
            if group.task is not None:
                group.task.cancel()
            for call in calls:
                self._rerun(call, node, error)

    def _back_off(self, group: CallGroup, retry_after_s: float) -> None:
        """Put the calls of a full node, which did not fail, back into the queue for any node."""
        group.node.rests_until = time.monotonic() + retry_after_s
        group.node.wake.set()
        self._loop.call_later(retry_after_s, self._pump_soon)
        for call in reversed(group.take_all()):
            if not call.future.done():
                self._queue.push_front(call.flow, call)

    def _fail(self, call: PoolCall, error: Exception) -> None:
        if isinstance(error, UserError):
            if not call.future.done():
                call.future.set_exception(error)
            return
        fault = Execution(
            ExecutionStatus.INFRASTRUCTURE, message=str(error), num_attempts=max(1, call.num_failed_tries)
        )
        _settle(call, fault)

    def _abandon(self, call: PoolCall) -> None:
        """Release a call that is answered or whose caller has left. Without a caller it is cancelled: at once if it is
        alone, otherwise with the last of its group."""
        if call.future.done() and not call.future.cancelled():
            return
        call.future.cancel()
        if call.group is None:
            self._queue.remove(call.flow, call)
        elif call.group.is_abandoned and call.group.task is not None:
            call.group.task.cancel()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            now = time.monotonic()
            if now < self._next_expiry:
                continue
            for call in self._queue.take_expired(lambda call: call.expires_at <= now):  # noqa: B023
                waited = f"no sandbox node had room within {call.request.queue_s:g} s"
                status = ExecutionStatus.QUEUE_TIMEOUT
                _settle(call, Execution(status, queue_s=call.request.queue_s, message=waited))
            self._next_expiry = min((call.expires_at for call in self._queue), default=math.inf)

    def _new_flow(self) -> str:
        return f"pool-{next(self._flows)}"

    def _find_node(self, name: str) -> Node:
        node = self.table.get(name)
        if node is None:
            raise UserError(f"node: there is none named {name}")
        return node


def _settle(call: PoolCall, execution: Execution) -> None:
    if not call.future.done():
        call.future.set_result(execution)
