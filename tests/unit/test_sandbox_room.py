"""A bound in bytes: who wants more waits, in order, and what is given back goes to the first."""

import asyncio

import pytest

from rstar2.sandbox.http.room import Room

pytestmark = pytest.mark.unit


async def settled() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_it_is_taken_and_given_back_in_order() -> None:
    room, order = Room(10), []

    async def want(name: str, num_bytes: int) -> None:
        await room.wait_for(num_bytes)
        order.append(name)

    tasks = [asyncio.create_task(want(name, num_bytes)) for name, num_bytes in (("a", 6), ("b", 6), ("c", 2))]
    await settled()
    assert order == ["a"]  # c would fit, but b was first
    room.give_back(6)
    await settled()
    assert order == ["a", "b", "c"]
    await asyncio.gather(*tasks)


async def test_more_than_there_is_waits_for_all_of_it() -> None:
    room = Room(10)
    await room.wait_for(1)
    large = asyncio.create_task(room.wait_for(1000))
    await settled()
    assert not large.done()
    room.give_back(1)
    room.give_back(await asyncio.wait_for(large, 240))
    await asyncio.wait_for(room.wait_for(10), 240)


async def test_one_that_leaves_takes_nothing() -> None:
    room = Room(10)
    await room.wait_for(10)
    leaver, stayer = (asyncio.create_task(room.wait_for(10)) for _ in range(2))
    await settled()
    leaver.cancel()
    await settled()
    room.give_back(10)
    await asyncio.wait_for(stayer, 240)


async def test_what_exists_already_is_counted() -> None:
    room = Room(10)
    room.take(15)
    waiting = asyncio.create_task(room.wait_for(1))
    await settled()
    assert not waiting.done()
    room.give_back(10)
    await asyncio.wait_for(waiting, 240)


async def test_what_was_taken_beyond_the_budget_is_all_given_back() -> None:
    room = Room(10)
    for num_bytes in (15, 6):
        room.take(num_bytes)
    room.give_back(21)
    await asyncio.wait_for(room.wait_for(10), 5)


async def test_more_than_there_is_given_back_in_parts_makes_no_room() -> None:
    room = Room(10)
    num_reserved = await room.wait_for(15)
    room.give_back(num_reserved - 8)
    room.give_back(8)
    await room.wait_for(10)
    second = asyncio.create_task(room.wait_for(1))
    await settled()
    assert not second.done()
    second.cancel()
