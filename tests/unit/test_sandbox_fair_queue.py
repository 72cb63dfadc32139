"""Flows take turns, a flow keeps its order, and what is given back or expired is neither lost nor doubled."""

import pytest

from rstar2.sandbox.fair_queue import FairQueue

pytestmark = pytest.mark.unit


def filled(*items: tuple[str, str], capacity: int = 100) -> FairQueue[str]:
    queue: FairQueue[str] = FairQueue(capacity)
    for flow, item in items:
        queue.push(flow, item)
    return queue


def drained(queue: FairQueue[str]) -> str:
    return "".join(queue.pop() for _ in range(len(queue)))


def test_one_flow_is_first_come_first_served() -> None:
    assert drained(filled(("1", "a"), ("1", "b"), ("1", "c"))) == "abc"


def test_flows_take_turns() -> None:
    assert drained(filled(("1", "a"), ("1", "b"), ("1", "c"), ("2", "x"), ("2", "y"), ("3", "p"))) == "axpbyc"


def test_a_single_call_behind_a_batch_waits_for_one_turn() -> None:
    queue = filled(*(("1", "b") for _ in range(50)))
    queue.push("2", "s")
    assert [queue.pop(), queue.pop()] == ["b", "s"]


def test_a_flow_that_comes_back_goes_to_the_end() -> None:
    queue = filled(("1", "a"), ("2", "x"), ("2", "y"))
    assert queue.pop() == "a"
    queue.push("1", "b")
    assert drained(queue) == "xby"


def test_room_is_what_is_left_of_the_capacity() -> None:
    queue = filled(("1", "a"), ("2", "b"), capacity=3)
    assert (len(queue), queue.room) == (2, 1)
    queue.push("3", "c")
    assert queue.room == 0
    with pytest.raises(AssertionError):
        queue.push("4", "d")
    assert drained(queue) == "abc"
    assert queue.room == 3


def test_what_is_given_back_is_next() -> None:
    queue = filled(("1", "a"), ("1", "b"), ("2", "x"))
    taken = queue.pop()
    queue.push_front("1", taken)
    assert drained(queue) == "axb"


def test_what_is_given_back_to_an_empty_flow_is_next() -> None:
    queue = filled(("1", "a"), ("2", "x"), ("2", "y"))
    queue.push_front("1", queue.pop())
    assert drained(queue) == "axy"


def test_giving_back_is_not_refused_by_a_full_queue() -> None:
    queue = filled(("1", "a"), capacity=1)
    taken = queue.pop()
    queue.push("2", "x")
    queue.push_front("1", taken)
    assert (queue.room, drained(queue)) == (-1, "ax")


def test_the_expired_leave_from_anywhere() -> None:
    queue = filled(("1", "a"), ("1", "B"), ("2", "X"), ("3", "p"), ("3", "Q"), ("3", "r"))
    assert sorted(queue.take_expired(str.isupper)) == ["B", "Q", "X"]
    assert (len(queue), queue.room) == (3, 97)
    assert drained(queue) == "apr"


def test_a_flow_that_expired_can_come_again() -> None:
    queue = filled(("1", "A"))
    assert queue.take_expired(str.isupper) == ["A"]
    queue.push("1", "b")
    assert drained(queue) == "b"
