"""Rolls out many problems, with agent and environments on the driver's engines, and judges each rollout."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from rstar2.agent import Agent, AgentLimits, ChatFormat, Transcript
from rstar2.agent.events import AgentEvent, CallStarted, TurnStarted
from rstar2.engine import Chunk, EngineLoad, Sampling
from rstar2.environments import Environment, Episode
from rstar2.environments.begin import observed_start, start_of
from rstar2.environments.protocol import fork_of, plays_itself
from rstar2.environments.wrapped import innermost
from rstar2.errors import InfrastructureError, UserError
from rstar2.records import Outcome, Problem, StepRecord, Trace
from rstar2.records.trace import FULL_REWARD, GOLD_KEY, THRESHOLD_KEY
from rstar2.rollout.driver import Driver
from rstar2.rollout.judge import judge_of, judged
from rstar2.rollout.placed_rollout import PlacedRollout
from rstar2.rollout.request import OnTrace, RolloutRequest
from rstar2.rollout.scheduler import RolloutSpec, branch_spec
from rstar2.rollout.trees.grow import ForkPoint, LeafRequest, StateKeeper, grow


class Roller:
    """Satisfies `RollsInSteps`, on the driver's engines. Each rollout is one episode of its problem's environment."""

    is_here = True

    def __init__(
        self,
        driver: Driver[Trace],
        chat: ChatFormat,
        environments: Mapping[str, Environment],
        model: str = "",
        max_prompt_tokens: int | None = None,
        success_threshold: float = FULL_REWARD,
    ) -> None:
        """`max_prompt_tokens` bounds a prompt that an observation of its episode has made longer; `success_threshold`
        is the least reward of a success where an environment gives no verdict."""
        self.driver = driver
        self.chat = chat
        self._environments = environments
        self._model = model
        self._max_prompt_tokens = max_prompt_tokens
        self._success_threshold = success_threshold

    def begin_step(self, step: int) -> None:
        self.driver.begin_step(step)

    async def end_step(self) -> StepRecord:
        return self.driver.end_step()

    async def num_prompt_tokens(self, problems: Sequence[Problem]) -> list[int]:
        return [len(self._start(problem).prompt_ids) for problem in problems]

    def _start(self, problem: Problem) -> Transcript:
        return start_of(self.chat, self._environment(problem).opening(problem))

    def _environment(self, problem: Problem) -> Environment:
        return self._environments[problem.environment]

    async def run(
        self,
        requests: Sequence[RolloutRequest],
        limits: AgentLimits,
        sampling: Sampling,
        on_trace: OnTrace = lambda _trace: None,
    ) -> list[Trace]:
        assert len({request.trace_id for request in requests}) == len(requests), "trace ids must be unique"
        starts = {
            problem_id: self._start(problem)
            for problem_id, problem in {request.problem.id: request.problem for request in requests}.items()
        }
        roll_round = partial(self._roll_all, starts=starts, limits=limits, sampling=sampling, on_trace=on_trace)
        flat = [LeafRequest(request, None, None) for request in requests if request.tree is None]
        trees: dict[str, list[RolloutRequest]] = {}
        for request in requests:
            if request.tree is not None:
                trees.setdefault(request.group_id, []).append(request)
        if not trees:
            return await roll_round(flat)

        async def grow_tree(leaves: Sequence[RolloutRequest]) -> list[Trace]:
            assert leaves[0].tree is not None
            traces = await grow(leaves, leaves[0].tree, roll_round)
            for request in leaves[len(traces) :]:
                start = starts[request.problem.id]
                traces.append(self._labelled(request, _empty(request, start, Outcome.BEYOND_BUDGET)))
                on_trace(traces[-1])
            return traces

        traces = await _gather_or_cancel([roll_round(flat), *map(grow_tree, trees.values())])
        by_id = {trace.id: trace for several in traces for trace in several}
        return [by_id[request.trace_id] for request in requests]

    async def _roll_all(
        self,
        leaves: Sequence[LeafRequest],
        *,
        starts: Mapping[str, Transcript],
        limits: AgentLimits,
        sampling: Sampling,
        on_trace: OnTrace,
    ) -> list[Trace]:
        by_id = {leaf.request.trace_id: leaf for leaf in leaves}

        async def roll(placed: PlacedRollout) -> Trace:
            leaf = by_id[placed.spec.rollout]
            trace = await self._roll(leaf, starts[leaf.request.problem.id], placed, limits, sampling)
            on_trace(trace)
            return trace

        specs = [_spec(leaf, starts[leaf.request.problem.id], limits) for leaf in leaves]
        traces = []
        for result in await self.driver.run(specs, roll) if specs else ():
            if isinstance(result, BaseException):
                raise result
            traces.append(result)
        return traces

    async def _roll(
        self, leaf: LeafRequest, start: Transcript, placed: PlacedRollout, limits: AgentLimits, sampling: Sampling
    ) -> Trace:
        request = leaf.request
        engine = _PlacedEngine(placed)
        agent = Agent(
            engine,
            self.chat,
            limits,
            replace(sampling, seed=request.seed),
            waited_s=lambda: placed.waited_s,
            reports_text=False,
        )
        environment = self._environment(request.problem)
        try:
            episode = await self._begin(leaf)
        except InfrastructureError as error:
            note = f"its episode could not begin: {error}"
            return self._labelled(request, _empty(request, start, Outcome.INFRASTRUCTURE_FAULT, note))
        try:
            if plays_itself(player := innermost(episode)):
                trace = await player.play(agent, request.trace_id)
            else:
                observed = leaf.start.transcript if leaf.start else self._observed(request.problem, start, episode)
                trace = await agent.rollout(
                    request.problem,
                    episode.tools,
                    trace_id=request.trace_id,
                    observer=engine.observe,
                    start=observed,
                    world=episode,
                    before_turn=_keeper(leaf, episode),
                )
            if leaf.start is not None:
                trace = _as_branch(trace, leaf.start)
            judge = judge_of(environment, episode, self.chat.end_of_turn)
            trace = await judged(judge, request.problem, self._labelled(request, trace))
        finally:
            failed_close = await _close(episode)
        return replace(trace, note=trace.note or failed_close) if failed_close else trace

    async def _begin(self, leaf: LeafRequest) -> Episode:
        if leaf.start is None:
            return await self._environment(leaf.request.problem).begin(leaf.request.problem)
        episode = await fork_of(leaf.start.episode)
        if episode is None:
            raise InfrastructureError("it cannot be forked any more")
        return episode

    def _observed(self, problem: Problem, start: Transcript, episode: Episode) -> Transcript:
        """The prompt with the episode's first observation, whose length no check of the data could know."""
        if episode.observation:
            start = observed_start(self.chat, self._environment(problem).opening(problem), episode)
        if self._max_prompt_tokens is not None and len(start.prompt_ids) > self._max_prompt_tokens:
            raise UserError(
                f"problem {problem.id!r} has a prompt of {len(start.prompt_ids)} tokens with what its environment says "
                f"first, more than rollout.max_prompt_tokens of {self._max_prompt_tokens}; raise that"
            )
        return start

    def _labelled(self, request: RolloutRequest, trace: Trace) -> Trace:
        metadata = {**trace.metadata, GOLD_KEY: request.problem.answer}
        if self._success_threshold != FULL_REWARD:
            metadata[THRESHOLD_KEY] = repr(self._success_threshold)
        return replace(
            trace,
            group_id=request.group_id,
            sample_index=request.sample_index,
            step=request.step,
            model=self._model,
            environment=request.problem.environment,
            metadata=metadata,
        )


def _as_branch(trace: Trace, start: ForkPoint) -> Trace:
    # A turn that failed before its first new token is not in the trace: then nothing inside it is shared.
    num_tokens = start.num_tokens if start.turn < len(trace.turns) else 0
    return replace(trace, parent=start.rollout, num_shared_turns=start.turn, num_shared_tokens=num_tokens)


def _keeper(leaf: LeafRequest, episode: Episode) -> StateKeeper | None:
    tree = leaf.request.tree
    if tree is None or leaf.states is None:
        return None
    num_shared_turns = None if leaf.start is None else leaf.start.turn
    return StateKeeper(leaf.request.trace_id, episode, tree.rule, leaf.states, num_shared_turns)


def _spec(leaf: LeafRequest, prompt: Transcript, limits: AgentLimits) -> RolloutSpec:
    """The leaf for the scheduler. Branches of one fork point are rollouts whose shared prompt is everything before
    it."""
    request = leaf.request
    root = RolloutSpec(
        request.trace_id, request.problem.id, len(prompt.prompt_ids), limits.max_response_tokens, request.stage
    )
    if leaf.start is None:
        return root
    num_shared = len(leaf.start.transcript.token_ids) - len(leaf.start.transcript.prompt_ids)
    return branch_spec(root, leaf.start.rollout, leaf.start.parts, num_shared)


async def _gather_or_cancel(trees: Sequence[Coroutine[Any, Any, list[Trace]]]) -> list[list[Trace]]:
    """Awaits all trees. If one raises, the others are cancelled, and have ended before the error is passed on."""
    try:
        async with asyncio.TaskGroup() as tasks:
            growing = [tasks.create_task(tree) for tree in trees]
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
    return [task.result() for task in growing]


async def _close(episode: Episode) -> str:
    """Closes the episode. Returns why that failed, which changes nothing about its trace; empty if it did not."""
    try:
        await episode.close()
    except InfrastructureError as error:
        return f"its episode could not be closed: {error}"
    return ""


def _empty(request: RolloutRequest, start: Transcript, outcome: Outcome, note: str = "") -> Trace:
    """The trace of a rollout of which nothing was sampled."""
    return Trace(
        id=request.trace_id,
        problem_id=request.problem.id,
        prompt_ids=start.prompt_ids,
        prompt_text=start.prompt_text,
        turns=(),
        outcome=outcome,
        note=note,
    )


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
