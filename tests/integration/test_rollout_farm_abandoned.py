"""A farm whose rollouts are cancelled, whose workers are killed, whose engine is gone: nothing is left in the workers,
the engine or their sandboxes, nothing that was abandoned comes back, and the next run completes."""

import asyncio
import os
import random
import signal
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from farm_rollers import LIMITS, open_rollers, reply
from rollout_leftovers import left_in_scripted, rollout_name
from sandbox_service import until
from train_rollouts import CHAT

from rstar2.engine import Sampling
from rstar2.engine.process.host import serve_guest
from rstar2.engine.scripted import ScriptedEngine
from rstar2.errors import InfrastructureError
from rstar2.records import Outcome, Problem, Trace
from rstar2.rollout.farm import RollerFarm
from rstar2.rollout.farm import farm as module
from rstar2.rollout.policies import POLICIES
from rstar2.rollout.request import RolloutRequest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

NUM_WORKERS = 2
NUM_CANCELS = 3
DEADLINE_S = 240.0
"""For each wait."""
WITHOUT_END = ("sleeps", "talks", "answers", "calls") * 4
WITH_END = ("answers", "calls", "talks") * 4


@dataclass
class Bench:
    farm: RollerFarm
    engine: ScriptedEngine
    visits: Sequence[asyncio.Task[None]]
    seen: list[Trace] = field(default_factory=list)

    def start(self, policy: str, kinds: Sequence[str]) -> "asyncio.Task[list[Trace]]":
        """Each run uses the names of the one before again."""
        self.seen.clear()
        requests = [
            RolloutRequest(Problem(f"{kind}-{number}", kind, "42"), rollout_name(number), stage=policy, seed=number)
            for number, kind in enumerate(kinds)
        ]
        return asyncio.create_task(self.farm.run(requests, LIMITS, Sampling(), self.seen.append))

    async def expect_nothing_left(self) -> None:
        """With the engine a moment later: it hears of the end from the workers."""
        num_seen = len(self.seen)
        await self.farm.end_step()
        await until(lambda: not left_in_scripted(self.engine), DEADLINE_S)
        assert len(self.seen) == num_seen, "what was abandoned does not come back"

    async def expect_whole_run(self, policy: str) -> None:
        async with asyncio.timeout(DEADLINE_S):
            traces = await self.start(policy, WITH_END)
        assert [trace.outcome for trace in traces] == [Outcome.ANSWERED] * len(WITH_END)
        assert [trace.reward for trace in traces] == [1.0] * len(WITH_END)
        assert sorted(trace.id for trace in self.seen) == sorted(trace.id for trace in traces)
        await self.expect_nothing_left()


@asynccontextmanager
async def opened() -> AsyncIterator[Bench]:
    engine = ScriptedEngine(reply, CHAT.tokenizer, CHAT.end_of_turn_id)
    pairs = [socket.socketpair() for _ in range(NUM_WORKERS)]
    visits = [asyncio.create_task(serve_guest(engine, ours)) for ours, _ in pairs]
    try:
        async with RollerFarm.opened(open_rollers, [theirs for _, theirs in pairs]) as farm:
            yield Bench(farm, engine, visits)
    finally:
        for visit in visits:
            visit.cancel()
        await asyncio.gather(*visits, return_exceptions=True)


async def test_whatever_ends_early_leaves_nothing_and_the_next_run_completes(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(0)
    async with opened() as bench:
        for policy in POLICIES:
            for _ in range(NUM_CANCELS):
                await expect_cancelled(bench, policy, rng)
            await bench.expect_whole_run(policy)
        await expect_killed_worker(bench)
        await bench.expect_whole_run("kv-aware")
        await expect_lost_engine(bench)
        await expect_late_worker_is_ended(bench, monkeypatch)


async def expect_cancelled(bench: Bench, policy: str, rng: random.Random) -> None:
    """At once, or in the middle of turns and of cells."""
    running = bench.start(policy, WITHOUT_END)
    num_wanted = rng.choice((0, 0, 1, 3))
    async with asyncio.timeout(DEADLINE_S):
        await until(lambda: len(bench.seen) >= num_wanted, DEADLINE_S)
        for _ in range(rng.randrange(100)):
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait([running])
    assert running.cancelled()
    await bench.expect_nothing_left()


async def expect_killed_worker(bench: Bench) -> None:
    first = bench.farm._workers[0]
    running = bench.start("kv-aware", WITHOUT_END)
    await until(lambda: bench.seen, DEADLINE_S)
    os.kill(first.pid, signal.SIGKILL)
    with pytest.raises(InfrastructureError, match=f"rollout process {first.pid} has disconnected"):
        async with asyncio.timeout(DEADLINE_S):
            await running
    await bench.expect_nothing_left()


async def expect_lost_engine(bench: Bench) -> None:
    """Those that had begun try again, in vain, and are lost through our fault."""
    running = bench.start("kv-aware", ("talks", "calls") * 40)  # so many that some are in a turn whenever we look
    await until(lambda: bench.engine._running, DEADLINE_S)
    for visit in bench.visits:
        visit.cancel()
    with pytest.raises(InfrastructureError, match="engine scripted was the last one, and it is lost"):
        async with asyncio.timeout(DEADLINE_S):
            await running
    outcomes = {trace.outcome for trace in bench.seen}
    assert Outcome.INFRASTRUCTURE_FAULT in outcomes
    assert outcomes <= {Outcome.INFRASTRUCTURE_FAULT, Outcome.ANSWERED}, "some may have ended before"
    await bench.expect_nothing_left()
    with pytest.raises(InfrastructureError, match="there is no engine to run rollouts on"):
        await bench.start("kv-aware", WITH_END)


async def expect_late_worker_is_ended(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is stopped cannot cancel anything."""
    monkeypatch.setattr(module, "CANCEL_DEADLINE_S", 0.1)
    last = bench.farm._workers[-1]
    os.kill(last.pid, signal.SIGSTOP)
    running = bench.start("static", WITHOUT_END)
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled()
    assert "has disconnected" in str(await last.lost())
    with pytest.raises(InfrastructureError, match=f"all {NUM_WORKERS} rollout processes have disconnected"):
        await bench.start("static", WITH_END)
