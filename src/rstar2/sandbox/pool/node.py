"""One node as the pool knows it: where it runs code, whether it can be given work, and the calls that it has."""

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
"""A node gets far more calls than it has slots: programs that sleep leave their core to others, and it has its own fair
queue. The bound keeps the rest here, where it can still go to another node."""


class NodeState(StrEnum):
    JOINING = "joining"
    """Known, but it has not answered yet."""
    READY = "ready"
    """The only state in which it is given calls."""
    SUSPECT = "suspect"
    """It failed a call or did not answer. It keeps its calls, and is probed before it gets more."""
    LOST = "lost"
    """It did not answer too often. Its calls are rerun elsewhere. One answer makes it ready again."""
    DRAINING = "draining"
    """It is leaving, and finishes the calls that it has."""


@dataclass(frozen=True, slots=True)
class NodeReport:
    """What a node reports."""

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
    """A node that does not answer a probe within this time hangs: it is stopped, swaps or is cut off. Far above what a
    node under full load needs, because the calls of a slow node that is taken for lost run twice."""
    num_failures_to_lose: int = 3
    """Unanswered probes in a row; a restart of a node's server takes less."""
    forget_after_s: float = 600.0
    """A node that joined by itself is forgotten when it has been lost for this long."""


def state_after(report: NodeReport | None, num_failures: int, config: HealthConfig, state: NodeState) -> NodeState:
    """The state that follows an answer, or the lack of one; `num_failures` counts those in a row, this one included."""
    if report is not None:
        return NodeState.DRAINING if report.is_draining else NodeState.READY
    if num_failures >= config.num_failures_to_lose:
        return NodeState.LOST
    return state if state in (NodeState.JOINING, NodeState.LOST, NodeState.DRAINING) else NodeState.SUSPECT


@dataclass(eq=False, slots=True)
class PoolCall:
    """One request of one caller, who is answered once: by `future`."""

    request: Request
    flow: str
    future: "asyncio.Future[Execution]"
    submitted_at: float = field(default_factory=time.monotonic)
    given_at: float = 0.0
    tried: set[str] = field(default_factory=set)
    """The names of the nodes that failed this call."""
    num_failed_tries: int = 0
    relay: OutputRelay | None = None
    """Where its output goes while it runs."""
    group: "CallGroup | None" = None
    """The calls that were sent with it; None while it waits."""

    @property
    def expires_at(self) -> float:
        return self.submitted_at + self.request.queue_s


@dataclass(eq=False, slots=True)
class CallGroup:
    """Calls that were given to a node in one message. A call that is taken out is no longer the node's: a later
    answer to it is dropped."""

    node: "Node"
    calls: dict[int, PoolCall]
    error: Exception
    """Why the calls that are left at its end were not answered."""
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
    """Named by the operator: never forgotten."""
    state: NodeState
    address: str | None = None
    """The address of a node that joined by itself: it joined from there, and is called there."""
    num_outstanding: int = 0
    num_failures: int = 0
    """Unanswered probes in a row."""
    num_answered: int = 0
    num_rerun: int = 0
    """Calls that were rerun because of it."""
    last_seen: float = field(default_factory=time.monotonic)
    rests_until: float = 0.0
    """It reported that it is full: until then it gets no calls."""
    is_leaving: bool = False
    message: str = ""
    """Why it is not ready."""
    report: NodeReport | None = None
    groups: set[CallGroup] = field(default_factory=set)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    """Probe it now, and not at the end of the period."""
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
