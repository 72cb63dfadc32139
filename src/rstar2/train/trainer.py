"""The training loop. It reads as the recipe does: warm-up, then in each stage collect a step, learn from it, record it.

Invariant: everything between two checkpoints is a function of the first checkpoint and the recipe. So a run that is
killed at any moment and resumed goes through the same states, and on a CPU ends with the same weights, bit for bit, as
one that was never killed.

A run that is cancelled completes the optimizer steps it has begun, saves a checkpoint and ends. It loses nothing but
the rollouts that were being sampled.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

from rstar2.agent import ChatFormat
from rstar2.config import Recipe, StageSection
from rstar2.data import Curriculum, require_short_prompts
from rstar2.engine.process.child import collect_garbage_if_rare
from rstar2.errors import UserError
from rstar2.evals import EvalSettings, evaluate
from rstar2.records import Problem, RunDirectory, Trace
from rstar2.records.rewind import Mark
from rstar2.rollout.resume import ResumingRoller
from rstar2.train.checkpoints.checkpoint import Checkpoint, CheckpointFolder
from rstar2.train.checkpoints.export import agent_folder
from rstar2.train.checkpoints.resume import run_digest
from rstar2.train.collector import Collector, CollectSettings, StepBatch
from rstar2.train.curriculum.difficulty import hard_problems
from rstar2.train.learning.optimizer import warmup_factor
from rstar2.train.learning.sft import SftSettings, render_all
from rstar2.train.learning.update import UpdateSettings, kept_rollouts
from rstar2.train.reporting.metrics import (
    MAX_STEPS_WITHOUT_SIGNAL,
    WINDOW,
    collapse,
    no_signal,
    watch_rollouts,
    watch_schedule,
    window_mean,
)
from rstar2.train.reporting.observer import Observer
from rstar2.train.reporting.run_records import HOLD_S, RunRecords
from rstar2.train.seeds import named_seed
from rstar2.train.state import WARM_UP, TrainState
from rstar2.train.workbench import Workbench

INTERRUPT_S = 10.0
"""How long an interrupted run waits for rollouts that are sampled while it learns: otherwise the resumed run samples
some of them from another policy. Slurm and Kubernetes grant 30 s in all."""
PHASES = ("generate", "train", "sync")
SFT_STEPS_PER_REPORT = 10
SFT_CHECKPOINT_PERIOD_S = 120.0
"""Time between checkpoints of the warm-up. Its steps are short, so what a kill loses is bounded in time, not in
steps."""

Result = TypeVar("Result")


class Trainer:
    def __init__(
        self,
        recipe: Recipe,
        curriculum: Curriculum,
        chat: ChatFormat,
        bench: Workbench,
        run: RunDirectory,
        observer: Observer,
    ) -> None:
        self._recipe = recipe
        self._curriculum = curriculum
        self._chat = chat
        self._bench = bench
        self._learner = bench.learner
        self._layout = run.layout
        self._records = RunRecords(run, observer, hold_s=HOLD_S if bench.roller.is_here else 0.0)
        self._roller = ResumingRoller(bench.roller, lambda: bench.weights)
        self._checkpoints = CheckpointFolder(run.checkpoints, recipe.train.num_checkpoints_kept)
        self._state = self._saved_state = TrainState()
        self._mark: Mark | None = None
        """The lengths of the run's files at the current state; None while the weights are between two states."""

    async def train(self, checkpoint: Checkpoint | None = None, finished: Mapping[str, Trace] | None = None) -> None:
        """Trains from the checkpoint, or from the start, to the end of the recipe. `finished` are rollouts that ended
        after the checkpoint; the same weights do not sample them again."""
        with self._records:
            if checkpoint is not None:
                await self._load(checkpoint)
            self._roller.remember(finished or {}, self._state.older_weights)
            try:
                await self._train()
            except asyncio.CancelledError:
                await self._save_if_changed()
                raise

    async def _train(self) -> None:
        self._report_held_out()
        await self._check_prompts()
        await self._warm_up()
        if self._recipe.algo.kl_coef:
            await self._learner.hold_reference(self._layout.checkpoints / "reference")
        for stage in self._recipe.stages[self._state.stage_index :]:
            await self._evaluate_if_due()
            await self._run_stage(stage)
        if self._state.step and self._state.steps_without_signal == self._state.step:
            raise UserError(
                "no step of the run taught anything: in every group all rewards were equal. The warning at the first "
                "step says what is missing; start a new run with it"
            )
        await self._evaluate_if_due()

    async def export(self, source: Path) -> Path:
        """Writes the trained model as a Hugging Face folder, for `rstar2 solve --model` and other programs."""
        target = self._layout.path / "final"
        with agent_folder(target, source, self._chat, self._recipe.environment) as unfinished:
            await self._learner.export(unfinished)
        return target

    # The warm-up.

    async def _warm_up(self) -> None:
        sft = self._recipe.sft
        if sft is None or self._state.sft_is_done:
            return
        self._records.waits_for("the conversations to be tokenized")
        examples, num_long = render_all(self._curriculum.conversations, self._chat, sft.max_tokens)
        if num_long:
            self._records.say(
                f"{num_long} of {num_long + len(examples)} conversations are longer than sft.max_tokens: left out"
            )
        settings = SftSettings.of(self._recipe, self._bench.micro_batch_tokens)
        num_steps = settings.num_steps(len(examples))

        async def learn(step: int) -> None:
            started_s = time.monotonic()
            self._mark = None
            seed = named_seed(self._recipe.seed, "dropout", WARM_UP, step)
            values = await self._learner.warm_up_step(examples, step, settings, seed)
            values["tokens_per_s"] = values["num_tokens"] / (time.monotonic() - started_s)
            if step % SFT_STEPS_PER_REPORT == 0 or step == num_steps - 1:
                self._records.metrics(step, WARM_UP, values)
            self._enter_state(replace(self._state, sft_step=step + 1))

        self._records.phase(WARM_UP, num_steps, self._state.sft_step)
        saved_s = time.monotonic()
        async with self._bench.learning(0):
            for step in range(self._state.sft_step, num_steps):
                await uninterrupted(learn(step))
                if time.monotonic() - saved_s > SFT_CHECKPOINT_PERIOD_S:
                    await self._save()
                    saved_s = time.monotonic()
            await self._learner.reset_optimizer()
        self._enter_state(replace(self._state, sft_is_done=True, pending_evaluation=WARM_UP))
        await self._save(keep=True)

    # The stages.

    async def _run_stage(self, stage: StageSection) -> None:
        problems = await self._problems_of(stage)
        self._records.phase(stage.name, stage.steps, self._state.stage_step)
        if self._state.stage_step == 0 and stage.reset_optimizer:
            await self._learner.reset_optimizer()
            self._enter_state(replace(self._state, steps_since_reset=0))
        if not self._stage_is_done(stage):
            await self._run_steps(stage, problems)
        self._enter_state(replace(self._state.next_stage(), pending_evaluation=stage.name))
        await self._save(keep=True)

    async def _run_steps(self, stage: StageSection, problems: Sequence[Problem]) -> None:
        first, num_left = self._state.step + 1, stage.steps - self._state.stage_step
        collector = Collector(
            self._bench,
            self._roller,
            self._records,
            problems,
            CollectSettings.of(self._recipe, stage),
            cursor=self._state.cursor,
            steps=range(first, first + num_left),
            max_staleness=self._recipe.train.max_staleness,
        )
        async with collector:
            started_s = time.monotonic()
            self._records.waits_for("rollouts")
            async for batch in collector:
                self._records.waits_for("the update")
                values = await uninterrupted(
                    self._learn_step(batch, stage, collector, started_s),
                    lambda: asyncio.get_running_loop().call_later(INTERRUPT_S, collector.stop),
                )
                await self._stop_if_hopeless(stage, values)
                if self._stage_is_done(stage):
                    break
                every = self._recipe.eval.every_steps
                if every and self._state.step % every == 0:
                    self._enter_state(replace(self._state, pending_evaluation=stage.name))
                if self._state.step % self._recipe.train.checkpoint_every_steps == 0:
                    await self._save()
                await self._evaluate_if_due(then=stage)
                started_s = time.monotonic()
                self._records.waits_for("rollouts")

    def _stage_is_done(self, stage: StageSection) -> bool:
        if self._state.stage_step >= stage.steps:
            return True
        mean = window_mean(self._state.recent_rewards)
        return stage.target_reward is not None and mean is not None and mean >= stage.target_reward

    async def _learn_step(
        self, batch: StepBatch, stage: StageSection, collector: Collector, started_s: float
    ) -> dict[str, float]:
        """Goes from one batch to the next state, completely or not at all."""
        num_older = self._recipe.train.max_staleness
        older_weights = (*self._state.older_weights, self._bench.weights)[-num_older:] if num_older else ()
        self._mark = None
        values = await self._learn_from(batch)
        collector.sample_ahead()
        await self._records.settled()
        num_sampled = sum(trace.num_generated_tokens for trace in batch.traces)
        values |= {
            "num_refills": batch.num_refills,
            "generate_s": batch.duration_s,
            "step_s": time.monotonic() - started_s,
            "tokens_per_s": num_sampled / batch.duration_s,
            **watch_schedule(batch.schedule),
            **self._bench.gpu_use(),
        }
        values |= {f"{phase}_share": values[f"{phase}_s"] / values["step_s"] for phase in PHASES}
        self._records.metrics(batch.step, stage.name, values)
        self._enter_state(replace(self._advanced(batch, values), older_weights=older_weights))
        return values

    async def _learn_from(self, batch: StepBatch) -> dict[str, float]:
        """Does one update. Returns the metrics of the update and of the rollouts."""
        if not batch.trainable:
            return {**self._record_groups(batch), "train_s": 0.0, "sync_s": 0.0}
        train = self._recipe.train
        traces = {trace.id: trace for trace in batch.traces}
        groups = [kept_rollouts(group, traces) for group in batch.trainable]
        lr = train.lr * warmup_factor(self._state.steps_since_reset, train.warmup_steps)
        seed = named_seed(self._recipe.seed, "dropout", self._state.step)
        paused_s = time.monotonic()
        async with self._bench.learning(batch.step):
            began_s = time.monotonic()
            settings = UpdateSettings.of(self._recipe, self._bench.micro_batch_tokens)
            learnt = await self._learner.update(groups, settings, lr, seed)
            train_s = time.monotonic() - began_s
            # Groups are recorded now: the end of `learning` may wait for rollouts, and later rollouts would wait for
            # this process.
            seen = self._record_groups(batch)
            looked_s = time.monotonic()
        sync_s = began_s - paused_s + time.monotonic() - looked_s
        return {**seen, **learnt, "lr": lr, "train_s": train_s, "sync_s": sync_s}

    def _record_groups(self, batch: StepBatch) -> dict[str, float]:
        """Writes the groups. Returns the metrics of the rollouts."""
        self._records.write_groups(batch.groups)
        values = watch_rollouts(batch.traces, batch.groups)
        collect_garbage_if_rare()
        return values

    def _advanced(self, batch: StepBatch, values: Mapping[str, float]) -> TrainState:
        state = self._state
        recent = (*state.recent_rewards, values["reward_mean"])[-WINDOW:]
        return replace(
            state,
            step=batch.step,
            stage_step=state.stage_step + 1,
            steps_since_reset=state.steps_since_reset + bool(batch.trainable),
            cursor=batch.cursor,
            recent_rewards=recent,
            best_reward=max(state.best_reward, window_mean(recent) or 0.0),
            steps_without_signal=0 if batch.trainable else state.steps_without_signal + 1,
        )

    async def _stop_if_hopeless(self, stage: StageSection, values: dict[str, float]) -> None:
        state = self._state
        where = {"step": state.step, "stage": stage.name}
        if state.steps_without_signal == 1:
            why = f"step {state.step} of stage {stage.name} taught nothing: {no_signal(values)}"
            self._records.event("no_signal", why, where)
            self._records.say(f"warning: {why}. The run ends after {MAX_STEPS_WITHOUT_SIGNAL} such steps in a row")
        if state.steps_without_signal >= MAX_STEPS_WITHOUT_SIGNAL:
            await self._save()
            raise UserError(
                f"stage {stage.name}: the last {state.steps_without_signal} steps taught nothing: "
                f"{no_signal(values)}. What was learnt before is saved"
            )
        seen = collapse(values, state.recent_rewards, state.best_reward)
        if seen is not None and self._recipe.train.stop_at_collapse:
            await self._save()
            self._records.event("collapse", seen, where)
            raise UserError(
                f"the policy collapsed at step {state.step} of stage {stage.name}: {seen}. Resume from an earlier "
                "checkpoint with a lower train.lr, or set train.stop_at_collapse to false"
            )

    async def _problems_of(self, stage: StageSection) -> tuple[Problem, ...]:
        """The problems of the stage, without those that its difficulty filter drops."""
        problems = self._curriculum.stages[self._state.stage_index]
        if stage.difficulty_filter is None:
            return problems
        if self._state.problem_ids is None:
            self._records.phase(f"filter:{stage.name}", stage.difficulty_filter.num_samples * len(problems), 0)
            hard = await hard_problems(
                self._roller, problems, self._recipe, stage, self._state.step, self._records.keep_trace
            )
            await self._records.settled()
            message = (
                f"{len(hard)} of {len(problems)} problems are not solved {stage.difficulty_filter.drop_solved} of "
                f"{stage.difficulty_filter.num_samples} times: stage {stage.name} trains on them"
            )
            counts = {"stage": stage.name, "num_problems": len(problems), "num_left": len(hard)}
            self._records.event("difficulty_filter", message, counts)
            self._records.say(message)
            self._enter_state(replace(self._state, problem_ids=tuple(problem.id for problem in hard)))
        left = set(self._state.problem_ids or ())
        kept = tuple(problem for problem in problems if problem.id in left)
        if not kept:
            self._records.say(f"stage {stage.name} has nothing left to learn from: it is skipped")
            self._records.event("stage_skipped", f"stage {stage.name}: every problem is already solved")
            self._enter_state(replace(self._state, stage_step=stage.steps))
        return kept

    # Evaluation, records, checkpoints.

    async def _evaluate_if_due(self, then: StageSection | None = None) -> None:
        """`then` is the stage that continues afterwards."""
        stage = self._state.pending_evaluation
        if stage is None:
            return
        benchmarks = self._curriculum.benchmarks
        if benchmarks:
            name = f"eval:{stage}"
            self._records.phase(name, self._recipe.eval.num_samples * sum(map(len, benchmarks.values())), 0)
            results = await evaluate(
                self._roller,
                benchmarks,
                EvalSettings.of(self._recipe),
                step=self._state.step,
                stage=name,
                seed=self._recipe.seed,
                on_trace=self._records.keep_trace,
            )
            await self._records.settled()
            for benchmark, result in results.items():
                numbers = {key: float(value) for key, value in asdict(result).items() if isinstance(value, int | float)}
                self._records.metrics(self._state.step, f"{name}/{benchmark}", numbers)
            if then is not None:
                self._records.phase(then.name, then.steps, self._state.stage_step)
        self._enter_state(replace(self._state, pending_evaluation=None))

    def _report_held_out(self) -> None:
        for num, what in (
            (self._curriculum.num_held_out_conversations, "conversations of the warm-up"),
            (self._curriculum.num_held_out, "problems of the stages"),
        ):
            if num:
                self._records.say(f"{what} that are left out because they are evaluated on: {num}")

    async def _check_prompts(self) -> None:
        for problems in (*self._curriculum.stages, *self._curriculum.benchmarks.values()):
            lengths = await self._roller.num_prompt_tokens(problems)
            require_short_prompts(problems, lengths, self._recipe.rollout.max_prompt_tokens)

    def _enter_state(self, state: TrainState) -> None:
        """Enters a state whose weights the learner has, and whose records are all written."""
        self._state = state
        self._mark = self._records.mark(state.step)

    async def _save_if_changed(self) -> None:
        """Saves a checkpoint of an interrupted run, unless nothing changed or the weights are between two states."""
        if self._mark is None or self._state == self._saved_state:
            return
        await self._save()
        state = self._state
        is_warming_up = state.sft_step and not state.sft_is_done
        step = f"step {state.sft_step} of the warm-up" if is_warming_up else f"step {state.step}"
        self._records.say(f"interrupted: everything up to {step} is saved")

    async def _save(self, *, keep: bool = False) -> None:
        assert self._mark is not None, "between two states nothing is saved"
        self._records.sync()
        async with self._checkpoints.saving(self._state) as unfinished:
            await self._learner.save(unfinished)
            path = self._checkpoints.finish(
                unfinished,
                self._state,
                recipe_digest=run_digest(self._recipe, self._curriculum),
                mark=self._mark,
                keep=keep,
            )
        self._saved_state = self._state
        self._records.event("checkpoint", f"saved {path.name}", {"step": self._state.step, "path": path.name})

    async def _load(self, checkpoint: Checkpoint) -> None:
        async with self._bench.learning(checkpoint.state.step):
            await self._learner.load(checkpoint.path)
        self._enter_state(checkpoint.state)
        self._saved_state = checkpoint.state
        self._records.say(f"resumed at step {self._state.step} from {checkpoint.path.name}")


async def uninterrupted(work: Coroutine[Any, Any, Result], on_interrupt: Callable[[], object] = lambda: None) -> Result:
    """Runs the work to its end. If the caller is cancelled meanwhile, `on_interrupt` is called, and the cancellation is
    raised when the work is done."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        on_interrupt()
        await task
        raise
