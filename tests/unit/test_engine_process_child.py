"""A child process: frames arrive all, in order, in few writes; its garbage collection is rare."""

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable

import pytest

from rstar2.engine.process import child
from rstar2.engine.process.child import FrameWriter, read_frames
from rstar2.engine.remote.wire import Frame

pytestmark = pytest.mark.unit


Connection = tuple[FrameWriter, asyncio.StreamReader]

# In a process of its own, so that no other test is changed.
COLLECTING = """
import gc, weakref
from rstar2.engine.process.child import collect_garbage_if_rare, make_garbage_collection_rare

class Node: pass

def cycle():
    node = Node()
    node.own = node
    return weakref.ref(node)

before = cycle()
gc.disable()
collect_garbage_if_rare()
assert before() is not None, "garbage collection was not made rare yet"
gc.enable()
make_garbage_collection_rare()
assert before() is None, "what is garbage is not kept for good"
assert gc.get_freeze_count() > 1000 and gc.get_threshold()[0] > 700
later = cycle()
assert later() is not None
collect_garbage_if_rare()
assert later() is None
"""


@pytest.fixture
async def connection() -> AsyncIterator[Connection]:
    ours, theirs = socket.socketpair()
    _, writer = await asyncio.open_connection(sock=ours)
    reader, back = await asyncio.open_connection(sock=theirs)
    yield FrameWriter(writer), reader
    for end in (writer, back):
        end.close()


def frame(number: int) -> Frame:
    return {"number": number}


async def test_the_first_goes_at_once_and_those_behind_it_together(
    monkeypatch: pytest.MonkeyPatch, connection: Connection
) -> None:
    loop, timers = asyncio.get_running_loop(), list[tuple[float, Callable[[], None]]]()
    monkeypatch.setattr(loop, "call_at", lambda at_s, flush: timers.append((at_s, flush)))
    writer, reader = connection
    writer.write(frame(0))
    ((first_at_s, flush),) = timers
    assert first_at_s <= loop.time()
    timers.clear()
    flush()
    assert await read_frames(reader) == [frame(0)]
    for number in (1, 2, 3):
        writer.write(frame(number))
    ((at_s, flush),) = timers
    assert at_s >= first_at_s + child.GATHER_S
    flush()
    assert await read_frames(reader) == [frame(1), frame(2), frame(3)]


@pytest.mark.parametrize("is_closed", [True, False])
async def test_nothing_waits_for_its_time_where_the_writer_drains_or_closes(
    monkeypatch: pytest.MonkeyPatch, connection: Connection, is_closed: bool
) -> None:
    monkeypatch.setattr(child, "GATHER_S", 3600.0)
    writer, reader = connection
    writer.write(frame(0))
    await writer.drain()
    writer.write(frame(1))
    if is_closed:
        writer.close()
    else:
        await writer.drain()
    assert [await read_frames(reader), await read_frames(reader)] == [[frame(0)], [frame(1)]]
    if is_closed:
        assert await read_frames(reader) is None


def test_garbage_collection_is_rare_where_asked_for_and_possible_at_any_time() -> None:
    subprocess.run([sys.executable, "-c", COLLECTING], check=True, timeout=240)
