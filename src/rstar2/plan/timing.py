"""How long each stage of a recipe takes, step by step and in all: generation simulated, updates by roofline."""

from collections.abc import Callable
from dataclasses import dataclass

from rstar2.config import Recipe, StageSection
from rstar2.plan.assumptions import Assumptions, MeanLength
from rstar2.plan.devices import Device
from rstar2.plan.generation import Batch, Generation, estimate
from rstar2.plan.layout import Layout
from rstar2.plan.rollouts import REPORT_EVAL_SHARE, mean_conversation_tokens, mean_length, workload_shape
from rstar2.plan.sizes import total_size
from rstar2.plan.training_time import sync_time, update_time
from rstar2.rollout.simulator import EngineModel
from rstar2.rollout.simulator.hardware import ModelShape


@dataclass(frozen=True, slots=True)
class StepTime:
    """Of one training step."""

    generate_s: float
    tools_s: float
    train_s: float
    sync_s: float
    overlap_s: float = 0.0
    """What generation and training do at the same time, where generation runs ahead."""

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
    """Sampled in each step."""
    num_calls: float
    """Of tools, in a step, on average over the stage."""
    num_simulated: int
    """Rollouts, of the first and of the last step together."""
    first: StepTime
    last: StepTime
    filter_s: float
    evaluation_s: float
    """Of all evaluations in the stage and after it."""

    @property
    def mean(self) -> StepTime:
        """Over the stage: lengths grow from the first step to the last."""
        first, last = self.first, self.last
        return StepTime(
            generate_s=(first.generate_s + last.generate_s) / 2,
            tools_s=(first.tools_s + last.tools_s) / 2,
            train_s=(first.train_s + last.train_s) / 2,
            sync_s=(first.sync_s + last.sync_s) / 2,
            overlap_s=(first.overlap_s + last.overlap_s) / 2,
        )

    @property
    def total_s(self) -> float:
        return self.num_steps * self.mean.total_s + self.filter_s + self.evaluation_s


@dataclass(frozen=True, slots=True)
class RunTime:
    warm_up_s: float
    """With the evaluation after it."""
    stages: tuple[StageTime, ...]
    left_out: tuple[str, ...]
    """What is not counted because nothing says how large it is, a sentence each."""

    @property
    def stages_s(self) -> float:
        return sum(stage.total_s for stage in self.stages)

    @property
    def total_s(self) -> float:
        return self.warm_up_s + self.stages_s


class Timer:
    """Times the parts of one recipe on one layout. Each distinct batch is simulated once."""

    def __init__(
        self,
        recipe: Recipe,
        layout: Layout,
        device: Device,
        shape: ModelShape,
        engine: EngineModel,
        assumptions: Assumptions,
        on_step: Callable[[str], None],
    ) -> None:
        self._recipe = recipe
        self._layout = layout
        self._device = device
        self._shape = shape
        self._engine = engine
        self._assumptions = assumptions
        self._on_step = on_step
        self._generations: dict[Batch, Generation] = {}
        self._left_out: list[str] = []

    def run(self) -> RunTime:
        warm_up_s = self._warm_up_s()
        stages = tuple(self._stage(stage, index) for index, stage in enumerate(self._recipe.stages))
        return RunTime(warm_up_s, stages, tuple(dict.fromkeys(self._left_out)))

    def _stage(self, stage: StageSection, index: int) -> StageTime:
        length = mean_length(stage, index, self._assumptions.mean_response_tokens)
        algo, num_prompts = self._recipe.algo, self._recipe.train.prompts_per_step
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
        kept_share = self._recipe.algo.group_size / self._recipe.algo.num_sampled
        num_kept = generation.num_rollouts * kept_share
        train_s = self._update_s(num_kept * generation.mean_context_tokens, num_kept * generation.mean_pairs)
        sync_s = sync_time(self._layout, self._device, self._shape, self._assumptions)
        overlap_s = min(generation.makespan_s, train_s) if self._layout.runs_ahead else 0.0
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
        """After the stage, and within it every so many steps of the run."""
        every = self._recipe.eval.every_steps
        if every is None:
            return 1
        before = sum(earlier.steps for earlier in self._recipe.stages[:index])
        return 1 + (before + stage.steps - 1) // every - before // every

    def _evaluation_s(self) -> float:
        settings = self._recipe.eval
        if not settings.benchmarks:
            return 0.0
        num_problems = self._known_size(settings.benchmarks, "the evaluation")
        if not num_problems:
            return 0.0
        mean = self._assumptions.mean_eval_tokens or REPORT_EVAL_SHARE * settings.max_response_tokens
        shape = workload_shape(self._recipe, self._assumptions, mean, settings.max_response_tokens, settings.max_turns)
        return self._estimated("an evaluation", Batch(shape, num_problems, settings.num_samples)).makespan_s

    def _warm_up_s(self) -> float:
        sft = self._recipe.sft
        if sft is None:
            return 0.0
        num_conversations = self._known_size(sft.data, "the warm-up")
        mean = mean_conversation_tokens(sft, self._assumptions)
        num_tokens = sft.epochs * num_conversations * mean
        return self._update_s(num_tokens, num_tokens * mean / 2) + self._evaluation_s()

    def _update_s(self, num_tokens: float, num_pairs: float) -> float:
        return update_time(
            num_tokens,
            num_pairs,
            recipe=self._recipe,
            layout=self._layout,
            device=self._device,
            shape=self._shape,
            assumptions=self._assumptions,
        ).train_s

    def _generation(
        self, what: str, stage: StageSection, mean_tokens: float, num_problems: int, num_samples: int
    ) -> Generation:
        shape = workload_shape(self._recipe, self._assumptions, mean_tokens, stage.max_response_tokens, stage.max_turns)
        return self._estimated(what, Batch(shape, num_problems, num_samples))

    def _estimated(self, what: str, batch: Batch) -> Generation:
        if batch not in self._generations:
            self._on_step(f"simulating {what}")
            self._generations[batch] = estimate(
                batch,
                self._recipe.rollout.scheduler,
                self._engine,
                self._layout.num_engines,
                self._assumptions.max_simulated_rollouts,
                self._assumptions.seed,
            )
        return self._generations[batch]

    def _known_size(self, names: tuple[str, ...], what: str) -> int:
        size, unknown = total_size(self._recipe, names, self._assumptions.num_problems)
        self._left_out += [
            f"{what} is counted without the set {name}, whose size is not known here; give --problems {name}=N"
            for name in unknown
        ]
        return size
