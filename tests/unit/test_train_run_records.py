"""Traces are all written, in order, or it is said why not."""

import asyncio
import threading

import pytest

from rstar2.records import Outcome, Trace
from rstar2.train.reporting.run_records import TraceWriter

pytestmark = pytest.mark.unit


def trace(number: int) -> Trace:
    return Trace(
        id=str(number), problem_id="p", prompt_ids=(1,), prompt_text="", turns=(), outcome=Outcome.ANSWERED, note=""
    )


async def test_whoever_waits_finds_all_of_them_in_order() -> None:
    may_write = threading.Event()
    written: list[str] = []

    def write(trace: Trace) -> None:
        may_write.wait(30)
        written.append(trace.id)

    with TraceWriter(write) as keeper:
        for number in range(50):
            keeper.keep(trace(number))
        assert not written
        may_write.set()
        await keeper.settled()
        assert written == [str(number) for number in range(50)]
        keeper.keep(trace(50))
    assert written[-1] == "50"


async def test_a_disk_that_is_full_is_told_to_whoever_gives_the_next_or_waits() -> None:
    def write(trace: Trace) -> None:
        if trace.id == "1":
            raise OSError("the disk is full")

    with TraceWriter(write) as keeper:
        keeper.keep(trace(0))
        await keeper.settled()
        keeper.keep(trace(1))
        with pytest.raises(OSError, match="full"):
            await keeper.settled()
        with pytest.raises(OSError, match="full"):
            keeper.keep(trace(2))


async def test_traces_lie_until_there_is_time_for_them_or_they_have_lain_long_enough() -> None:
    written: list[str] = []
    with TraceWriter(lambda trace: written.append(trace.id), hold_s=60) as keeper:
        keeper.keep(trace(0))
        await asyncio.sleep(0.1)
        assert not written
        keeper.begin_writing()
        async with asyncio.timeout(240):
            while not written:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        keeper.keep(trace(1))
        await keeper.settled()
        await keeper.settled()
        assert written == ["0", "1"]
    with TraceWriter(lambda trace: written.append(trace.id), hold_s=0.01) as keeper:
        keeper.keep(trace(2))
        async with asyncio.timeout(240):
            while len(written) < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
