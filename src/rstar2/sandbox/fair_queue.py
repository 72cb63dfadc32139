"""A bounded queue that is fair between flows: pure, no clock, no I/O.

A flow is what was submitted together (one request, one batch). Flows take turns, so a single call behind a batch of
45,000 waits for one turn, not for the batch. Within a flow the order is first come, first served.
"""

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._flows: dict[str, deque[Item]] = {}
        self._turns: deque[str] = deque()
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Item]:
        return itertools.chain.from_iterable(self._flows.values())

    @property
    def room(self) -> int:
        return self.capacity - self._length

    def push(self, flow: str, item: Item) -> None:
        """Append an item. The caller must have checked `room`: a full queue never drops items."""
        assert self.room > 0, "push to a full queue"
        if flow not in self._flows:
            self._flows[flow] = deque()
            self._turns.append(flow)
        self._flows[flow].append(item)
        self._length += 1

    def push_front(self, flow: str, item: Item) -> None:
        """Put back a popped item that could not be served; it is next. It had a place, so capacity is not checked."""
        if flow not in self._flows:
            self._flows[flow] = deque()
        else:
            self._turns.remove(flow)
        self._turns.appendleft(flow)
        self._flows[flow].appendleft(item)
        self._length += 1

    def pop(self) -> Item:
        """Take the first item of the flow whose turn it is."""
        flow = self._turns.popleft()
        items = self._flows[flow]
        item = items.popleft()
        if items:
            self._turns.append(flow)
        else:
            del self._flows[flow]
        self._length -= 1
        return item

    def remove(self, flow: str, item: Item) -> None:
        """Remove one item, if it is still in the queue."""
        items = self._flows.get(flow)
        if items is None or item not in items:
            return
        items.remove(item)
        self._length -= 1
        if not items:
            del self._flows[flow]
            self._turns.remove(flow)

    def take_expired(self, is_expired: Callable[[Item], bool]) -> list[Item]:
        """Remove and return every item for which `is_expired` is true."""
        taken: list[Item] = []
        for flow in list(self._flows):
            items = self._flows[flow]
            expired = [item for item in items if is_expired(item)]
            if expired:
                kept = deque(item for item in items if not is_expired(item))
                taken += expired
                if kept:
                    self._flows[flow] = kept
                else:
                    del self._flows[flow]
                    self._turns.remove(flow)
        self._length -= len(taken)
        return taken
