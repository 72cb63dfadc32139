"""The pool over nodes that do what the test says: who is asked, what is rerun, who is told what."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Self

import pytest

from rstar2.errors import InfrastructureError, UserError
from rstar2.sandbox import Execution, ExecutionStatus, OnOutput, Overloaded, Request, Session
from rstar2.sandbox.pool import HealthConfig, NodeReport, PoolExecutor
from rstar2.sandbox.pool.executor import MAX_TRIES

pytestmark = pytest.mark.unit
FAULT = Execution(ExecutionStatus.INFRASTRUCTURE, message="a worker was lost")
FAST = HealthConfig(period_s=0.01, deadline_s=0.05, num_failures_to_lose=2, forget_after_s=0.2)
LONG_S = 240.0


class ScriptedNode:
    """Answers with what `act` makes of the request; holds everything while `gate` is closed."""

    def __init__(self, act: Callable[[Request], Execution] | None = None) -> None:
        self.act = act or (lambda request: Execution(ExecutionStatus.OK, stdout=request.code))
        self.gate = asyncio.Event()
        self.gate.set()
        self.started: Counter[str] = Counter()
        self.num_cancelled = 0
        self.is_answering = True
        self.is_draining = False
        self.is_closed = False

    async def run(self, request: Request, on_output: OnOutput | None = None) -> Execution:  # noqa: ARG002
        self.started[request.code] += 1
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise
        return self.act(request)

    async def run_many(self, requests: Iterable[Request]) -> AsyncIterator[tuple[int, Execution]]:
        tasks = {asyncio.ensure_future(self.run(request)): index for index, request in enumerate(requests)}
        try:
            for task in tasks:
                yield tasks[task], await task
        finally:
            for task in tasks:
                task.cancel()

    async def probe(self) -> NodeReport:
        if not self.is_answering:
            await asyncio.Event().wait()
        return NodeReport(self.is_draining, num_slots=1)

    async def session(self) -> Session:
        raise NotImplementedError

    async def close(self) -> None:
        self.is_closed = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LONG_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def a_pool(*nodes: ScriptedNode, max_queued: int = 1000) -> PoolExecutor:
    pool = PoolExecutor(max_queued=max_queued, rng=random.Random(0))
    for index, node in enumerate(nodes):
        pool.add_node(f"node-{index}", node, num_slots=1)
    return pool


async def collect(pool: PoolExecutor, requests: list[Request]) -> dict[int, Execution]:
    found: dict[int, Execution] = {}
    async with asyncio.timeout(LONG_S):
        async for index, execution in pool.run_many(requests):
            assert index not in found
            found[index] = execution
    return found


def state_of(pool: PoolExecutor, name: str) -> str:
    return next((node.state for node in pool.nodes() if node.url == name), "forgotten")


async def test_a_batch_is_spread_over_the_nodes_and_comes_back_whole() -> None:
    nodes = ScriptedNode(), ScriptedNode()
    async with a_pool(*nodes) as pool:
        found = await collect(pool, [Request(str(index)) for index in range(100)])
    assert {index: found[index].stdout for index in found} == {index: str(index) for index in range(100)}
    assert all(30 < node.started.total() < 70 for node in nodes)
    assert all(node.is_closed for node in nodes)


async def test_what_a_node_failed_is_rerun_elsewhere_and_the_caller_sees_one_answer() -> None:
    bad, good = ScriptedNode(lambda _: FAULT), ScriptedNode()
    async with a_pool(bad, good) as pool:
        found = await collect(pool, [Request(str(index)) for index in range(20)])
        assert all(execution.ok for execution in found.values())
        assert {found[int(code)].num_attempts for code in bad.started} == {2}
        assert pool.nodes()[0].num_rerun == bad.started.total() > 0


@pytest.mark.parametrize("status", [s for s in ExecutionStatus if s is not ExecutionStatus.INFRASTRUCTURE])
async def test_what_the_program_did_is_never_rerun(status: ExecutionStatus) -> None:
    nodes = [ScriptedNode(lambda _: Execution(status)) for _ in range(2)]
    async with a_pool(*nodes) as pool:
        assert (await pool.run(Request("x"))).status is status
    assert sum((node.started for node in nodes), Counter()) == {"x": 1}


async def test_a_call_that_fails_everywhere_is_given_up() -> None:
    nodes = [ScriptedNode(lambda _: FAULT) for _ in range(MAX_TRIES + 2)]
    async with a_pool(*nodes) as pool:
        execution = await pool.run(Request("x"))
    assert execution.status is ExecutionStatus.INFRASTRUCTURE
    assert execution.num_attempts == MAX_TRIES
    assert [node.started["x"] for node in nodes].count(1) == MAX_TRIES, "the same node was tried twice"


async def test_nothing_is_rerun_after_the_callers_deadline() -> None:
    slow, other = ScriptedNode(lambda _: FAULT), ScriptedNode()
    slow.gate.clear()
    async with a_pool(slow) as pool:
        running = asyncio.ensure_future(pool.run(Request("x", queue_s=0.5)))
        await until(lambda: slow.started["x"] == 1)
        pool.add_node("other", other, num_slots=1)
        await asyncio.sleep(0.6)  # past the caller's deadline
        slow.gate.set()
        assert (await running).status is ExecutionStatus.INFRASTRUCTURE
    assert not other.started


async def test_the_calls_of_a_lost_node_move_and_its_late_answers_are_dropped() -> None:
    dying, other = ScriptedNode(lambda _: Execution(ExecutionStatus.OK, stdout="late")), ScriptedNode()
    dying.gate.clear()
    async with a_pool(dying) as pool:
        running = asyncio.ensure_future(collect(pool, [Request(str(index)) for index in range(10)]))
        await until(lambda: dying.started.total() == 10)
        pool.add_node("other", other, num_slots=1)
        pool.lose_node("node-0")
        dying.gate.set()
        found = await running
        assert {index: found[index].stdout for index in found} == {index: str(index) for index in range(10)}
        assert state_of(pool, "node-0") == "lost"


async def test_a_node_that_leaves_finishes_what_it_has() -> None:
    leaving, other = ScriptedNode(), ScriptedNode()
    leaving.gate.clear()
    async with a_pool(leaving) as pool:
        running = asyncio.ensure_future(pool.run(Request("first")))
        await until(lambda: leaving.started.total() == 1)
        removing = asyncio.ensure_future(pool.remove_node("node-0"))
        await asyncio.sleep(0)
        pool.add_node("other", other, num_slots=1)
        assert (await pool.run(Request("second"))).ok
        leaving.gate.set()
        assert await removing
        assert (await running).stdout == "first"
        assert [node.url for node in pool.nodes()] == ["other"]
    assert leaving.started == {"first": 1}
    assert other.started == {"second": 1}


async def test_a_node_that_does_not_finish_in_time_has_its_calls_rerun() -> None:
    leaving, other = ScriptedNode(), ScriptedNode()
    leaving.gate.clear()
    async with a_pool(leaving) as pool:
        running = asyncio.ensure_future(pool.run(Request("x")))
        await until(lambda: leaving.started.total() == 1)
        pool.add_node("other", other, num_slots=1)
        assert not await pool.remove_node("node-0", deadline_s=0.05)
        assert (await running).num_attempts == 2
    assert leaving.num_cancelled == 1


async def test_a_full_queue_is_said_at_once_and_an_old_call_is_given_back() -> None:
    async with a_pool(max_queued=2) as pool:
        waiting = [asyncio.ensure_future(pool.run(Request("x", queue_s=1.0))) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded) as refused:
            await pool.run(Request("one too many"))
        assert refused.value.retry_after_s > 0
        with pytest.raises(Overloaded):
            await collect(pool, [Request("y")])
        assert [(await call).status for call in waiting] == [ExecutionStatus.QUEUE_TIMEOUT] * 2
        assert pool.num_queued == 0


async def test_a_batch_larger_than_the_queue_flows_through_it() -> None:
    async with a_pool(ScriptedNode(), max_queued=3) as pool:
        assert len(await collect(pool, [Request(str(index)) for index in range(50)])) == 50


async def test_a_node_without_room_rests_and_the_call_does_not_count_it_as_a_failure() -> None:
    refusals = iter([True, True, False])

    def act(request: Request) -> Execution:
        if next(refusals):
            raise Overloaded(retry_after_s=0.01)
        return Execution(ExecutionStatus.OK, stdout=request.code)

    async with a_pool(ScriptedNode(act)) as pool:
        execution = await pool.run(Request("x"))
    assert execution.ok and execution.num_attempts == 1


async def test_a_call_that_nodes_refuse_fails_alone() -> None:
    def act(request: Request) -> Execution:
        if request.code == "bad":
            raise UserError("the code is too long")
        return Execution(ExecutionStatus.OK, stdout=request.code)

    async with a_pool(ScriptedNode(act), ScriptedNode(act)) as pool:
        good = asyncio.ensure_future(collect(pool, [Request(str(index)) for index in range(10)]))
        with pytest.raises(UserError, match="too long"):
            await pool.run(Request("bad"))
        assert all(execution.ok for execution in (await good).values())


async def test_what_nobody_waits_for_is_ended() -> None:
    node = ScriptedNode()
    node.gate.clear()
    async with a_pool(node) as pool:
        waiting: list[asyncio.Future[object]] = [asyncio.ensure_future(pool.run(Request("single")))]
        await until(lambda: node.started.total() == 1)
        waiting.append(asyncio.ensure_future(collect(pool, [Request("batch") for _ in range(5)])))
        await until(lambda: node.started.total() == 6)
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        await until(lambda: node.num_cancelled == 6)
        await until(lambda: pool.nodes()[0].num_outstanding == 0)


async def test_a_node_that_hangs_is_lost_and_taken_back_when_it_answers() -> None:
    hanging, other = ScriptedNode(), ScriptedNode()
    async with PoolExecutor(health=FAST, rng=random.Random(0)) as pool:
        pool.add_node("hanging", hanging, 1, hanging.probe)
        await until(lambda: state_of(pool, "hanging") == "ready")
        hanging.gate.clear()
        running = asyncio.ensure_future(pool.run(Request("x")))
        await until(lambda: hanging.started["x"] == 1)
        hanging.is_answering = False
        pool.add_node("other", other, 1, other.probe)
        assert (await running).ok and other.started["x"] == 1
        assert state_of(pool, "hanging") == "lost"
        hanging.is_answering = True
        await until(lambda: state_of(pool, "hanging") == "ready")
        hanging.is_draining = True
        await until(lambda: state_of(pool, "hanging") == "draining")


async def test_a_node_that_fails_a_call_gets_no_more_until_it_has_answered() -> None:
    bad, good = ScriptedNode(lambda _: FAULT), ScriptedNode()
    async with PoolExecutor(health=FAST, rng=random.Random(0)) as pool:
        pool.add_node("bad", bad, 1, bad.probe)
        await until(lambda: state_of(pool, "bad") == "ready")
        bad.gate.clear()
        running = asyncio.ensure_future(pool.run(Request("x")))
        await until(lambda: bad.started["x"] == 1)
        bad.is_answering = False
        pool.add_node("good", good, 1, good.probe)
        bad.gate.set()
        assert (await running).ok
        assert state_of(pool, "bad") in ("suspect", "lost")


async def test_a_node_that_joined_by_itself_is_forgotten_when_it_is_lost_for_long() -> None:
    node = ScriptedNode()
    node.is_answering = False
    async with PoolExecutor(health=FAST) as pool:
        pool.add_node("guest", node, 1, node.probe, is_fixed=False)
        await until(lambda: state_of(pool, "guest") == "forgotten")
    assert node.is_closed


async def test_closing_answers_what_is_left() -> None:
    node = ScriptedNode()
    node.gate.clear()
    pool = a_pool(node)
    running = asyncio.ensure_future(pool.run(Request("x")))
    await until(lambda: node.started.total() == 1)
    await pool.close()
    assert (await running).status is ExecutionStatus.INFRASTRUCTURE
    with pytest.raises(InfrastructureError):
        await pool.run(Request("y"))
