"""Whatever is done to the queue, it does what the plainest model of it does, and it is fair at every moment."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rstar2.sandbox.fair_queue import FairQueue

pytestmark = pytest.mark.property

FLOWS = st.sampled_from("abcdef")


class QueueMachine(RuleBasedStateMachine):
    """The model: one list a flow, and the order in which flows are served."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: FairQueue[tuple[str, int]] = FairQueue(40)
        self.flows: dict[str, list[tuple[str, int]]] = {}
        self.turns: list[str] = []
        self.num_made = 0

    def count(self) -> int:
        return sum(map(len, self.flows.values()))

    @precondition(lambda self: self.queue.room > 0)
    @rule(flow=FLOWS)
    def push(self, flow: str) -> None:
        item = (flow, self.num_made)
        self.num_made += 1
        self.queue.push(flow, item)
        if flow not in self.flows:
            self.turns.append(flow)
        self.flows.setdefault(flow, []).append(item)

    @precondition(lambda self: self.turns)
    @rule(is_given_back=st.booleans())
    def pop(self, is_given_back: bool) -> None:
        item = self.queue.pop()
        flow = self.turns.pop(0)
        assert item == self.flows[flow].pop(0)
        if is_given_back:
            self.queue.push_front(flow, item)
            self.flows[flow].insert(0, item)
            self.turns.insert(0, flow)
        elif self.flows[flow]:
            self.turns.append(flow)
        else:
            del self.flows[flow]

    @rule(divisor=st.integers(1, 4))
    def expire(self, divisor: int) -> None:
        taken = self.queue.take_expired(lambda item: item[1] % divisor == 0)
        expected = [item for items in self.flows.values() for item in items if item[1] % divisor == 0]
        assert Counter(taken) == Counter(expected)
        for flow in list(self.flows):
            self.flows[flow] = [item for item in self.flows[flow] if item[1] % divisor]
            if not self.flows[flow]:
                del self.flows[flow]
                self.turns.remove(flow)

    @invariant()
    def counts(self) -> None:
        assert len(self.queue) == self.count()
        assert Counter(self.queue) == Counter(item for items in self.flows.values() for item in items)
        assert self.queue.room == self.queue.capacity - self.count()


TestQueueMachine = QueueMachine.TestCase


@given(st.lists(FLOWS, max_size=60))
def test_between_two_turns_of_a_flow_every_waiting_flow_has_one(pushes: list[str]) -> None:
    queue: FairQueue[str] = FairQueue(100)
    for flow in pushes:
        queue.push(flow, flow)
    left = Counter(pushes)
    served = []
    while len(queue):
        served.append(queue.pop())
    assert Counter(served) == left
    for position, flow in enumerate(served):
        between = served[position + 1 :]
        if flow in between:
            between = between[: between.index(flow)]
            waiting = {other for other in left if other != flow and Counter(served[position + 1 :])[other]}
            assert waiting <= set(between)
