"""Reuses rollouts that had ended before their run was interrupted, where the same weights would sample them again."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from rstar2.agent import AgentLimits
from rstar2.engine import Sampling
from rstar2.records import Outcome, Problem, StepRecord, Trace, Verdict
from rstar2.rollout.request import OnTrace, RolloutRequest, RollsInSteps


class ResumingRoller:
    """Satisfies `RollsInSteps` by wrapping another roller.

    Invariant: every trace names the weights that sampled all of it, or none if they changed meanwhile; a rollout of the
    interrupted run comes back, once and unchanged, only if training may still learn from what its weights sampled.
    """

    def __init__(self, roller: RollsInSteps, present_weights: Callable[[], str]) -> None:
        """`present_weights` returns the name of the weights that every engine has; empty during a weight sync."""
        self._roller = roller
        self._present_weights = present_weights
        self._traces: dict[str, Trace] = {}
        self._older_weights: frozenset[str] = frozenset()

    def remember(self, traces: Mapping[str, Trace], older_weights: Collection[str] = ()) -> None:
        """Keeps the traces, by id, except those that an infrastructure fault ended. Rollouts of `older_weights` were
        sampled ahead of learning; training may use them like those of the present weights."""
        self._older_weights = frozenset(older_weights)
        self._traces = {
            trace_id: trace
            for trace_id, trace in traces.items()
            if trace.weights
            and trace.outcome is not Outcome.INFRASTRUCTURE_FAULT
            and trace.verdict is not Verdict.UNDECIDED
        }

    @property
    def is_here(self) -> bool:
        return self._roller.is_here

    async def num_prompt_tokens(self, problems: Sequence[Problem]) -> list[int]:
        return await self._roller.num_prompt_tokens(problems)

    def begin_step(self, step: int) -> None:
        self._roller.begin_step(step)

    async def end_step(self) -> StepRecord:
        return await self._roller.end_step()

    async def run(
        self,
        requests: Sequence[RolloutRequest],
        limits: AgentLimits,
        sampling: Sampling,
        on_trace: OnTrace = lambda _trace: None,
    ) -> list[Trace]:
        weights = self._present_weights()
        finished: dict[str, Trace] = {}

        def keep(trace: Trace) -> None:
            finished[trace.id] = trace
            on_trace(trace)

        def take_in(trace: Trace) -> None:
            keep(replace(trace, weights=weights if self._present_weights() == weights else ""))

        for trace in self._recall(requests, weights):
            keep(trace)
        left = [request for request in requests if request.trace_id not in finished]
        if left:
            await self._roller.run(left, limits, sampling, take_in)
        return [finished[request.trace_id] for request in requests]

    def _recall(self, requests: Sequence[RolloutRequest], weights: str) -> list[Trace]:
        """The recorded traces of the requests that have one."""
        found: dict[str, Trace] = {}
        for request in requests:
            trace = self._traces.pop(request.trace_id, None)
            if trace is None or (trace.problem_id, trace.step) != (request.problem.id, request.step):
                continue
            if trace.weights == weights or trace.weights in self._older_weights:
                found[trace.id] = trace
        # A tree's fork points depend on its other leaves, so a tree is recalled as a whole or sampled again.
        torn = {request.group_id for request in requests if request.tree and request.trace_id not in found}
        return [trace for trace in found.values() if trace.group_id not in torn]
