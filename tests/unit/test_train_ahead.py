"""Steps are collected in order, from where the one before ended, and no further ahead than allowed."""

import asyncio

import pytest

from rstar2.train.ahead import Ahead
from rstar2.train.collect import Collected
from rstar2.train.cursor import Cursor

pytestmark = pytest.mark.unit


class Collector:
    def __init__(self) -> None:
        self.begun: list[tuple[int, int]] = []
        self.ended: list[int] = []
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def __call__(self, step: int, cursor: Cursor) -> Collected:
        self.begun.append((step, cursor.position))
        await asyncio.sleep(0)
        await self.may_end.wait()
        self.ended.append(step)
        return Collected((), (), Cursor(0, cursor.position + step), 0, 1.0)


@pytest.mark.parametrize("max_staleness", [0, 1, 3])
async def test_order_cursors_and_lag(max_staleness: int) -> None:
    collect = Collector()
    async with Ahead(collect, Cursor(0, 10), range(1, 7), max_staleness=max_staleness) as ahead:
        for step in range(1, 7):
            await ahead.next()
            for _ in range(50):
                await asyncio.sleep(0)
            newest = max(begun for begun, _ in collect.begun)
            assert newest == min(6, step + max_staleness), "learning of a step, so many more are collected"
    assert collect.begun == [(1, 10), (2, 11), (3, 13), (4, 16), (5, 20), (6, 25)]


@pytest.mark.parametrize("max_staleness", [0, 1, 3])
async def test_what_may_run_ahead_begins_as_soon_as_a_step_is_learnt(max_staleness: int) -> None:
    collect = Collector()
    async with Ahead(collect, Cursor(), range(1, 9), max_staleness=max_staleness) as ahead:
        await ahead.next()
        ahead.go_on()
        for _ in range(50):
            await asyncio.sleep(0)
        newest = max(begun for begun, _ in collect.begun)
        assert newest == (2 + max_staleness if max_staleness else 1), "without it, nothing that was not asked for"
        assert (await ahead.next()).cursor.position == 1 + 2


async def test_what_is_not_wanted_any_more_is_left() -> None:
    collect = Collector()
    async with Ahead(collect, Cursor(), range(1, 100), max_staleness=2) as ahead:
        await ahead.next()
        collect.may_end.clear()
        await asyncio.sleep(0)
    assert collect.ended == [1] and len(asyncio.all_tasks()) == 1


async def test_a_failure_reaches_who_asks() -> None:
    async def fail(step: int, cursor: Cursor) -> Collected:
        raise ValueError(f"at {step} {cursor}")

    async with Ahead(fail, Cursor(), range(1, 9), max_staleness=1) as ahead:
        with pytest.raises(ValueError, match="at 1"):
            await ahead.next()


async def test_what_is_stopped_collects_nothing_more() -> None:
    collect = Collector()
    async with Ahead(collect, Cursor(), range(1, 7), max_staleness=2) as ahead:
        await ahead.next()
        collect.may_end.clear()
        ahead.go_on()
        ahead.stop()
        collect.may_end.set()
        ahead.go_on()
        for _ in range(50):
            await asyncio.sleep(0)
    assert collect.ended == [1] and max(step for step, _ in collect.begun) <= 3
