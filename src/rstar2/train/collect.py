"""The rollouts of one training step: sampled, judged, grouped and chosen from, and sampled on until the batch is full.

Invariant: a group is whole or not there; the problems of a step come from the cursor in order, those that fill it up
included; what was lost through our fault is sampled again, under an id of its own.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from rstar2.agent import AgentLimits
from rstar2.algo import RocSettings, decide_group, is_trainable, num_missing_groups, num_missing_rollouts
from rstar2.engine import Sampling
from rstar2.grading import count_answer_blocks
from rstar2.records import Group, Problem, StepRecord, Trace
from rstar2.rollout.request import RolloutRequest, Rolls
from rstar2.train.cursor import Cursor, take
from rstar2.train.seeds import named_seed


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What one step samples, and how it chooses."""

    step: int
    stage: str
    seed: int
    num_groups: int
    num_sampled: int
    """Rollouts of one problem."""
    max_refills: int
    settings: RocSettings
    limits: AgentLimits
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class Collected:
    groups: tuple[Group, ...]
    traces: tuple[Trace, ...]
    """Every rollout of the step, those that were not kept included."""
    cursor: Cursor
    num_refills: int
    duration_s: float
    schedule: StepRecord | None = None
    """What engines and rollouts did meanwhile."""

    @property
    def trainable(self) -> tuple[Group, ...]:
        return tuple(group for group in self.groups if is_trainable(group))


@dataclass(slots=True)
class _OpenGroup:
    problem: Problem
    index: int
    """Of the problem among all of the step."""
    traces: list[Trace] = field(default_factory=list)
    num_attempts: int = 0


async def collect_step(
    roller: Rolls,
    problems: Sequence[Problem],
    cursor: Cursor,
    plan: StepPlan,
    on_trace: Callable[[Trace], None],
) -> Collected:
    started_s = time.monotonic()
    stream = f"{plan.seed}/{plan.stage}"
    groups: list[_OpenGroup] = []
    decided: list[Group] = []
    num_rounds = 0
    while True:
        num_missing = num_missing_groups(decided, plan.num_groups)
        indices, cursor = take(cursor, num_missing, len(problems), stream)
        groups += [_OpenGroup(problems[index], len(groups) + place) for place, index in enumerate(indices)]
        requests = [request for group in groups for request in _requests(group, plan)]
        if requests:
            traces = await roller.run(requests, plan.limits, plan.sampling, on_trace)
            by_group = {group.index: group for group in groups}
            for request, trace in zip(requests, traces, strict=True):
                by_group[int(request.group_id.rpartition("-")[2])].traces.append(trace)
        decided = [_decide(group, plan) for group in groups]
        num_rounds += 1
        if num_rounds > plan.max_refills or not _lacks_something(groups, decided, plan):
            break
    traces = [trace for group in groups for trace in group.traces]
    return Collected(tuple(decided), tuple(traces), cursor, num_rounds - 1, time.monotonic() - started_s)


def _lacks_something(groups: Sequence[_OpenGroup], decided: Sequence[Group], plan: StepPlan) -> bool:
    return num_missing_groups(decided, plan.num_groups) > 0 or any(_num_lost(group, plan) for group in groups)


def _num_lost(group: _OpenGroup, plan: StepPlan) -> int:
    return num_missing_rollouts([trace.reward for trace in group.traces], plan.num_sampled)


def _requests(group: _OpenGroup, plan: StepPlan) -> list[RolloutRequest]:
    """What the group still needs: all of it at first, then what was lost."""
    requests = []
    for _ in range(_num_lost(group, plan)):
        number = group.num_attempts
        group.num_attempts += 1
        group_id = f"s{plan.step:06d}-{group.index:04d}"
        requests.append(
            RolloutRequest(
                problem=group.problem,
                trace_id=f"{group_id}-{number:03d}",
                group_id=group_id,
                sample_index=number,
                step=plan.step,
                stage=plan.stage,
                seed=named_seed(plan.seed, "rollout", plan.step, group.problem.id, group.index, number),
            )
        )
    return requests


def _decide(group: _OpenGroup, plan: StepPlan) -> Group:
    return decide_group(
        group.traces,
        [count_answer_blocks(trace.response_text) for trace in group.traces],
        plan.settings,
        np.random.default_rng(named_seed(plan.seed, "choice", plan.step, group.index)),
        group_id=f"s{plan.step:06d}-{group.index:04d}",
        step=plan.step,
    )
