"""Collects a stage's rollouts step by step: samples, judges and groups them, selects from each group, and refills until
the batch is full.

Invariant: a group is complete or absent; the problems of a step come from the cursor in order, replacements for dropped
groups included; a rollout lost to an infrastructure fault is sampled again, under a new id. Ids name the stage: a step
that was sampled ahead of a stage's end is dropped, and the next stage collects it again.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Self

import numpy as np

from rstar2.agent import AgentLimits
from rstar2.algo import RocSettings, decide_group, is_trainable, num_missing_groups, num_missing_rollouts
from rstar2.config import Recipe, StageSection
from rstar2.engine import Sampling
from rstar2.grading import count_answer_blocks, count_balanced_answer_blocks
from rstar2.records import Group, Outcome, Problem, StepRecord, Trace
from rstar2.rollout.request import RolloutRequest, Rolls, RollsInSteps
from rstar2.rollout.trees import TreeSettings
from rstar2.settings import pick
from rstar2.train.reporting.run_records import RunRecords
from rstar2.train.seeds import Cursor, named_seed, take
from rstar2.train.workbench import Workbench


@dataclass(frozen=True, slots=True)
class CollectSettings:
    """What every step of a stage samples, and how it selects rollouts."""

    stage: str
    seed: int
    prompts_per_step: int
    num_sampled: int
    """How many rollouts of one problem are sampled."""
    max_refills: int
    roc: RocSettings
    limits: AgentLimits
    sampling: Sampling
    tree: TreeSettings | None = None

    @classmethod
    def of(cls, recipe: Recipe, stage: StageSection) -> Self:
        return pick(
            cls,
            recipe.train,
            recipe.algo,
            stage=stage.name,
            seed=recipe.seed,
            roc=RocSettings.of(recipe),
            limits=AgentLimits.of(recipe, stage),
            sampling=Sampling.of(recipe),
            tree=TreeSettings.of(recipe),
        )


@dataclass(frozen=True, slots=True)
class StepBatch:
    """What one training step learns from."""

    step: int
    groups: tuple[Group, ...]
    traces: tuple[Trace, ...]
    """All rollouts of the step, including those that were not kept."""
    cursor: Cursor
    num_refills: int
    duration_s: float
    schedule: StepRecord | None = None
    """The record of what engines and rollouts did during the step."""

    @property
    def trainable(self) -> tuple[Group, ...]:
        return tuple(group for group in self.groups if is_trainable(group))


class Collector:
    """An async iterator over the steps of a stage, which samples ahead as far as `max_staleness` allows. Used as a
    context: rollouts sampled too far ahead are cancelled at its end.

    Invariant: step s is sampled only after steps up to s - 1 - `max_staleness` were learnt from, and steps are sampled
    in sequence, so their problems are those of an on-policy run.
    """

    def __init__(
        self,
        bench: Workbench,
        roller: RollsInSteps,
        records: RunRecords,
        problems: Sequence[Problem],
        settings: CollectSettings,
        *,
        cursor: Cursor,
        steps: range,
        max_staleness: int,
    ) -> None:
        self._bench = bench
        self._roller = roller
        self._records = records
        self._problems = problems
        self._settings = settings
        self._cursor = cursor
        self._steps = iter(steps)
        self._max_staleness = max_staleness
        self._newest: asyncio.Task[StepBatch] | None = None
        self._begun: deque[asyncio.Task[StepBatch]] = deque()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.stop()
        await asyncio.gather(*self._begun, return_exceptions=True)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StepBatch:
        """The next step's rollouts. Asking for them tells the collector that all earlier batches were learnt from."""
        self._begin()
        if not self._begun:
            raise StopAsyncIteration
        batch = await self._begun[0]
        self._begun.popleft()
        return batch

    def sample_ahead(self) -> None:
        """Tells the collector that all batches so far were learnt from, so sampling need not wait until the next is
        asked for."""
        if self._max_staleness:
            self._begin()

    def stop(self) -> None:
        """Sample nothing more."""
        self._steps = iter(range(0))
        for task in self._begun:
            task.cancel()

    def _begin(self) -> None:
        while len(self._begun) < 1 + self._max_staleness and (step := next(self._steps, None)) is not None:
            self._newest = asyncio.create_task(self._after(self._newest, step))
            self._begun.append(self._newest)

    async def _after(self, previous: "asyncio.Task[StepBatch] | None", step: int) -> StepBatch:
        return await self._sample(step, self._cursor if previous is None else (await previous).cursor)

    async def _sample(self, step: int, cursor: Cursor) -> StepBatch:
        async with self._bench.collecting():
            self._roller.begin_step(step)
            batch = await collect_step(
                self._roller,
                self._problems,
                cursor,
                step,
                self._settings,
                self._records.keep_trace,
                self._records.rollouts_begun,
            )
            self._records.begin_writing()
            schedule = await self._roller.end_step()
        self._records.write_schedule(schedule)
        return replace(batch, schedule=schedule)


@dataclass(slots=True)
class _OpenGroup:
    problem: Problem
    index: int
    """The index of the problem among those of the step."""
    id: str
    traces: list[Trace] = field(default_factory=list)
    num_attempts: int = 0
    decided: Group | None = None


async def collect_step(
    roller: Rolls,
    problems: Sequence[Problem],
    cursor: Cursor,
    step: int,
    settings: CollectSettings,
    on_trace: Callable[[Trace], None],
    on_begin: Callable[[int], None] = lambda _: None,
) -> StepBatch:
    """Collects one step. A group is decided as soon as its last rollout ends, while others are still being sampled.
    `on_begin` gets the number of rollouts begun in each round."""
    started_s = time.monotonic()
    stream = f"{settings.seed}/{settings.stage}"
    groups: dict[str, _OpenGroup] = {}

    def take_in(trace: Trace) -> None:
        on_trace(trace)
        group = groups[trace.group_id]
        group.traces.append(trace)
        if len(group.traces) == group.num_attempts:
            group.traces.sort(key=lambda trace: trace.sample_index)
            group.decided = _decide(group, step, settings)

    num_rounds = 0
    while True:
        indices, cursor = take(cursor, _num_missing(groups, settings), len(problems), stream)
        for index in indices:
            group = _OpenGroup(problems[index], len(groups), f"s{step:06d}-{settings.stage}-{len(groups):04d}")
            groups[group.id] = group
        requests = [request for group in groups.values() for request in _requests(group, step, settings)]
        if requests:
            on_begin(len(requests))
            await roller.run(requests, settings.limits, settings.sampling, take_in)
        num_rounds += 1
        num_lost = sum(_num_lost(group, settings) for group in groups.values())
        if num_rounds > settings.max_refills or not (num_lost or _num_missing(groups, settings)):
            break
    return StepBatch(
        step=step,
        groups=tuple(_decided(groups)),
        traces=tuple(trace for group in groups.values() for trace in group.traces),
        cursor=cursor,
        num_refills=num_rounds - 1,
        duration_s=time.monotonic() - started_s,
    )


def _decided(groups: Mapping[str, _OpenGroup]) -> list[Group]:
    return [group.decided for group in groups.values() if group.decided is not None]


def _num_missing(groups: Mapping[str, _OpenGroup], settings: CollectSettings) -> int:
    return num_missing_groups(_decided(groups), settings.prompts_per_step)


def _num_lost(group: _OpenGroup, settings: CollectSettings) -> int:
    num_beyond_budget = sum(trace.outcome is Outcome.BEYOND_BUDGET for trace in group.traces)
    return num_missing_rollouts([trace.reward for trace in group.traces], settings.num_sampled - num_beyond_budget)


def _requests(group: _OpenGroup, step: int, settings: CollectSettings) -> list[RolloutRequest]:
    """The rollouts that the group still needs: all of them at first, then replacements for lost ones."""
    requests = []
    for _ in range(_num_lost(group, settings)):
        number = group.num_attempts
        group.num_attempts += 1
        requests.append(
            RolloutRequest(
                problem=group.problem,
                trace_id=f"{group.id}-{number:03d}",
                group_id=group.id,
                sample_index=number,
                step=step,
                stage=settings.stage,
                seed=named_seed(settings.seed, "rollout", step, group.problem.id, group.index, number),
                tree=settings.tree,
            )
        )
    return requests


def _decide(group: _OpenGroup, step: int, settings: CollectSettings) -> Group:
    count = count_balanced_answer_blocks if settings.roc.rule.balanced_blocks else count_answer_blocks
    return decide_group(
        group.traces,
        [count(*trace.turn_texts) for trace in group.traces],
        settings.roc,
        np.random.default_rng(named_seed(settings.seed, "choice", step, group.index)),
        group_id=group.id,
        step=step,
    )
