"""What a simulation runs: rollouts whose lengths, turns and tool delays the simulator knows, and no policy does.

They are drawn from distributions, all from one seed, or replayed from the traces of a run. A drawn problem has a
difficulty, and its rollouts scatter around it: response lengths are log-normal with one spread between problems and one
within, cut at the response limit. Lengths and tool calls go together, as more tokens hold more calls.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from rstar2.errors import UserError
from rstar2.records import RunView, Trace, Turn
from rstar2.rollout.scheduler import PromptPart, RolloutSpec, branch_spec

MIN_RESPONSE_TOKENS = 32


@dataclass(frozen=True, slots=True)
class PlannedTurn:
    """Sampled tokens; then, except after the last turn, a tool that takes `tool_s` and appends tokens."""

    num_sampled_tokens: int
    num_appended_tokens: int = 0
    tool_s: float = 0.0


@dataclass(frozen=True)
class PlannedRollout:
    spec: RolloutSpec
    turns: tuple[PlannedTurn, ...]
    after: tuple[str, ...] = ()
    """The rollouts that must have ended before this one is submitted, as for a branch of a tree. They come before it in
    a workload."""

    def __post_init__(self) -> None:
        if not self.turns or any(turn.num_sampled_tokens < 1 for turn in self.turns):
            raise ValueError(f"rollout {self.spec.rollout} needs at least one turn of at least one token")

    @cached_property
    def num_sampled_tokens(self) -> int:
        return sum(turn.num_sampled_tokens for turn in self.turns)


@dataclass(frozen=True, slots=True)
class Workload:
    name: str
    rollouts: tuple[PlannedRollout, ...]


@dataclass(frozen=True, slots=True)
class WorkloadShape:
    median_response_tokens: float
    spread_between: float
    """Standard deviation of the logarithm of the length, between problems."""
    spread_within: float
    """The spread between the rollouts of one problem."""
    max_response_tokens: int
    mean_tool_s: float
    tool_spread: float = 1.0
    """Standard deviation of the logarithm of a tool's delay."""
    tool_timeout_s: float = 60.0
    mean_tool_calls: float = 2.75
    """45,000 calls a step of 16,384 rollouts, as the report has it."""
    max_turns: int = 10
    mean_appended_tokens: float = 150.0
    mean_prompt_tokens: float = 550.0
    """System text, the tool's schema and the problem."""


SHAPES = {
    # Between the report's second and third stage: a limit of 12K, a mean of 6K, 0.3 s a call.
    "default": WorkloadShape(5_200, 0.5, 0.5, 12_288, mean_tool_s=0.3),
    # Lengths that hardly differ: the least room for any scheduler.
    "short-tail": WorkloadShape(4_000, 0.2, 0.2, 12_288, mean_tool_s=0.3),
    # The report's evaluation limit; few rollouts are ten times as long as most.
    "heavy-tail": WorkloadShape(2_500, 0.7, 0.8, 30_720, mean_tool_s=0.3),
    # Tools that take ten seconds on average, and one in fifty runs into its timeout.
    "slow-tools": WorkloadShape(5_200, 0.5, 0.5, 12_288, mean_tool_s=10.0, tool_spread=1.2),
}


def generate(name: str, seed: int, num_problems: int = 512, num_rollouts_each: int = 32) -> Workload:
    if name not in SHAPES:
        raise UserError(f"there is no workload {name!r}; there are {', '.join(SHAPES)}")
    shape = SHAPES[name]
    rng = np.random.default_rng([seed, *name.encode()])
    rollouts: list[PlannedRollout] = []
    for problem in range(num_problems):
        rollouts += draw_problem(shape, f"{problem:04d}", rng.standard_normal(), num_rollouts_each, rng)
    return Workload(name, tuple(rollouts))


def draw_problem(
    shape: WorkloadShape, problem: str, deviation: float, num_rollouts: int, rng: np.random.Generator
) -> Iterator[PlannedRollout]:
    """The rollouts of a problem whose difficulty is this many spreads from the mean."""
    difficulty = math.log(shape.median_response_tokens) + shape.spread_between * deviation
    num_prompt_tokens = max(16, round(shape.mean_prompt_tokens * math.exp(0.2 * rng.standard_normal())))
    for sample in range(num_rollouts):
        length = math.exp(difficulty + shape.spread_within * rng.standard_normal())
        spec = RolloutSpec(f"{problem}-{sample:02d}", problem, num_prompt_tokens, shape.max_response_tokens)
        yield PlannedRollout(spec, _draw_turns(shape, max(MIN_RESPONSE_TOKENS, round(length)), rng))


def _draw_turns(shape: WorkloadShape, num_response_tokens: int, rng: np.random.Generator) -> tuple[PlannedTurn, ...]:
    """Turns of together `num_response_tokens`, cut where the limit is reached."""
    calls_rate = shape.mean_tool_calls * math.sqrt(num_response_tokens / shape.median_response_tokens)
    num_turns = 1 + min(shape.max_turns - 1, int(rng.poisson(calls_rate)), num_response_tokens // MIN_RESPONSE_TOKENS)
    shares = rng.dirichlet([2.0] * num_turns)
    appended = rng.exponential(shape.mean_appended_tokens, num_turns)
    # exp(mean + spread²/2) is the mean of a log-normal.
    delays = shape.mean_tool_s * np.exp(shape.tool_spread * rng.standard_normal(num_turns) - shape.tool_spread**2 / 2)
    delays = np.minimum(delays, shape.tool_timeout_s)
    turns: list[PlannedTurn] = []
    num_left = shape.max_response_tokens
    for index in range(num_turns):
        num_appended = 8 + int(appended[index]) if index < num_turns - 1 else 0
        num_sampled = min(num_left, max(1, round(num_response_tokens * shares[index]) - num_appended))
        num_left -= num_sampled + num_appended
        if index == num_turns - 1 or num_left < 1:
            turns.append(PlannedTurn(num_sampled))
            break
        turns.append(PlannedTurn(num_sampled, num_appended, float(delays[index])))
    return tuple(turns)


def replay(run: Path, step: int | None = None) -> Workload:
    """The rollouts of one step of a run, by default the last, problem by problem."""
    view = RunView(run)
    steps = view.trace_steps()
    if not steps:
        raise UserError(f"{run} has no traces to replay")
    chosen = steps[-1] if step is None else step
    traces = [trace for trace in view.traces(chosen) if trace.num_generated_tokens]
    if not traces:
        raise UserError(f"{run} has no trace with sampled tokens in step {chosen}")
    traces.sort(key=lambda trace: (trace.group_id or trace.problem_id, trace.sample_index, trace.id))
    # The limit is not in the traces; the longest response is what the run needed.
    max_response_tokens = max(trace.num_response_tokens for trace in traces)
    known = {trace.id: trace for trace in traces}
    points: dict[str, set[tuple[int, int]]] = {}
    for trace in traces:
        points.setdefault(trace.parent, set()).add((trace.num_shared_turns, trace.num_shared_tokens))
    planned = tuple(_planned(trace, known, points, max_response_tokens) for trace in traces)
    return Workload(f"{run.name}-step-{chosen}", planned)


def _parts(trace: Trace, known: Mapping[str, Trace], points: Mapping[str, set[tuple[int, int]]]) -> list[PromptPart]:
    """Everything before a rollout, cut at the fork points of its ancestors."""
    if trace.parent not in known:
        return [PromptPart(trace.group_id or trace.problem_id, len(trace.prompt_ids))]
    parts = _parts(known[trace.parent], known, points)
    for num_turns, num_tokens in sorted(points[trace.parent]):
        if (num_turns, num_tokens) <= (trace.num_shared_turns, trace.num_shared_tokens):
            num_before = len(trace.prompt_ids) + _num_shared(trace, num_turns, num_tokens)
            num_new = num_before - sum(part.num_tokens for part in parts)
            parts.append(PromptPart(f"{trace.parent}/{num_turns}/{num_tokens}", num_new))
    return parts


def _num_shared(trace: Trace, num_turns: int, num_tokens: int) -> int:
    """Tokens of the response up to a point."""
    return num_tokens + sum(len(turn.token_ids) + len(turn.appended_ids) for turn in trace.turns[:num_turns])


def _planned(
    trace: Trace, known: Mapping[str, Trace], points: Mapping[str, set[tuple[int, int]]], max_response_tokens: int
) -> PlannedRollout:
    spec = RolloutSpec(trace.id, trace.group_id or trace.problem_id, len(trace.prompt_ids), max_response_tokens)
    if trace.parent in known:
        num_shared = _num_shared(trace, trace.num_shared_turns, trace.num_shared_tokens)
        spec = branch_spec(spec, trace.parent, tuple(_parts(trace, known, points)), num_shared)
        first, *others = trace.own_turns
        own = replace(first, token_ids=first.token_ids[trace.num_shared_tokens :], log_probs=(), entropies=())
        return PlannedRollout(spec, _planned_turns((own, *others)), (trace.parent,))
    return PlannedRollout(spec, _planned_turns(trace.turns))


def _planned_turns(turns: Sequence[Turn]) -> tuple[PlannedTurn, ...]:
    sampled = [turn for turn in turns if turn.token_ids]
    return tuple(
        PlannedTurn(len(turn.token_ids), len(turn.appended_ids), turn.tool_s)
        if turn is not sampled[-1]
        else PlannedTurn(len(turn.token_ids))
        for turn in sampled
    )
