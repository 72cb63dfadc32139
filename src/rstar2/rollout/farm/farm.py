"""The owner's side of a farm: it starts the workers and gives each a share of the problems."""

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Self

from rstar2.agent import AgentLimits
from rstar2.engine import Sampling
from rstar2.engine.process.child import ChildChannel, spawn
from rstar2.engine.remote import Peer
from rstar2.engine.remote.wire import Frame, decode_error
from rstar2.errors import InfrastructureError
from rstar2.records import Problem, StepRecord, Trace
from rstar2.rollout.farm.merge import merged
from rstar2.rollout.farm.worker import OpenRoller, work
from rstar2.rollout.request import OnTrace, RolloutRequest

CANCEL_DEADLINE_S = 60.0
"""How long a worker may take to cancel: its rollouts have to close their notebooks and end their programs."""


class RollerFarm:
    """Satisfies `RollsInSteps`. Made by `opened`."""

    is_here = False

    def __init__(self, workers: "Sequence[Worker]") -> None:
        self._workers = workers

    @classmethod
    @asynccontextmanager
    async def opened(cls, open_roller: OpenRoller, engine_connections: Sequence[socket.socket]) -> AsyncIterator[Self]:
        """Starts one worker for each connection to the engine; the worker owns that connection from then on."""
        async with AsyncExitStack() as stack:
            starting = [Worker.start(open_roller, connection) for connection in engine_connections]
            started = await asyncio.gather(*starting, return_exceptions=True)
            for worker in started:
                if isinstance(worker, Worker):
                    stack.push_async_callback(worker.close)
            for failure in started:
                if isinstance(failure, BaseException):
                    raise failure
            yield cls([worker for worker in started if isinstance(worker, Worker)])

    async def num_prompt_tokens(self, problems: Sequence[Problem]) -> list[int]:
        return await self._alive()[0].num_prompt_tokens(problems)

    def begin_step(self, step: int) -> None:
        for worker in self._alive():
            worker.begin_step(step)

    async def end_step(self) -> StepRecord:
        return merged(await asyncio.gather(*(worker.end_step() for worker in self._alive())))

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

        workers = self._alive()
        shares = zip(workers, shared_out(requests, len(workers)), strict=True)
        runs = [worker.run(share, limits, sampling, keep) for worker, share in shares if share]
        try:
            await asyncio.gather(*(run.ended for run in runs))
        finally:
            await asyncio.gather(*(run.leave() for run in runs))
        return [finished[request.trace_id] for request in requests]

    def _alive(self) -> "list[Worker]":
        """The workers that are alive; InfrastructureError if there is none."""
        alive = [worker for worker in self._workers if worker.is_alive]
        if not alive:
            raise InfrastructureError(f"all {len(self._workers)} rollout processes have disconnected")
        return alive


def shared_out(requests: Sequence[RolloutRequest], num_workers: int) -> list[list[RolloutRequest]]:
    """Divides requests among workers. Siblings stay together because they share their prompt; each problem goes to the
    worker with the fewest rollouts so far."""
    by_problem: dict[str, list[RolloutRequest]] = {}
    for request in requests:
        by_problem.setdefault(request.problem.id, []).append(request)
    shares: list[list[RolloutRequest]] = [[] for _ in range(num_workers)]
    for siblings in by_problem.values():
        min(shares, key=len).extend(siblings)
    return shares


class Worker(Peer):
    """The owner's handle of one worker process."""

    def __init__(self, channel: ChildChannel) -> None:
        self.pid = channel.pid
        self._pipe = channel
        self._runs: dict[int, Run] = {}
        super().__init__(channel, f"the rollout process {self.pid}")

    @classmethod
    async def start(cls, open_roller: OpenRoller, engine_connection: socket.socket) -> Self:
        with engine_connection:
            channel = await spawn(work, engine_connection, open_roller)
        await channel.hello("a rollout process")
        return cls(channel)

    def run(
        self, requests: Sequence[RolloutRequest], limits: AgentLimits, sampling: Sampling, on_trace: OnTrace
    ) -> "Run":
        """Sends the requests at once, not when the caller first awaits the run, which may be later."""
        number = next(self._numbers)
        ended = self._ask("run", {"requests": requests, "limits": limits, "sampling": sampling}, number)
        run = self._runs[number] = Run(self, number, ended, on_trace)
        ended.add_done_callback(lambda _: self._runs.pop(number))
        return run

    async def cancel(self, number: int) -> None:
        """Returns when nothing of the run is left. A process that cannot be reached, or does not cancel in time, is
        ended: no rollout runs without a caller."""
        try:
            async with asyncio.timeout(CANCEL_DEADLINE_S):
                await self._ask("cancel", {"run": number})
        except (TimeoutError, InfrastructureError):
            await self._pipe.kill()

    async def num_prompt_tokens(self, problems: Sequence[Problem]) -> list[int]:
        lengths: list[int] = await self._ask("num_prompt_tokens", {"problems": problems})
        return lengths

    def begin_step(self, step: int) -> None:
        self._tell("begin_step", {"step": step})

    async def end_step(self) -> StepRecord:
        record: StepRecord = await self._ask("end_step", {})
        return record

    def _take(self, frame: Frame) -> None:
        number = frame.get("number")
        if number is None:  # a heartbeat
            return
        if "trace" in frame:
            if number in self._runs:
                self._runs[number].take(frame["trace"])
        elif frame["error"] is None:
            self._settle(number, frame["result"], None)
        else:
            self._settle(number, None, decode_error(frame["error"]))


@dataclass(frozen=True, slots=True)
class Run:
    """One worker's share of the rollouts. Traces that arrive after the caller has left are dropped."""

    worker: Worker
    number: int
    ended: "asyncio.Future[None]"
    on_trace: OnTrace

    def take(self, trace: Trace) -> None:
        if not self.ended.done():
            self.on_trace(trace)

    async def leave(self) -> None:
        """Cancels the run unless it has ended, and returns when none of its rollouts runs any more."""
        if self.ended.done() and not self.ended.cancelled() and self.ended.exception() is None:
            return
        self.ended.cancel()
        await self.worker.cancel(self.number)
