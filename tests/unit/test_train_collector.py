"""Steps are sampled in order, from where the one before ended, and no further ahead than allowed."""

import asyncio
from typing import Any

import pytest

from rstar2.train.collector import Collector, StepBatch
from rstar2.train.seeds import Cursor

pytestmark = pytest.mark.unit


class Samples(Collector):
    """A collector whose rollouts take no engine; `sample` may be replaced."""

    def __init__(self, cursor: Cursor, steps: range, max_staleness: int) -> None:
        nothing: Any = None
        super().__init__(
            nothing, nothing, nothing, (), nothing, cursor=cursor, steps=steps, max_staleness=max_staleness
        )
        self.begun: list[tuple[int, int]] = []
        self.ended: list[int] = []
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def _sample(self, step: int, cursor: Cursor) -> StepBatch:
        self.begun.append((step, cursor.position))
        await asyncio.sleep(0)
        await self.may_end.wait()
        self.ended.append(step)
        return StepBatch(step, (), (), Cursor(0, cursor.position + step), 0, 1.0)


@pytest.mark.parametrize("max_staleness", [0, 1, 3])
async def test_order_cursors_and_lag(max_staleness: int) -> None:
    async with Samples(Cursor(0, 10), range(1, 7), max_staleness) as steps:
        for step in range(1, 7):
            await anext(steps)
            for _ in range(50):
                await asyncio.sleep(0)
            newest = max(begun for begun, _ in steps.begun)
            assert newest == min(6, step + max_staleness), "while a step is learnt from, so many more are sampled"
    assert steps.begun == [(1, 10), (2, 11), (3, 13), (4, 16), (5, 20), (6, 25)]


@pytest.mark.parametrize("max_staleness", [0, 1, 3])
async def test_what_may_run_ahead_begins_as_soon_as_a_step_is_learnt(max_staleness: int) -> None:
    async with Samples(Cursor(), range(1, 9), max_staleness) as steps:
        await anext(steps)
        steps.sample_ahead()
        for _ in range(50):
            await asyncio.sleep(0)
        newest = max(begun for begun, _ in steps.begun)
        assert newest == (2 + max_staleness if max_staleness else 1), "without it, nothing that was not asked for"
        assert (await anext(steps)).cursor.position == 1 + 2


async def test_what_is_not_wanted_any_more_is_left() -> None:
    async with Samples(Cursor(), range(1, 100), 2) as steps:
        await anext(steps)
        steps.may_end.clear()
        await asyncio.sleep(0)
    assert steps.ended == [1] and len(asyncio.all_tasks()) == 1


async def test_a_failure_reaches_who_asks() -> None:
    class Fails(Samples):
        async def _sample(self, step: int, cursor: Cursor) -> StepBatch:
            raise ValueError(f"at {step} {cursor}")

    async with Fails(Cursor(), range(1, 9), 1) as steps:
        with pytest.raises(ValueError, match="at 1"):
            await anext(steps)


async def test_what_is_stopped_collects_nothing_more() -> None:
    async with Samples(Cursor(), range(1, 7), 2) as steps:
        await anext(steps)
        steps.may_end.clear()
        steps.sample_ahead()
        steps.stop()
        steps.may_end.set()
        steps.sample_ahead()
        for _ in range(50):
            await asyncio.sleep(0)
    assert steps.ended == [1] and max(step for step, _ in steps.begun) <= 3


async def test_it_ends_with_its_last_step() -> None:
    async with Samples(Cursor(), range(3, 6), 1) as steps:
        assert [batch.step async for batch in steps] == [3, 4, 5]
