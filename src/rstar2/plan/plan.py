"""Makes the plan of a recipe: memory by part, what fits, what the cache holds, how long it all takes."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from rstar2.config import Recipe
from rstar2.engine.embedded.weights import SUPPORTED_ARCHITECTURES
from rstar2.errors import UserError
from rstar2.plan.activations import ActivationMeter
from rstar2.plan.advice import MAX_MICRO_BATCH_TOKENS, MicroBatch, sentences
from rstar2.plan.assumptions import Assumptions
from rstar2.plan.devices import Device
from rstar2.plan.generation import engine_model
from rstar2.plan.layout import Layout, Sharing, find_layout
from rstar2.plan.memory import (
    EngineMemory,
    Phase,
    RankMemory,
    TrainerBytes,
    divided_engine,
    divided_trainer,
    engine_memory,
    generate_phase,
    train_phase,
    trainer_bytes,
)
from rstar2.plan.meta_model import ModelPlan
from rstar2.plan.model_config import find_config
from rstar2.plan.shards import Shards, shard, unsharded
from rstar2.plan.timing import RunTime, Timer
from rstar2.rollout.simulator import EngineModel
from rstar2.rollout.simulator.hardware import ModelShape
from rstar2.train.memory.activations import ActivationBytes
from rstar2.train.memory.division import (
    MICRO_BATCH_UNIT,
    Division,
    divide,
    largest,
    longest_rollout,
    longest_sequence,
)
from rstar2.train.memory.need import GpuNeed
from rstar2.train.policy.policy import is_checkpointed
from rstar2.train.workbench import MAX_WORKERS, MICRO_BATCH_TOKENS

# The report's own run, to compare a plan with: Qwen3-14B-Base on 64 MI300X, 510 steps in one week.
REPORT_MODELS = ("Qwen/Qwen3-14B-Base", "qwen3-14b-base")
REPORT_DEVICES = 64
REPORT_STEPS = 510
REPORT_DAYS = 7.0
REPORT_SET_SIZES = {"function_calls": 165_000, "instructions": 30_000, "chat": 27_000, "rl": 42_000}
"""Sizes of the data sets that the report's recipe names, whose files the user prepares."""


@dataclass(frozen=True, slots=True)
class WeekComparison:
    planned_days: float
    """The days of all stages with their filters and evaluations; the warm-up is not part of the report's week."""
    report_days: float = REPORT_DAYS

    @property
    def ratio(self) -> float:
        return self.planned_days / self.report_days


def is_report_run(recipe: Recipe, layout: Layout, device: Device) -> bool:
    return (
        recipe.model.name in REPORT_MODELS
        and layout.num_devices == REPORT_DEVICES
        and device.name == "mi300x"
        and sum(stage.steps for stage in recipe.stages) == REPORT_STEPS
    )


@dataclass(frozen=True, slots=True)
class RecipePlan:
    recipe: Recipe
    device: Device
    layout: Layout
    shape: ModelShape
    config_origin: str
    num_params: int
    shards: tuple[Shards, ...]
    """The shards of the first and of the last rank."""
    ranks: tuple[RankMemory, ...]
    engine: EngineMemory
    division: Division | None
    """How `rstar2 train` divides a GPU that it shares with its engine; None on a CPU and on a cluster."""
    micro_batch: MicroBatch
    assumptions: Assumptions
    run_time: RunTime | None
    """The times of the run; None if the cache cannot hold a single rollout of full length, so nothing can be
    simulated."""
    week: WeekComparison | None
    """The comparison with the report, only for the report's own run."""
    problems: tuple[str, ...]

    @property
    def fits(self) -> bool:
        return not self.problems

    @property
    def device_hours(self) -> float:
        return 0.0 if self.run_time is None else self.run_time.total_s / 3600 * self.layout.num_devices


def make_plan(
    recipe: Recipe,
    device: Device,
    assumptions: Assumptions,
    *,
    measured_engine: EngineModel | None = None,
    on_step: Callable[[str], None] = lambda _: None,
) -> RecipePlan:
    """Makes a plan. `measured_engine` has the speeds of a measured engine, to use instead of the device's roofline."""
    if not recipe.trains:
        raise UserError("the recipe has neither [sft] nor [[stages]], so there is nothing to plan")
    found = find_config(recipe)
    model = ModelPlan.of(recipe, found.values, is_on_gpu=device.is_gpu)
    layout = find_layout(recipe, device)
    if is_report_run(recipe, layout, device):
        assumptions = replace(assumptions, num_problems={**REPORT_SET_SIZES, **assumptions.num_problems})
    shape = model.shape()
    capacity_bytes = _capacity_bytes(layout, device, assumptions)
    division = _division(recipe, model, layout, device, capacity_bytes)
    recipe = _settled(recipe, division)
    model = replace(model, is_checkpointed=is_checkpointed(recipe))
    engine = engine_memory(recipe, layout, device, shape) if division is None else divided_engine(division)
    last = layout.num_ranks - 1
    shards = tuple(_shard(model, layout, rank, on_step) for rank in dict.fromkeys((0, last)))
    budget = _Budget(recipe, model, _meter(model, division), layout, capacity_bytes, engine, division)
    on_step("measuring activations on the meta device")
    ranks = budget.ranks(shards)
    micro_batch = _micro_batch(recipe, budget, shards[0], on_step)
    if division is None:
        problems = tuple(sentences(recipe, layout, ranks, engine, micro_batch))
    else:
        problems = () if division.problem is None else (division.problem,)
    run_time = None
    if engine.num_cache_tokens >= longest_rollout(recipe):
        speeds = measured_engine or engine_model(recipe, device, shape)
        speeds = replace(speeds, num_cache_tokens=engine.num_cache_tokens)
        run_time = Timer(recipe, layout, device, shape, speeds, assumptions, on_step, division).run()
    is_week = run_time is not None and is_report_run(recipe, layout, device)
    return RecipePlan(
        recipe=recipe,
        device=device,
        layout=layout,
        shape=shape,
        config_origin=found.origin,
        num_params=int(shape.weight_bytes / shape.bytes_per_value),
        shards=shards,
        ranks=ranks,
        engine=engine,
        division=division,
        micro_batch=micro_batch,
        assumptions=assumptions,
        run_time=run_time,
        week=WeekComparison(run_time.stages_s / 86_400) if run_time is not None and is_week else None,
        problems=problems,
    )


def _shard(model: ModelPlan, layout: Layout, rank: int, on_step: Callable[[str], None]) -> Shards:
    if not layout.is_sharded:
        return unsharded(model)
    on_step(f"sharding the model as rank {rank} of {layout.num_ranks}")
    return shard(model, layout, rank)


def _capacity_bytes(layout: Layout, device: Device, assumptions: Assumptions) -> int:
    """The memory of one device. The ranks of a machine without GPUs share its memory."""
    num_sharing = 1
    if not device.is_gpu:
        num_engines_per_node = -(-layout.num_engines // layout.num_nodes)
        num_sharing = max(layout.ranks_per_node, num_engines_per_node)
    return int(device.memory_bytes / num_sharing * (1 - assumptions.memory_margin))


def _division(recipe: Recipe, model: ModelPlan, layout: Layout, device: Device, capacity_bytes: int) -> Division | None:
    if layout.is_sharded or not device.is_gpu or model.config.model_type not in SUPPORTED_ARCHITECTURES:
        return None
    num_workers = MAX_WORKERS if recipe.rollout.num_workers is None else max(1, recipe.rollout.num_workers)
    need = GpuNeed.of(recipe, model.config, model.dtype.itemsize)
    return divide(recipe, need, capacity_bytes, device.memory_bytes, num_workers)


def _settled(recipe: Recipe, division: Division | None) -> Recipe:
    """The recipe with the values that the run itself chooses."""
    if division is not None:
        return division.settle(recipe)
    chosen = {"micro_batch_tokens": recipe.train.micro_batch_tokens or MICRO_BATCH_TOKENS}
    return recipe.model_copy(update={"train": recipe.train.model_copy(update=chosen)})


class _Meter(Protocol):
    def measure(self, num_tokens: int) -> ActivationBytes: ...


def _meter(model: ModelPlan, division: Division | None) -> _Meter:
    if division is None:
        return ActivationMeter(model)
    return replace(division.need.activations, is_checkpointed=model.is_checkpointed)


@dataclass(frozen=True, slots=True)
class _Budget:
    """Computes the memory of ranks for any size of micro-batch."""

    recipe: Recipe
    model: ModelPlan
    meter: _Meter
    layout: Layout
    capacity_bytes: int
    engine: EngineMemory
    division: Division | None

    def trainer(self, shards: Shards) -> TrainerBytes:
        if self.division is not None:
            return divided_trainer(self.division.need)
        return trainer_bytes(
            shards,
            self.layout,
            self.model.dtype.itemsize,
            has_reference=self.recipe.algo.kl_coef > 0,
            has_merged_copy=self.recipe.model.lora is not None and self.recipe.train.max_staleness > 0,
        )

    def train_phase(self, shards: Shards, num_tokens: int) -> Phase:
        activations = self.meter.measure(num_tokens)
        return train_phase(self.trainer(shards), activations, self.engine, self.layout)

    def ranks(self, all_shards: tuple[Shards, ...]) -> tuple[RankMemory, ...]:
        is_apart = self.layout.sharing is Sharing.APART
        ranks = []
        for shards in all_shards:
            phases = [self.train_phase(shards, _micro_batch_tokens(self.recipe))]
            if not is_apart:
                phases.append(generate_phase(self.trainer(shards), self.engine))
            host_bytes = self.trainer(shards).on_host
            ranks.append(RankMemory(f"rank {shards.rank}", tuple(phases), self.capacity_bytes, host_bytes))
        if is_apart:
            ranks.append(RankMemory("engine", (generate_phase(None, self.engine),), self.capacity_bytes))
        return tuple(ranks)

    def largest_micro_batch(self, shards: Shards) -> int | None:
        def fits(num_tokens: int) -> bool:
            return self.train_phase(shards, num_tokens).total_bytes <= self.capacity_bytes

        return largest(fits, MICRO_BATCH_UNIT, MAX_MICRO_BATCH_TOKENS)


def _micro_batch(recipe: Recipe, budget: _Budget, shards: Shards, on_step: Callable[[str], None]) -> MicroBatch:
    on_step("finding the largest micro-batch that fits")
    checkpointed = None
    if not budget.model.is_checkpointed:
        meter = _meter(replace(budget.model, is_checkpointed=True), budget.division)
        checkpointed = replace(budget, meter=meter).largest_micro_batch(shards)
    num_largest = budget.largest_micro_batch(shards)
    return MicroBatch(_micro_batch_tokens(recipe), longest_sequence(recipe), num_largest, checkpointed)


def _micro_batch_tokens(recipe: Recipe) -> int:
    assert recipe.train.micro_batch_tokens is not None, "the recipe is settled"
    return recipe.train.micro_batch_tokens
