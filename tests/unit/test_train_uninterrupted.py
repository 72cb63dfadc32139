"""A cancellation waits for work that must not be left half done."""

import asyncio

import pytest

from rstar2.train.trainer import uninterrupted

pytestmark = pytest.mark.unit


async def test_cancelled_work_is_ended_first() -> None:
    may_end, told, has_ended = asyncio.Event(), asyncio.Event(), False

    async def work() -> None:
        nonlocal has_ended
        await may_end.wait()
        has_ended = True

    task = asyncio.create_task(uninterrupted(work(), told.set))
    await asyncio.sleep(0)
    task.cancel()
    await told.wait()
    assert not task.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert has_ended


async def test_without_a_cancellation_it_is_as_if_it_were_awaited() -> None:
    async def work(value: int) -> int:
        if not value:
            raise ValueError("nothing")
        return value

    told: list[int] = []
    assert await uninterrupted(work(3), lambda: told.append(1)) == 3
    with pytest.raises(ValueError, match="nothing"):
        await uninterrupted(work(0), lambda: told.append(1))
    assert not told
