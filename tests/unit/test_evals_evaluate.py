"""The core that the trainer calls: what it asks a roller for, what it keeps, what it tries again."""

from collections.abc import Callable, Sequence

import pytest

from rstar2.agent import AgentLimits
from rstar2.engine import Sampling
from rstar2.evals import EvalSettings, History, evaluate
from rstar2.evals.evaluate import NUM_FAULT_ROUNDS
from rstar2.records import Outcome, Problem, StopReason, Trace, Turn, Verdict
from rstar2.rollout.request import RolloutRequest
from rstar2.rollout.trees import TreeSettings

pytestmark = pytest.mark.unit

PROBLEMS = {"small": [Problem("p", "?", "1"), Problem("q", "?", "2")], "other": [Problem("p", "?", "3")]}


class Roller:
    """Right on every request, but for those that it loses so many times."""

    def __init__(self, num_losses: int = 0) -> None:
        self.num_losses = num_losses
        self.calls: list[list[RolloutRequest]] = []
        self.limits: AgentLimits | None = None
        self.sampling: Sampling | None = None

    async def run(
        self,
        requests: Sequence[RolloutRequest],
        limits: AgentLimits,
        sampling: Sampling,
        on_trace: Callable[[Trace], None] = lambda _trace: None,
    ) -> list[Trace]:
        self.calls.append(list(requests))
        self.limits, self.sampling = limits, sampling
        traces = [self._trace(request) for request in requests]
        for trace in traces:
            on_trace(trace)
        return traces

    def _trace(self, request: RolloutRequest) -> Trace:
        is_lost = request.problem.id == "q" and len(self.calls) <= self.num_losses
        return Trace(
            id=request.trace_id,
            problem_id=request.problem.id,
            prompt_ids=(1,),
            prompt_text="?",
            turns=() if is_lost else (Turn((2,), (), "1", StopReason.END_OF_TURN),),
            outcome=Outcome.INFRASTRUCTURE_FAULT if is_lost else Outcome.ANSWERED,
            group_id=request.group_id,
            sample_index=request.sample_index,
            step=request.step,
            answer=None if is_lost else request.problem.answer,
            verdict=None if is_lost else Verdict.RIGHT,
            reward=None if is_lost else 1.0,
        )


async def test_a_tree_of_which_samples_are_missing_is_asked_for_again_as_a_whole() -> None:
    tree = TreeSettings(1)
    settings = EvalSettings(num_samples=2, tree=tree)
    first = Roller()
    history, seen = History(), list[Trace]()
    await evaluate(first, PROBLEMS, settings, on_trace=seen.append)
    for trace in seen:
        if trace.id != "eval/0/small/q/1":
            history.add(trace)
    second = Roller()
    results = await evaluate(second, PROBLEMS, settings, history=history)
    asked = [request for requests in second.calls for request in requests]
    assert [request.trace_id for request in asked] == ["eval/0/small/q/0/retry-1", "eval/0/small/q/1"]
    assert all(request.tree is tree for request in asked)
    assert [result.num_scored for result in results.values()] == [4, 2]


async def test_each_sample_of_each_problem_is_asked_for_once_by_the_protocol() -> None:
    roller, seen = Roller(), list[Trace]()
    protocol = EvalSettings(num_samples=3, temperature=0.2, max_response_tokens=77, max_turns=4)

    results = await evaluate(roller, PROBLEMS, protocol, step=5, stage="warm-up", seed=1, on_trace=seen.append)

    assert [len(requests) for requests in roller.calls] == [6, 3]
    assert [request.trace_id for request in roller.calls[0]][:3] == [
        "warm-up/5/small/p/0",
        "warm-up/5/small/q/0",
        "warm-up/5/small/p/1",
    ]
    assert roller.limits is not None
    assert roller.sampling is not None
    assert (roller.limits.max_turns, roller.limits.max_response_tokens, roller.sampling.temperature) == (4, 77, 0.2)
    seeds = [request.seed for requests in roller.calls for request in requests]
    assert len(set(seeds)) == len(seeds)
    assert {trace.metadata["benchmark"] for trace in seen} == {"small", "other"}
    assert all(trace.step == 5 and trace.metadata["stage"] == "warm-up" for trace in seen)
    assert [(result.accuracy, result.num_scored) for result in results.values()] == [(1.0, 6), (1.0, 3)]


async def test_a_lost_rollout_is_asked_for_again_under_a_new_id_and_the_same_seed() -> None:
    roller, seen = Roller(num_losses=1), list[Trace]()
    results = await evaluate(roller, {"small": PROBLEMS["small"]}, EvalSettings(num_samples=2), on_trace=seen.append)

    first, again = roller.calls
    assert [request.trace_id for request in again] == ["eval/0/small/q/0/retry-1", "eval/0/small/q/1/retry-1"]
    assert [request.seed for request in again] == [request.seed for request in first if request.problem.id == "q"]
    assert len(seen) == 6, "lost ones are kept as well"
    assert results["small"].is_complete
    assert results["small"].accuracy == 1.0


async def test_what_stays_lost_is_counted_and_not_scored() -> None:
    roller = Roller(num_losses=99)
    results = await evaluate(roller, {"small": PROBLEMS["small"]}, EvalSettings(num_samples=2))

    assert len(roller.calls) == 1 + NUM_FAULT_ROUNDS
    assert (results["small"].num_faults, results["small"].num_scored, results["small"].accuracy) == (2, 2, 1.0)


async def test_what_history_knows_is_not_repeated_and_retries_are_counted_on() -> None:
    history, traces = History(), list[Trace]()
    await evaluate(
        Roller(num_losses=99), {"small": PROBLEMS["small"]}, EvalSettings(num_samples=2), on_trace=traces.append
    )
    for trace in traces:
        history.add(trace)

    roller = Roller()
    results = await evaluate(roller, PROBLEMS, EvalSettings(num_samples=2), history=history)

    asked = [request.trace_id for requests in roller.calls for request in requests]
    assert asked[:2] == ["eval/0/small/q/0/retry-3", "eval/0/small/q/1/retry-3"]
    assert len(asked) == 4, "two lost ones, and the other benchmark"
    assert results["small"].is_complete
