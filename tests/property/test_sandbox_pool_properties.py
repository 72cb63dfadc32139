"""The choice of a node, and that each call is answered once, whatever nodes do."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterable
from typing import Self

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rstar2.errors import InfrastructureError
from rstar2.sandbox import Execution, ExecutionStatus, Overloaded, Request, Session
from rstar2.sandbox.pool import PoolExecutor
from rstar2.sandbox.pool.choice import Candidate, choose
from rstar2.sandbox.pool.executor import MAX_TRIES

pytestmark = pytest.mark.property

candidates = st.lists(
    st.builds(
        Candidate,
        name=st.uuids().map(str),
        num_slots=st.integers(1, 64),
        num_outstanding=st.integers(0, 20),
        capacity=st.integers(1, 20),
        takes_calls=st.booleans(),
    ),
    max_size=8,
)


@settings(deadline=None)
@given(candidates, st.randoms(use_true_random=False), st.data())
def test_only_a_node_that_takes_calls_and_has_room_is_chosen(
    nodes: list[Candidate], rng: random.Random, data: st.DataObject
) -> None:
    avoid = data.draw(st.sets(st.sampled_from([node.name for node in nodes]))) if nodes else set()
    with_room = [node for node in nodes if node.takes_calls and node.num_outstanding < node.capacity]
    chosen = choose(nodes, rng, avoid)
    if chosen is None:
        assert not with_room
    else:
        assert chosen in with_room
        assert chosen.name not in avoid or all(node.name in avoid for node in with_room)


@given(st.lists(st.integers(1, 8), min_size=2, max_size=6), st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_work_is_spread_in_proportion_to_slots(slots: list[int], seed: int) -> None:
    rng, given_to = random.Random(seed), [0] * len(slots)
    num_calls = 60 * sum(slots)
    for _ in range(num_calls):
        nodes = [
            Candidate(str(index), num_slots, given_to[index], 10**9, takes_calls=True)
            for index, num_slots in enumerate(slots)
        ]
        chosen = choose(nodes, rng)
        assert chosen is not None
        given_to[int(chosen.name)] += 1
    for num_slots, num_given in zip(slots, given_to, strict=True):
        assert abs(num_given / num_slots - 60) < 12


class Fickle:
    """A node that does, try by try, what it was told: `ok`, `fault`, `raise`, `full` or `hang`."""

    def __init__(self, behaviour: list[str]) -> None:
        self._behaviour = behaviour
        self._num_runs = 0

    async def run(self, request: Request) -> Execution:
        does = self._behaviour[self._num_runs % len(self._behaviour)]
        self._num_runs += 1
        await asyncio.sleep(0)
        match does:
            case "fault":
                return Execution(ExecutionStatus.INFRASTRUCTURE, message="a worker was lost")
            case "raise":
                raise InfrastructureError("the connection was lost")
            case "full":
                raise Overloaded(retry_after_s=0.001)
            case "hang":
                await asyncio.Event().wait()
        return Execution(ExecutionStatus.OK, stdout=request.code)

    async def run_many(self, requests: Iterable[Request]) -> AsyncIterator[tuple[int, Execution]]:
        for index, request in enumerate(requests):
            yield index, await self.run(request)

    async def session(self) -> Session:
        raise NotImplementedError

    async def close(self) -> None:
        pass

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass


behaviours = st.lists(st.sampled_from(["ok", "ok", "fault", "raise", "full", "hang"]), min_size=1, max_size=6)


@given(st.lists(behaviours, min_size=0, max_size=MAX_TRIES - 1), st.integers(1, 24), st.integers(0, 2**32))
@settings(max_examples=50, deadline=None)
def test_each_call_is_answered_exactly_once_and_well_if_one_node_is_good(
    bad_nodes: list[list[str]], num_calls: int, seed: int
) -> None:
    async def scenario() -> None:
        async with PoolExecutor(rng=random.Random(seed)) as pool:
            for index, behaviour in enumerate(bad_nodes):
                pool.add_node(f"bad-{index}", Fickle(behaviour), num_slots=2)
            pool.add_node("good", Fickle(["ok"]), num_slots=1)
            lose = asyncio.get_running_loop().call_later
            for index in range(len(bad_nodes)):
                lose(0.02, pool.lose_node, f"bad-{index}")
            found: dict[int, Execution] = {}
            async with asyncio.timeout(240):
                async for index, execution in pool.run_many([Request(str(index)) for index in range(num_calls)]):
                    assert index not in found
                    found[index] = execution
            assert {index: (result.ok, result.stdout) for index, result in found.items()} == {
                index: (True, str(index)) for index in range(num_calls)
            }
            assert all(node.num_outstanding == 0 for node in pool.nodes())
            assert pool.num_queued == 0

    asyncio.run(scenario())
