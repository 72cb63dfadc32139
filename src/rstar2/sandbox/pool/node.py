"""The pool's record of a node: its executor, its health, and the calls that it has."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from rstar2.sandbox.execution import Execution
from rstar2.sandbox.executor import Executor, Request
from rstar2.sandbox.http.schema import NodeInfo
from rstar2.sandbox.isolation.guarantees import Guarantee
from rstar2.sandbox.output_relay import OutputRelay
from rstar2.sandbox.pool.choice import Candidate

NUM_CALLS_PER_SLOT = 128
"""A node gets far more calls than it has slots: programs that sleep leave their core to others, and the node has its
own fair queue. The bound keeps the rest here, where they can still go to another node."""


class NodeState(StrEnum):
    JOINING = "joining"
    """The node was added, but has not answered yet."""
    READY = "ready"
    """The node gets calls; in no other state does it get any."""
    SUSPECT = "suspect"
    """The node failed a call or did not answer. It keeps its calls, and is probed before it gets more."""
    LOST = "lost"
    """The node missed too many probes. Its calls are rerun elsewhere. One answer makes it ready again."""
    DRAINING = "draining"
    """The node is leaving, and finishes the calls that it has."""


@dataclass(frozen=True, slots=True)
class NodeReport:
    """A node's answer to a probe."""

    is_draining: bool
    num_slots: int
    guarantees: Sequence[Guarantee] = ()


Probe = Callable[[], Awaitable[NodeReport]]
"""Asks a node for its report. It raises if the node does not answer; the caller sets the deadline."""


@dataclass(frozen=True, slots=True)
class HealthConfig:
    period_s: float = 1.0
    """The time between an answer and the next probe. A failed call probes at once."""
    deadline_s: float = 3.0
    """A node that does not answer a probe within this time is hung: stopped, swapping or cut off. It is far more than a
    node under full load needs, because the calls of a slow node that is taken for lost run twice."""
    num_failures_to_lose: int = 3
    """Consecutive unanswered probes until a node is lost; a restart of its server takes less."""
    forget_after_s: float = 600.0
    """A node that joined by itself is removed when it has been lost for this long."""


def state_after(report: NodeReport | None, num_failures: int, config: HealthConfig, state: NodeState) -> NodeState:
    """The state after an answer, or after a missed probe (None); `num_failures` counts consecutive misses, this one
    included."""
    if report is not None:
        return NodeState.DRAINING if report.is_draining else NodeState.READY
    if num_failures >= config.num_failures_to_lose:
        return NodeState.LOST
    return state if state in (NodeState.JOINING, NodeState.LOST, NodeState.DRAINING) else NodeState.SUSPECT


@dataclass(eq=False, slots=True)
class PoolCall:
    """One request of one caller; `future` gives the caller exactly one answer."""

    request: Request
    flow: str
    future: "asyncio.Future[Execution]"
    submitted_at: float = field(default_factory=time.monotonic)
    given_at: float = 0.0
    tried: set[str] = field(default_factory=set)
    """The names of the nodes that failed this call."""
    num_failed_tries: int = 0
    relay: OutputRelay | None = None
    """Receives the output while the program runs."""
    group: "CallGroup | None" = None
    """The group that the call was sent in; None while it waits."""

    @property
    def expires_at(self) -> float:
        return self.submitted_at + self.request.queue_s


@dataclass(eq=False, slots=True)
class CallGroup:
    """Calls that were sent to a node in one message. The pool may take a call out of the group; the node's later answer
    to it is then dropped."""

    node: "Node"
    calls: dict[int, PoolCall]
    error: Exception
    """Why the calls that are still in the group at its end were not answered."""
    task: "asyncio.Task[None] | None" = None

    def take(self, index: int) -> PoolCall | None:
        call = self.calls.pop(index, None)
        if call is not None:
            call.group = None
            self.node.num_outstanding -= 1
        return call

    def take_all(self) -> list[PoolCall]:
        return [call for index in list(self.calls) if (call := self.take(index)) is not None]

    @property
    def is_abandoned(self) -> bool:
        return all(call.future.done() for call in self.calls.values())


@dataclass(eq=False)
class Node:
    name: str
    executor: Executor
    num_slots: int
    probe: Probe | None
    is_fixed: bool
    """Named by the operator, and never removed."""
    state: NodeState
    address: str | None = None
    """The address that a node joined from by itself, at which the gateway calls it."""
    num_outstanding: int = 0
    num_failures: int = 0
    """Consecutive unanswered probes."""
    num_answered: int = 0
    num_rerun: int = 0
    """Calls that were rerun because this node failed."""
    last_seen: float = field(default_factory=time.monotonic)
    rests_until: float = 0.0
    """The node reported that it is full; it gets no calls until this time."""
    is_leaving: bool = False
    message: str = ""
    """Why the node is not ready."""
    report: NodeReport | None = None
    groups: set[CallGroup] = field(default_factory=set)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    """Set to probe the node at once."""
    lost: asyncio.Event = field(default_factory=asyncio.Event)

    def candidate(self) -> Candidate:
        takes_calls = self.state is NodeState.READY and time.monotonic() >= self.rests_until
        capacity = self.num_slots * NUM_CALLS_PER_SLOT
        return Candidate(self.name, self.num_slots, self.num_outstanding, capacity, takes_calls)

    def info(self) -> NodeInfo:
        return NodeInfo(
            url=self.name,
            state=self.state.value,
            num_slots=self.num_slots,
            num_outstanding=self.num_outstanding,
            num_answered=self.num_answered,
            num_rerun=self.num_rerun,
            num_failures=self.num_failures,
            silent_s=round(time.monotonic() - self.last_seen, 3),
            message=self.message,
        )
