"""One node as the pool knows it: where it runs code, how it is, and what it has been given."""

import asyncio
import time
from dataclasses import dataclass, field

from rstar2.sandbox.execution import Execution
from rstar2.sandbox.executor import Executor, Request
from rstar2.sandbox.http.schema import NodeInfo
from rstar2.sandbox.pool.choice import Candidate
from rstar2.sandbox.pool.health import NodeReport, NodeState, Probe

NUM_CALLS_PER_SLOT = 128
"""A node is given far more than it has slots: programs that sleep leave their core to others, and it has a fair queue
of its own. The bound keeps the rest here, where it can still go to another node."""


@dataclass(eq=False, slots=True)
class Call:
    """One request of one caller, who is answered once: by `future`."""

    request: Request
    flow: str
    future: "asyncio.Future[Execution]"
    submitted_at: float = field(default_factory=time.monotonic)
    given_at: float = 0.0
    tried: set[str] = field(default_factory=set)
    """Nodes that failed it."""
    num_failed_tries: int = 0
    group: "Group | None" = None
    """What it is in flight with; None while it waits."""

    @property
    def expires_at(self) -> float:
        return self.submitted_at + self.request.queue_s


@dataclass(eq=False, slots=True)
class Group:
    """Calls that were given to a node in one message. A call that is taken out is no longer the node's to answer: what
    the node may still say to it is dropped."""

    node: "Node"
    calls: dict[int, Call]
    error: Exception
    """Why those were not answered that are left when it ends."""
    task: "asyncio.Task[None] | None" = None

    def take(self, index: int) -> Call | None:
        call = self.calls.pop(index, None)
        if call is not None:
            call.group = None
            self.node.num_outstanding -= 1
        return call

    def take_all(self) -> list[Call]:
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
    num_outstanding: int = 0
    num_failures: int = 0
    """Unanswered probes in a row."""
    num_answered: int = 0
    num_rerun: int = 0
    """Calls that were rerun because of it."""
    last_seen: float = field(default_factory=time.monotonic)
    rests_until: float = 0.0
    """It said that it is full: until then it is left alone."""
    is_leaving: bool = False
    message: str = ""
    """Why it is not ready, in its own or our words."""
    report: NodeReport | None = None
    groups: set[Group] = field(default_factory=set)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    """Ask it now, and not at the end of the period."""
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
