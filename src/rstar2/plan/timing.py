"""Computes how long each stage of a recipe takes, step by step and in total: generation is simulated, updates are
priced by roofline."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path

from rstar2.config import DataSet, Recipe, StageSection
from rstar2.data.catalog import CATALOG
from rstar2.plan.assumptions import Assumptions, MeanLength
from rstar2.plan.devices import Device
from rstar2.plan.generation import Generation, RolloutBatch, estimate
from rstar2.plan.layout import Layout
from rstar2.plan.rollout_lengths import (
    REPORT_EVAL_SHARE,
    mean_conversation_tokens,
    mean_length,
    mean_prompt_tokens,
    workload_shape,
)
from rstar2.plan.training_time import gpu_update_time, sync_time, update_time
from rstar2.rollout.simulator import EngineModel
from rstar2.rollout.simulator.hardware import ModelShape
from rstar2.train.learning.work import TokenWork
from rstar2.train.memory.division import Division


def set_size(recipe: Recipe, name: str, given: Mapping[str, int]) -> int | None:
    """The number of problems of a set of `[data]` or a benchmark; None if unknown."""
    if name in given:
        return given[name]
    if name not in recipe.data:
        return CATALOG[name].num_rows if name in CATALOG else None
    spec = recipe.data[name]
    sizes = [size for size in (spec.num_problems, _size_of_source(spec)) if size is not None]
    return min(sizes, default=None)


def total_size(recipe: Recipe, names: Sequence[str], given: Mapping[str, int]) -> tuple[int, tuple[str, ...]]:
    """The sum of the known sizes, and the names of the sets of unknown size."""
    sizes = {name: set_size(recipe, name, given) for name in names}
    unknown = tuple(name for name, size in sizes.items() if size is None)
    return sum(size for size in sizes.values() if size is not None), unknown


def _size_of_source(spec: DataSet) -> int | None:
    kind, _, rest = spec.source.partition(":")
    if kind == "catalog":
        return CATALOG[rest].num_rows if rest in CATALOG else None
    if kind == "file" and rest.endswith(".jsonl") and Path(rest).expanduser().is_file():
        with Path(rest).expanduser().open("rb") as lines:
            return sum(1 for line in lines if line.strip())
    return None


@dataclass(frozen=True, slots=True)
class StepTime:
    """The parts of the time of one training step."""

    generate_s: float
    tools_s: float
    train_s: float
    sync_s: float
    overlap_s: float = 0.0
    """Overlap of generation and training, if generation runs ahead."""

    @property
    def total_s(self) -> float:
        return self.generate_s + self.tools_s + self.train_s + self.sync_s - self.overlap_s


@dataclass(frozen=True, slots=True)
class StageTime:
    name: str
    num_steps: int
    mean_response: MeanLength
    max_response_tokens: int
    num_rollouts: int
    """Rollouts sampled in each step."""
    num_calls: float
    """Tool calls in a step, on average over the stage."""
    num_simulated: int
    """Simulated rollouts of the first and the last step together."""
    first: StepTime
    last: StepTime
    filter_s: float
    evaluation_s: float
    """The time of all evaluations in the stage and after it."""

    @property
    def mean(self) -> StepTime:
        """The mean step of the stage: lengths grow from the first step to the last."""
        first, last = astuple(self.first), astuple(self.last)
        return StepTime(*((at_first + at_last) / 2 for at_first, at_last in zip(first, last, strict=True)))

    @property
    def total_s(self) -> float:
        return self.num_steps * self.mean.total_s + self.filter_s + self.evaluation_s


@dataclass(frozen=True, slots=True)
class RunTime:
    warm_up_s: float
    """The time of the warm-up and the evaluation after it."""
    stages: tuple[StageTime, ...]
    left_out: tuple[str, ...]
    """Sentences on what is not counted because its size is unknown."""

    @property
    def stages_s(self) -> float:
        return sum(stage.total_s for stage in self.stages)

    @property
    def total_s(self) -> float:
        return self.warm_up_s + self.stages_s


@dataclass
class Timer:
    """Times the parts of one recipe on one layout. Each distinct batch is simulated once."""

    recipe: Recipe
    layout: Layout
    device: Device
    shape: ModelShape
    engine: EngineModel
    assumptions: Assumptions
    on_step: Callable[[str], None]
    division: Division | None = None
    """How the single GPU that trains and generates is divided; None on a CPU and on a cluster."""
    _generations: dict[RolloutBatch, Generation] = field(default_factory=dict, init=False)
    _left_out: list[str] = field(default_factory=list, init=False)

    def run(self) -> RunTime:
        warm_up_s = self._warm_up_s()
        stages = tuple(self._stage(stage, index) for index, stage in enumerate(self.recipe.stages))
        return RunTime(warm_up_s, stages, tuple(dict.fromkeys(self._left_out)))

    def _stage(self, stage: StageSection, index: int) -> StageTime:
        length = mean_length(stage, index, self.assumptions.mean_response_tokens)
        algo, num_prompts = self.recipe.algo, self.recipe.train.prompts_per_step
        generations = [
            self._generation(f"stage {stage.name}, {which} step", stage, mean, num_prompts, algo.num_sampled)
            for which, mean in (("first", length.first), ("last", length.last))
        ]
        first, last = (self._step(generation) for generation in generations)
        return StageTime(
            name=stage.name,
            num_steps=stage.steps,
            mean_response=length,
            max_response_tokens=stage.max_response_tokens,
            num_rollouts=num_prompts * algo.num_sampled,
            num_calls=sum(generation.num_calls for generation in generations) / 2,
            num_simulated=sum(generation.num_simulated for generation in generations),
            first=first,
            last=last,
            filter_s=self._filter_s(stage, length),
            evaluation_s=self._num_evaluations(stage, index) * self._evaluation_s(),
        )

    def _step(self, generation: Generation) -> StepTime:
        kept_share = self.recipe.algo.group_size / self.recipe.algo.num_sampled
        num_kept = generation.num_rollouts * kept_share
        train_s = self._step_update_s(generation, num_kept)
        sync_s = sync_time(self.layout, self.device, self.shape, self.assumptions)
        overlap_s = min(generation.makespan_s, train_s) if self.layout.runs_ahead else 0.0
        return StepTime(generation.generate_s, generation.tools_s, train_s, sync_s, overlap_s)

    def _filter_s(self, stage: StageSection, length: MeanLength) -> float:
        wanted = stage.difficulty_filter
        if wanted is None:
            return 0.0
        num_problems = self._known_size(stage.data, f"the difficulty filter of stage {stage.name}")
        if not num_problems:
            return 0.0
        what = f"stage {stage.name}, difficulty filter"
        return self._generation(what, stage, length.first, num_problems, wanted.num_samples).makespan_s

    def _num_evaluations(self, stage: StageSection, index: int) -> int:
        """How many evaluations the stage has: one after it, and one after every N steps of the run within it."""
        every = self.recipe.eval.every_steps
        if every is None:
            return 1
        before = sum(earlier.steps for earlier in self.recipe.stages[:index])
        return 1 + (before + stage.steps - 1) // every - before // every

    def _evaluation_s(self) -> float:
        settings = self.recipe.eval
        if not settings.benchmarks:
            return 0.0
        num_problems = self._known_size(settings.benchmarks, "the evaluation")
        if not num_problems:
            return 0.0
        mean = self.assumptions.mean_eval_tokens or REPORT_EVAL_SHARE * settings.max_response_tokens
        shape = workload_shape(self.recipe, self.assumptions, mean, settings.max_response_tokens, settings.max_turns)
        return self._estimated("an evaluation", RolloutBatch(shape, num_problems, settings.num_samples)).makespan_s

    def _warm_up_s(self) -> float:
        sft = self.recipe.sft
        if sft is None:
            return 0.0
        num_conversations = self._known_size(sft.data, "the warm-up")
        mean = mean_conversation_tokens(sft, self.assumptions)
        num_tokens = sft.epochs * num_conversations * mean
        return self._update_s(num_tokens, num_tokens * mean / 2) + self._evaluation_s()

    def _step_update_s(self, generation: Generation, num_kept: float) -> float:
        """Seconds of an update on the kept rollouts. On one GPU the prompt of a group is computed once in each
        micro-batch that it is in."""
        if self.division is None:
            return self._update_s(num_kept * generation.mean_context_tokens, num_kept * generation.mean_pairs)
        num_groups, prompt = self.recipe.train.prompts_per_step, mean_prompt_tokens(self.recipe, self.assumptions)
        own = generation.mean_context_tokens - prompt
        num_prompts = num_groups * -(-(prompt + num_kept / num_groups * own) // self.division.micro_batch_tokens)
        return self._gpu_update_s(
            TokenWork(
                num_trained=int(num_kept * generation.mean_context_tokens),
                num_computed=int(num_prompts * prompt + num_kept * own),
                num_learnt=int(num_kept * own),
                num_pairs=num_kept * generation.mean_pairs - (num_kept - num_prompts) * prompt**2 / 2,
            )
        )

    def _gpu_update_s(self, work: TokenWork) -> float:
        assert self.division is not None
        activations = self.division.need.activations
        return gpu_update_time(work, self.recipe, self.device, activations, self.assumptions.mfu).train_s

    def _update_s(self, num_tokens: float, num_pairs: float) -> float:
        if self.division is not None:
            num = int(num_tokens)
            return self._gpu_update_s(TokenWork(num, num, num, num_pairs))
        update = update_time(num_tokens, num_pairs, self.recipe, self.layout, self.device, self.shape, self.assumptions)
        return update.train_s

    def _generation(
        self, what: str, stage: StageSection, mean_tokens: float, num_problems: int, num_samples: int
    ) -> Generation:
        shape = workload_shape(self.recipe, self.assumptions, mean_tokens, stage.max_response_tokens, stage.max_turns)
        return self._estimated(what, RolloutBatch(shape, num_problems, num_samples))

    def _estimated(self, what: str, batch: RolloutBatch) -> Generation:
        if batch not in self._generations:
            self.on_step(f"simulating {what}")
            policy, num_engines = self.recipe.rollout.scheduler, self.layout.num_engines
            max_rollouts, seed = self.assumptions.max_simulated_rollouts, self.assumptions.seed
            self._generations[batch] = estimate(batch, policy, self.engine, num_engines, max_rollouts, seed)
        return self._generations[batch]

    def _known_size(self, names: tuple[str, ...], what: str) -> int:
        size, unknown = total_size(self.recipe, names, self.assumptions.num_problems)
        self._left_out += [
            f"{what} is counted without the set {name}, whose size is not known here; give --problems {name}=N"
            for name in unknown
        ]
        return size
