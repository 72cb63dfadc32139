"""The owner's side: several workers, each with a share of the problems."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from typing import Any, Self

from rstar2.agent import AgentLimits
from rstar2.engine import Sampling
from rstar2.engine.process.pipe import Pipe
from rstar2.engine.process.spawned import spawn
from rstar2.engine.remote.wire import Frame, decode_error
from rstar2.errors import InfrastructureError
from rstar2.records import Problem, StepRecord, Trace
from rstar2.rollout.farm.merge import merged
from rstar2.rollout.farm.worker import OpenRoller, work
from rstar2.rollout.remembered import Remembered
from rstar2.rollout.request import OnTrace, RolloutRequest

SILENCE_S = 60.0
"""A worker that says nothing for so long is given up. It speaks every second, whatever its rollouts do."""


class RollerFarm:
    """Satisfies `RollsInSteps`. Made by `opened`."""

    is_here = False

    def __init__(self, workers: "Sequence[Worker]", count_prompt_tokens: Callable[[Problem], int]) -> None:
        self._workers = workers
        self._count_prompt_tokens = count_prompt_tokens
        self._remembered = Remembered()

    @classmethod
    @asynccontextmanager
    async def opened(
        cls,
        open_roller: OpenRoller,
        engine_connections: Sequence[socket.socket],
        count_prompt_tokens: Callable[[Problem], int],
    ) -> AsyncIterator[Self]:
        """One worker for each connection to the engine, which is its own from then on."""
        async with AsyncExitStack() as stack:
            starting = [Worker.start(open_roller, connection) for connection in engine_connections]
            started = await asyncio.gather(*starting, return_exceptions=True)
            for worker in started:
                if isinstance(worker, Worker):
                    stack.push_async_callback(worker.close)
            for failure in started:
                if isinstance(failure, BaseException):
                    raise failure
            yield cls([worker for worker in started if isinstance(worker, Worker)], count_prompt_tokens)

    def num_prompt_tokens(self, problem: Problem) -> int:
        return self._count_prompt_tokens(problem)

    def remember(self, traces: Mapping[str, Trace]) -> None:
        self._remembered = Remembered(traces)

    def begin_step(self, step: int) -> None:
        for worker in self._workers:
            worker.begin_step(step)

    async def end_step(self) -> StepRecord:
        return merged(await asyncio.gather(*(worker.end_step() for worker in self._workers)))

    async def run(
        self,
        requests: Sequence[RolloutRequest],
        limits: AgentLimits,
        sampling: Sampling,
        on_trace: OnTrace = lambda _trace: None,
    ) -> list[Trace]:
        finished: dict[str, Trace] = {}

        def keep(trace: Trace) -> None:
            finished[trace.id] = trace
            on_trace(trace)

        for trace in self._remembered.recall(requests).values():
            keep(trace)
        left = [request for request in requests if request.trace_id not in finished]
        shares = shared_out(left, len(self._workers))
        pairs = zip(self._workers, shares, strict=True)
        await asyncio.gather(*(worker.run(share, limits, sampling, keep) for worker, share in pairs if share))
        return [finished[request.trace_id] for request in requests]


def shared_out(requests: Sequence[RolloutRequest], num_workers: int) -> list[list[RolloutRequest]]:
    """Siblings together, because they share their prompt; each problem to who has the fewest rollouts so far."""
    by_problem: dict[str, list[RolloutRequest]] = {}
    for request in requests:
        by_problem.setdefault(request.problem.id, []).append(request)
    shares: list[list[RolloutRequest]] = [[] for _ in range(num_workers)]
    for siblings in by_problem.values():
        min(shares, key=len).extend(siblings)
    return shares


class Worker:
    """One of the processes."""

    def __init__(self, channel: Pipe, silence_s: float = SILENCE_S) -> None:
        self.pid = channel.child.pid
        self._channel = channel
        self._silence_s = silence_s
        self._numbers = count()
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._readers: dict[int, OnTrace] = {}
        self._end: InfrastructureError | None = None
        self._listener = asyncio.create_task(self._listen())

    @classmethod
    async def start(cls, open_roller: OpenRoller, engine_connection: socket.socket) -> Self:
        with engine_connection:
            channel = await spawn(work, engine_connection, open_roller)
        await channel.hello("a process of rollouts")
        return cls(channel)

    async def close(self) -> None:
        await self._channel.close()
        self._listener.cancel()
        await asyncio.wait([self._listener])

    async def run(
        self, requests: Sequence[RolloutRequest], limits: AgentLimits, sampling: Sampling, on_trace: OnTrace
    ) -> None:
        await self._ask({"ask": "run", "requests": requests, "limits": limits, "sampling": sampling}, on_trace)

    def begin_step(self, step: int) -> None:
        self._channel.send({"ask": "begin_step", "step": step})

    async def end_step(self) -> StepRecord:
        record: StepRecord = await self._ask({"ask": "end_step"})
        return record

    async def _ask(self, frame: Frame, on_trace: OnTrace | None = None) -> Any:
        if self._end is not None:
            raise self._end
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        if on_trace is not None:
            self._readers[number] = on_trace
        self._channel.send({**frame, "number": number})
        try:
            return await answer
        finally:
            del self._answers[number]
            self._readers.pop(number, None)

    async def _listen(self) -> None:
        reason = f"the process of rollouts {self.pid} was closed"
        try:
            while (frame := await asyncio.wait_for(self._channel.receive(), self._silence_s)) is not None:
                self._take(frame)
            reason = f"the process of rollouts {self.pid} is gone"
        except TimeoutError:
            reason = f"the process of rollouts {self.pid} has not been heard of for {self._silence_s:g} s"
        except Exception as error:
            # Whoever takes a trace may fail, on a full disk: the run that asked for it must hear of it.
            self._fail(error)
            raise
        finally:
            self._fail(InfrastructureError(reason))

    def _take(self, frame: Frame) -> None:
        number = frame.get("number")
        if number is None:
            return
        if "trace" in frame:
            if number in self._readers:
                self._readers[number](frame["trace"])
            return
        answer = self._answers.get(number)
        if answer is None or answer.done():
            return
        if frame["error"] is None:
            answer.set_result(frame["result"])
        else:
            answer.set_exception(decode_error(frame["error"]))

    def _fail(self, error: Exception) -> None:
        self._end = error if isinstance(error, InfrastructureError) else self._end
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(error)
