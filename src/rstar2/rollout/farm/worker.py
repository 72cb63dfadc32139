"""The child's side: it runs its own roller and answers the owner's frames until the owner disconnects.

Frames of the owner are `run` (with requests), `cancel` (of a run), `num_prompt_tokens`, `begin_step` and `end_step`. A
trace is sent the moment it is ready. The end of a run, or of a step, is answered under the number of its frame. A
cancelled run has no answer: `cancel` is answered when nothing of the run is left. In between the child sends
heartbeats.
"""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

from rstar2.engine import Engine
from rstar2.engine.process.child import SocketChannel, make_garbage_collection_rare
from rstar2.engine.process.host import join_engine
from rstar2.engine.remote.wire import Frame, encode_error
from rstar2.errors import InfrastructureError, UserError
from rstar2.records import Trace
from rstar2.rollout.request import RollsInSteps

HEARTBEAT_S = 1.0

OpenRoller = Callable[[Awaitable[Engine]], AbstractAsyncContextManager[RollsInSteps]]
"""Opens a worker's roller on the farm's engine, which is awaited because it may load longer than everything else. The
child gets this function by pickling, so it must be a plain function, or a `functools.partial` of one."""


def work(connection: socket.socket, engine_connection: socket.socket, open_roller: OpenRoller) -> None:
    _do_without_torch()
    # Ctrl-C reaches every process of the terminal; the owner decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asyncio.run(_work(connection, engine_connection, open_roller))


def _do_without_torch() -> None:
    """Keeps PyTorch out of this process. A worker has a tokenizer and no model, but Transformers would import PyTorch:
    seconds and hundreds of megabytes, in each of many processes."""
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]  # as if it were not installed
    os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"  # it warns that torch is missing


async def _work(connection: socket.socket, engine_connection: socket.socket, open_roller: OpenRoller) -> None:
    owner = await SocketChannel.on(connection)
    joining = asyncio.create_task(join_engine(engine_connection))
    try:
        async with open_roller(joining) as roller:
            make_garbage_collection_rare()
            owner.send({"error": None})
            await _FrameServer(owner, roller).serve()
        await (await joining).close()
    except (UserError, InfrastructureError) as error:
        joining.cancel()
        owner.send({"error": encode_error(error)})
        await owner.drain()


class _FrameServer:
    def __init__(self, owner: SocketChannel, roller: RollsInSteps) -> None:
        self._owner = owner
        self._roller = roller
        self._tasks: dict[int, asyncio.Task[None]] = {}
        """The running tasks by the number of their frame."""

    async def serve(self) -> None:
        heartbeat = asyncio.create_task(self._send_heartbeats())
        while (frame := await self._owner.receive()) is not None:
            if frame["ask"] == "begin_step":
                self._roller.begin_step(frame["step"])
            else:
                self._start(frame)
        tasks = [heartbeat, *self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, frame: Frame) -> None:
        number = frame["number"]
        task = self._tasks[number] = asyncio.create_task(self._answer(frame))
        task.add_done_callback(lambda _: self._tasks.pop(number))

    async def _send_heartbeats(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            self._owner.send({})

    async def _answer(self, frame: Frame) -> None:
        number = frame["number"]
        try:
            result = await self._do(frame)
        except (UserError, InfrastructureError) as error:
            self._owner.send({"number": number, "error": encode_error(error)})
        except Exception as error:
            # A bug of rstar2: the error names its type, and ends the run as an error in the owner would.
            reason = encode_error(InfrastructureError(f"{type(error).__name__}: {error}"))
            self._owner.send({"number": number, "error": reason})
        else:
            self._owner.send({"number": number, "error": None, "result": result})

    async def _do(self, frame: Frame) -> object:
        match frame["ask"]:
            case "num_prompt_tokens":
                return await self._roller.num_prompt_tokens(frame["problems"])
            case "end_step":
                return await self._roller.end_step()
            case "run":
                await self._run(frame)
            case "cancel":
                await self._cancel(frame["run"])
            case unknown:
                raise AssertionError(f"unknown frame {unknown}")
        return None

    async def _run(self, frame: Frame) -> None:
        def hand_over(trace: Trace) -> None:
            self._owner.send({"number": frame["number"], "trace": trace})

        await self._roller.run(frame["requests"], frame["limits"], frame["sampling"], hand_over)

    async def _cancel(self, number: int) -> None:
        task = self._tasks.get(number)
        if task is not None:  # otherwise the run has ended, and its answer is on its way
            task.cancel()
            await asyncio.wait([task])
