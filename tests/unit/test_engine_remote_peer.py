"""Whoever waits for an answer gets one, whatever becomes of the other end."""

import asyncio
import pickle
import socket
import struct
import threading
import time
from typing import Any

import pytest

from rstar2.engine.process.child import SocketChannel
from rstar2.engine.remote import Peer
from rstar2.engine.remote.wire import Frame
from rstar2.errors import InfrastructureError

pytestmark = pytest.mark.unit


class Line:
    """Satisfies `Channel`: says what it is given."""

    def __init__(self) -> None:
        self.sent: list[Frame] = []
        self.coming: asyncio.Queue[Frame | None] = asyncio.Queue()

    def send(self, frame: Frame) -> None:
        self.sent.append(frame)

    async def receive(self) -> Frame | None:
        frame = await self.coming.get()
        if isinstance(frame, Exception):
            raise frame
        return frame

    async def close(self) -> None:
        pass


class Calculator(Peer):
    def ask(self, value: int) -> asyncio.Future[Any]:
        return self._ask("double", {"value": value})

    def _take(self, frame: Frame) -> None:
        if "bad" in frame:
            raise frame["bad"]
        self._settle(frame["number"], frame["result"], None)


async def test_answers_come_under_their_numbers_in_any_order() -> None:
    line = Line()
    peer = Calculator(line, "it")
    asked = [peer.ask(value) for value in (1, 2)]
    assert [frame["value"] for frame in line.sent] == [1, 2], "on their way before anybody waits"
    for frame in reversed(line.sent):
        line.coming.put_nowait({"number": frame["number"], "result": 2 * frame["value"]})
    assert await asyncio.gather(*asked) == [2, 4]
    await peer.close()


@pytest.mark.parametrize(
    ("last", "error", "message"),
    [
        (None, InfrastructureError, "it has disconnected"),
        (InfrastructureError("out of memory"), InfrastructureError, r"it has failed \(out of memory\)"),
        ({"bad": OSError("the disk is full")}, OSError, "^the disk is full"),
        ({"bad": InfrastructureError("the disk is full")}, InfrastructureError, "^the disk is full"),
        ("silence", InfrastructureError, "has sent nothing for 0.01 s"),
    ],
)
async def test_who_waits_hears_why_there_is_none(last: Any, error: type[Exception], message: str) -> None:
    line = Line()
    peer = Calculator(line, "it", 0.01 if last == "silence" else 60.0)
    asked = peer.ask(1)
    if last != "silence":
        line.coming.put_nowait(last)
    with pytest.raises(error, match=message):
        await asyncio.wait_for(asked, 240)
    with pytest.raises(InfrastructureError):
        await peer.ask(2)
    await peer.close()


async def test_who_was_busy_for_longer_than_the_silence_finds_what_was_sent_meanwhile() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        peer = Calculator(await SocketChannel.on(ours), "it", silence_s := 0.2)
        asked = peer.ask(1)
        for _ in range(10):
            await asyncio.sleep(0)  # the peer begins to listen
        body = pickle.dumps([{"number": 0, "result": 2, "more": b"-" * (1 << 21)}])  # more than is read at a time
        sender = threading.Thread(target=theirs.sendall, args=(struct.pack(">I", len(body)) + body,))
        sender.start()
        time.sleep(2 * silence_s)  # noqa: ASYNC251  # an update blocks the event loop
        assert await asyncio.wait_for(asked, 240) == 2
        sender.join()
        assert peer.is_alive
        await peer.close()


async def test_an_answer_that_nobody_waits_for_any_more_is_dropped() -> None:
    line = Line()
    peer = Calculator(line, "it")
    given_up, wanted = peer.ask(1), peer.ask(2)
    given_up.cancel()
    for frame in line.sent:
        line.coming.put_nowait({"number": frame["number"], "result": 2 * frame["value"]})
    assert await wanted == 4
    await peer.close()
