"""Many rollouts of many problems, each of them judged: agent, tools and judge put together on the driver."""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace

from rstar2.agent import Agent, AgentLimits, ChatFormat, Tool, Transcript
from rstar2.agent.events import AgentEvent, CallStarted, TurnStarted
from rstar2.agent.tool import close_all
from rstar2.engine import Chunk, EngineLoad, Sampling
from rstar2.records import Problem, StepRecord, Trace
from rstar2.records.trace import GOLD_KEY
from rstar2.rollout.driver import Driver
from rstar2.rollout.judge import Judge, judged
from rstar2.rollout.placed_rollout import PlacedRollout
from rstar2.rollout.request import OnTrace, RolloutRequest
from rstar2.rollout.scheduler import RolloutSpec


class Roller:
    """Satisfies `RollsInSteps`, on the driver's engines. `make_tools` is called once for each rollout."""

    is_here = True

    def __init__(
        self,
        driver: Driver[Trace],
        chat: ChatFormat,
        make_tools: Callable[[], Sequence[Tool]],
        judge: Judge,
        model: str = "",
    ) -> None:
        self.driver = driver
        self.chat = chat
        self._make_tools = make_tools
        self._judge = judge
        self._model = model

    def begin_step(self, step: int) -> None:
        self.driver.begin_step(step)

    async def end_step(self) -> StepRecord:
        return self.driver.end_step()

    def num_prompt_tokens(self, problem: Problem) -> int:
        return len(self._start(problem).prompt_ids)

    def _start(self, problem: Problem) -> Transcript:
        return Transcript.start(self.chat, problem.problem, [tool.schema for tool in self._make_tools()])

    async def run(
        self,
        requests: Sequence[RolloutRequest],
        limits: AgentLimits,
        sampling: Sampling,
        on_trace: OnTrace = lambda _trace: None,
    ) -> list[Trace]:
        by_id = {request.trace_id: request for request in requests}
        assert len(by_id) == len(requests), "trace ids must be unique"
        starts = {
            problem_id: self._start(problem)
            for problem_id, problem in {request.problem.id: request.problem for request in requests}.items()
        }

        async def roll(placed: PlacedRollout) -> Trace:
            request = by_id[placed.spec.rollout]
            trace = await self._roll(request, starts[request.problem.id], placed, limits, sampling)
            on_trace(trace)
            return trace

        specs = [
            RolloutSpec(
                rollout=request.trace_id,
                problem=request.problem.id,
                num_prompt_tokens=len(starts[request.problem.id].prompt_ids),
                max_response_tokens=limits.max_response_tokens,
                stage=request.stage,
            )
            for request in requests
        ]
        traces = []
        for result in await self.driver.run(specs, roll) if specs else ():
            if isinstance(result, BaseException):
                raise result
            traces.append(result)
        return traces

    async def _roll(
        self, request: RolloutRequest, start: Transcript, placed: PlacedRollout, limits: AgentLimits, sampling: Sampling
    ) -> Trace:
        engine = _PlacedEngine(placed)
        agent = Agent(
            engine,
            self.chat,
            limits,
            replace(sampling, seed=request.seed),
            waited_s=lambda: placed.waited_s,
            reports_text=False,
        )
        tools = self._make_tools()
        try:
            trace = await agent.rollout(
                request.problem, tools, trace_id=request.trace_id, observer=engine.observe, start=start
            )
        finally:
            await close_all(tools)
        trace = replace(
            trace,
            group_id=request.group_id,
            sample_index=request.sample_index,
            step=request.step,
            model=self._model,
            metadata={**trace.metadata, GOLD_KEY: request.problem.answer},
        )
        return await judged(self._judge, request.problem, trace)


class _PlacedEngine:
    """A placed rollout as the agent's engine. It reports a tool call to the scheduler the moment the call is made."""

    def __init__(self, placed: PlacedRollout) -> None:
        self._placed = placed
        self._has_called = False

    def observe(self, event: AgentEvent) -> None:
        if isinstance(event, TurnStarted):
            self._has_called = False
        elif isinstance(event, CallStarted) and not self._has_called:
            self._has_called = True
            self._placed.calls_tool()

    def generate(
        self, _session: str, token_ids: Sequence[int], sampling: Sampling, max_tokens: int
    ) -> AsyncIterator[Chunk]:
        return self._placed.generate(token_ids, sampling, max_tokens)

    def load(self) -> EngineLoad:
        raise AssertionError("the driver asks the engines themselves")

    async def cancel(self, _session: str) -> None:
        raise AssertionError("the driver cancels")

    async def release(self, _session: str) -> None:
        """The driver releases what it placed."""

    async def close(self) -> None:
        """The driver's engines outlive a rollout."""
