"""Once per key: whoever asks, whoever leaves, whatever is forgotten."""

import asyncio

import pytest

from rstar2.sandbox.http.idempotency import KeyConflict, OnceTable, Outcome

pytestmark = pytest.mark.unit


class Work:
    """Something that ends when told, and counts how often it was begun and cancelled."""

    def __init__(self, result: bytes = b"result", keep: bool = True) -> None:
        self.gate = asyncio.Event()
        self.num_begun = 0
        self.num_cancelled = 0
        self._outcome = (result, keep)

    async def __call__(self) -> Outcome:
        self.num_begun += 1
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise
        return self._outcome


def done(result: bytes = b"result", keep: bool = True) -> Work:
    work = Work(result, keep)
    work.gate.set()
    return work


async def test_all_who_ask_share_one() -> None:
    table, work = OnceTable(10, 1000), Work()
    asking = [asyncio.ensure_future(table.run("k", b"d", work)) for _ in range(5)]
    await asyncio.sleep(0)
    work.gate.set()
    assert await asyncio.gather(*asking) == [b"result"] * 5
    assert await table.run("k", b"d", work) == b"result"
    assert work.num_begun == 1


async def test_another_body_is_a_conflict() -> None:
    table = OnceTable(10, 1000)
    await table.run("k", b"d", done())
    with pytest.raises(KeyConflict):
        await table.run("k", b"other", done())


async def test_the_last_who_leaves_cancels_and_the_next_begins_anew() -> None:
    table, work = OnceTable(10, 1000), Work()
    first, second = (asyncio.ensure_future(table.run("k", b"d", work)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    assert work.num_cancelled == 0
    second.cancel()
    third = asyncio.ensure_future(table.run("k", b"d", work))
    async with asyncio.timeout(240):
        while (work.num_begun, work.num_cancelled) != (2, 1):  # noqa: ASYNC110
            await asyncio.sleep(0)
    work.gate.set()
    assert await third == b"result"


async def test_what_changes_state_goes_on_alone() -> None:
    table, work = OnceTable(10, 1000), Work()
    first = asyncio.ensure_future(table.run("k", b"d", work, cancel_when_alone=False))
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    work.gate.set()
    assert await table.run("k", b"d", work, cancel_when_alone=False) == b"result"
    assert (work.num_begun, work.num_cancelled) == (1, 0)


async def test_failures_are_shared_and_forgotten() -> None:
    table = OnceTable(10, 1000)

    async def fail() -> Outcome:
        await asyncio.sleep(0)
        raise RuntimeError("no")

    results = await asyncio.gather(*(table.run("k", b"d", fail) for _ in range(2)), return_exceptions=True)
    assert [type(result) for result in results] == [RuntimeError] * 2
    assert await table.run("k", b"d", done()) == b"result"


async def test_what_is_not_worth_keeping_is_done_again() -> None:
    table, work = OnceTable(10, 1000), done(keep=False)
    await table.run("k", b"d", work)
    await table.run("k", b"d", work)
    assert work.num_begun == 2 and len(table) == 0


async def test_memory_is_bounded_by_entries_bytes_and_time() -> None:
    now = 0.0
    table = OnceTable(3, 100, retention_s=10.0, clock=lambda: now)
    for index in range(20):
        await table.run(f"k{index}", b"d", done(b"x"))
    assert len(table) == 3
    await table.run("large", b"d", done(b"x" * 100))
    assert len(table) == 1
    await table.run("too large", b"d", done(b"x" * 101))
    assert len(table) == 0
    await table.run("k", b"d", done())
    now = 11.0
    await table.run("other", b"d", done())
    assert len(table) == 1
