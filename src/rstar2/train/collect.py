"""The rollouts of one training step: sampled, judged, grouped and chosen from, and sampled on until the batch is full.

Invariant: a group is whole or not there; the problems of a step come from the cursor in order, those that fill it up
included; what was lost through our fault is sampled again, under an id of its own. A step that ran ahead of a stage's
end is left and collected anew by the next stage: ids name the stage, too.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from rstar2.agent import AgentLimits
from rstar2.algo import Mode, RocSettings, decide_group, is_trainable, num_missing_groups, num_missing_rollouts
from rstar2.engine import Sampling
from rstar2.grading import count_answer_blocks, count_balanced_answer_blocks
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
    id: str
    traces: list[Trace] = field(default_factory=list)
    num_attempts: int = 0
    decided: Group | None = None


async def collect_step(
    roller: Rolls,
    problems: Sequence[Problem],
    cursor: Cursor,
    plan: StepPlan,
    on_trace: Callable[[Trace], None],
    on_begin: Callable[[int], None] = lambda _: None,
) -> Collected:
    """A group is chosen from the moment its last rollout ends, not when all have: others are still on their way.
    `on_begin` gets the number of rollouts that are begun at a time."""
    started_s = time.monotonic()
    stream = f"{plan.seed}/{plan.stage}"
    groups: dict[str, _OpenGroup] = {}

    def take_in(trace: Trace) -> None:
        on_trace(trace)
        group = groups[trace.group_id]
        group.traces.append(trace)
        if len(group.traces) == group.num_attempts:
            group.traces.sort(key=lambda trace: trace.sample_index)
            group.decided = _decide(group, plan)

    num_rounds = 0
    while True:
        indices, cursor = take(cursor, _num_missing(groups, plan), len(problems), stream)
        for index in indices:
            group = _OpenGroup(problems[index], len(groups), f"s{plan.step:06d}-{plan.stage}-{len(groups):04d}")
            groups[group.id] = group
        requests = [request for group in groups.values() for request in _requests(group, plan)]
        if requests:
            on_begin(len(requests))
            await roller.run(requests, plan.limits, plan.sampling, take_in)
        num_rounds += 1
        if num_rounds > plan.max_refills or not _lacks_something(groups, plan):
            break
    return Collected(
        groups=tuple(_decided(groups)),
        traces=tuple(trace for group in groups.values() for trace in group.traces),
        cursor=cursor,
        num_refills=num_rounds - 1,
        duration_s=time.monotonic() - started_s,
    )


def _decided(groups: Mapping[str, _OpenGroup]) -> list[Group]:
    return [group.decided for group in groups.values() if group.decided is not None]


def _num_missing(groups: Mapping[str, _OpenGroup], plan: StepPlan) -> int:
    return num_missing_groups(_decided(groups), plan.num_groups)


def _lacks_something(groups: Mapping[str, _OpenGroup], plan: StepPlan) -> bool:
    return _num_missing(groups, plan) > 0 or any(_num_lost(group, plan) for group in groups.values())


def _num_lost(group: _OpenGroup, plan: StepPlan) -> int:
    return num_missing_rollouts([trace.reward for trace in group.traces], plan.num_sampled)


def _requests(group: _OpenGroup, plan: StepPlan) -> list[RolloutRequest]:
    """What the group still needs: all of it at first, then what was lost."""
    requests = []
    for _ in range(_num_lost(group, plan)):
        number = group.num_attempts
        group.num_attempts += 1
        requests.append(
            RolloutRequest(
                problem=group.problem,
                trace_id=f"{group.id}-{number:03d}",
                group_id=group.id,
                sample_index=number,
                step=plan.step,
                stage=plan.stage,
                seed=named_seed(plan.seed, "rollout", plan.step, group.problem.id, group.index, number),
            )
        )
    return requests


def _decide(group: _OpenGroup, plan: StepPlan) -> Group:
    count = count_balanced_answer_blocks if plan.settings.mode is Mode.RELEASE else count_answer_blocks
    return decide_group(
        group.traces,
        [count(*trace.turn_texts) for trace in group.traces],
        plan.settings,
        np.random.default_rng(named_seed(plan.seed, "choice", plan.step, group.index)),
        group_id=group.id,
        step=plan.step,
    )
