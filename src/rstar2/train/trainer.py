"""The whole run: warm-up, stages, evaluations, checkpoints. Its loop reads as the recipe does.

Invariant: between two checkpoints everything is a function of the first of them and of the recipe. So a run that is
killed at any moment and taken up again goes through the same states, and on a CPU ends with the same weights, bit for
bit, as one that was never killed.

One that is interrupted, by a cancellation, ends what would leave the weights between two states, saves a checkpoint and
goes. So nothing of it is lost but the rollouts that were under way.
"""

import asyncio
import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from rstar2.agent import ChatFormat
from rstar2.algo import LossSettings, Mode, RocSettings
from rstar2.algo.penalties import Penalty
from rstar2.config import Recipe, Stage
from rstar2.config.emit import to_toml
from rstar2.engine import Sampling
from rstar2.engine.process.garbage_collection import look_for_cycles_if_rare
from rstar2.errors import UserError
from rstar2.evals import Protocol, evaluate
from rstar2.records import Problem, RunDirectory, Trace
from rstar2.records.rewind import Mark, mark, rewind
from rstar2.records.run_layout import RunLayout
from rstar2.rollout.resume import RememberingRoller
from rstar2.rollout.setup import agent_limits
from rstar2.train.ahead import Ahead
from rstar2.train.checkpoints.checkpoint import Checkpoint, CheckpointFolder
from rstar2.train.checkpoints.export import agent_folder
from rstar2.train.collect import Collected, StepPlan, collect_step
from rstar2.train.curriculum.curriculum import Curriculum, require_short_prompts
from rstar2.train.curriculum.difficulty import hard_problems
from rstar2.train.cursor import Cursor
from rstar2.train.learning.optimizer import warmup_factor
from rstar2.train.learning.sft import SftSettings, render_all
from rstar2.train.learning.sft_examples import Example
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
from rstar2.train.reporting.trace_writer import HOLD_S, TraceKeeper
from rstar2.train.seeds import named_seed
from rstar2.train.state import WARM_UP, TrainState
from rstar2.train.uninterrupted import uninterrupted
from rstar2.train.workbench import Workbench

INTERRUPT_S = 10.0
"""How long an interrupted run waits for rollouts that are sampled while it learns: without them the next step has some
of another policy. Slurm and Kubernetes grant 30 s in all."""
SFT_STEPS_PER_REPORT = 10
SFT_CHECKPOINT_PERIOD_S = 120.0
"""Steps of the warm-up are short and their number says little: what a kill may cost is told in time."""


def run_digest(recipe: Recipe, curriculum: Curriculum) -> str:
    """What a checkpoint belongs to: the recipe, and the problems that it named when the run was started."""
    digest = hashlib.sha256(to_toml(recipe).encode())
    for problems in (*curriculum.stages, *curriculum.benchmarks.values()):
        for problem in problems:
            digest.update(f"{problem.id}\0{problem.problem}\0{problem.answer}\0".encode())
    return digest.hexdigest()


def find_checkpoint(run: Path, recipe: Recipe, curriculum: Curriculum) -> Checkpoint | None:
    """The newest checkpoint of a run. UserError if it was made by another recipe, or from other data."""
    found = CheckpointFolder(RunLayout(run).checkpoints, recipe.train.num_checkpoints_kept).latest()
    if found is not None and found.recipe_digest != run_digest(recipe, curriculum):
        raise UserError(
            f"{found.path} was made by another recipe than {run / 'recipe.toml'}, or its data have changed: resume "
            "with what the run was started with, or start a new run"
        )
    return found


def rewind_to(run: Path, checkpoint: Checkpoint | None) -> int:
    """Take the run's records back to the checkpoint, or to the start; the number of files that were changed."""
    layout = RunLayout(run)
    if checkpoint is None:
        return rewind(layout, -1, {"metrics.jsonl": 0})
    return rewind(layout, checkpoint.state.step, checkpoint.mark)


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
        self._run = run
        self._observer = observer
        self._checkpoints = CheckpointFolder(run.checkpoints, recipe.train.num_checkpoints_kept)
        self._state = self._saved_state = TrainState()
        self._mark: Mark | None = None
        """Of the state; None while the weights are on their way to another."""
        self._roller = RememberingRoller(bench.roller, lambda: bench.weights)
        self._traces = TraceKeeper(run.write_trace, HOLD_S if bench.roller.is_here else 0.0)

    async def train(self, checkpoint: Checkpoint | None = None, finished: Mapping[str, Trace] | None = None) -> None:
        """From the checkpoint, or from the start, to the end of the recipe. Rollouts that had finished after the
        checkpoint are not rolled out again by the same weights."""
        with self._traces:
            if checkpoint is not None:
                await self._load(checkpoint)
            self._roller.remember(finished or {}, self._state.older_weights)
            try:
                await self._train()
            except asyncio.CancelledError:
                await self._save_what_is_done()
                raise

    async def _train(self) -> None:
        self._say_what_is_held_out()
        self._check_prompts()
        await self._warm_up()
        if self._recipe.algo.kl_coef:
            await self._learner.hold_reference(self._run.checkpoints / "reference")
        while self._state.stage_index < len(self._recipe.stages):
            await self._run_stage(self._recipe.stages[self._state.stage_index])
        if self._state.step and self._state.steps_without_signal == self._state.step:
            raise UserError(
                "no step of the run taught anything: in every group all rewards were equal. The warning at the first "
                "step says what is missing; start a new run with it"
            )
        await self._evaluate_if_due()

    async def export(self, source: Path) -> Path:
        """The trained model as a folder that `rstar2 solve --model` and everybody else can read."""
        target = self._run.layout.path / "final"
        with agent_folder(target, source, self._chat, self._recipe.agent.tool) as unfinished:
            await self._learner.export(unfinished)
        return target

    # The warm-up.

    async def _warm_up(self) -> None:
        sft = self._recipe.sft
        if sft is None or self._state.sft_is_done:
            await self._evaluate_if_due()
            return
        examples, num_long = render_all(self._curriculum.conversations, self._chat, sft.max_tokens)
        if num_long:
            self._say(
                f"{num_long} of {num_long + len(examples)} conversations are longer than sft.max_tokens: left out"
            )
        settings = SftSettings(
            epochs=sft.epochs,
            lr=sft.lr,
            warmup_share=sft.warmup_share,
            batch_size=sft.batch_size,
            micro_batch_tokens=self._recipe.train.micro_batch_tokens,
            max_grad_norm=self._recipe.train.max_grad_norm,
            stream=f"{self._recipe.seed}/{WARM_UP}",
        )
        num_steps = settings.num_steps(len(examples))
        self._observer.phase(WARM_UP, num_steps, self._state.sft_step)
        saved_s = time.monotonic()
        async with self._bench.learning(0):
            for step in range(self._state.sft_step, num_steps):
                await uninterrupted(self._warm_up_step(examples, step, settings))
                if time.monotonic() - saved_s > SFT_CHECKPOINT_PERIOD_S:
                    await self._save()
                    saved_s = time.monotonic()
            await self._learner.reset_optimizer()
        self._reach(replace(self._state, sft_is_done=True, pending_evaluation=WARM_UP))
        await self._save(keep=True)
        await self._evaluate_if_due()

    async def _warm_up_step(self, examples: Sequence[Example], step: int, settings: SftSettings) -> None:
        started_s = time.monotonic()
        self._mark = None
        seed = named_seed(self._recipe.seed, "dropout", WARM_UP, step)
        values = await self._learner.warm_up_step(examples, step, settings, seed)
        values["tokens_per_s"] = values["num_tokens"] / (time.monotonic() - started_s)
        if step % SFT_STEPS_PER_REPORT == 0 or step == settings.num_steps(len(examples)) - 1:
            self._write_metrics(step, WARM_UP, values)
        self._reach(replace(self._state, sft_step=step + 1))

    # The stages.

    async def _run_stage(self, stage: Stage) -> None:
        await self._evaluate_if_due()
        problems = await self._problems_of(stage)
        self._observer.phase(stage.name, stage.steps, self._state.stage_step)
        if self._state.stage_step == 0 and stage.reset_optimizer:
            await self._learner.reset_optimizer()
            self._reach(replace(self._state, steps_since_reset=0))
        async with self._ahead(stage, problems) as ahead:
            await self._train_steps(stage, ahead)
        self._reach(replace(self._state.next_stage(), pending_evaluation=stage.name))
        await self._save(keep=True)

    async def _train_steps(self, stage: Stage, ahead: Ahead) -> None:
        while not self._stage_is_done(stage):
            await self._train_step(stage, ahead)
            is_last = self._stage_is_done(stage)
            every = self._recipe.eval.every_steps
            if every and self._state.step % every == 0 and not is_last:
                self._reach(replace(self._state, pending_evaluation=stage.name))
            if not is_last and self._state.step % self._recipe.train.checkpoint_every_steps == 0:
                await self._save()
            if not is_last:
                await self._evaluate_if_due()

    def _stage_is_done(self, stage: Stage) -> bool:
        if self._state.stage_step >= stage.steps:
            return True
        mean = window_mean(self._state.recent_rewards)
        return stage.target_reward is not None and mean is not None and mean >= stage.target_reward

    async def _problems_of(self, stage: Stage) -> tuple[Problem, ...]:
        problems = self._curriculum.stages[self._state.stage_index]
        wanted = stage.difficulty_filter
        if wanted is None:
            return problems
        if self._state.problem_ids is None:
            self._observer.phase(f"filter:{stage.name}", 0, 0)
            hard = await hard_problems(
                self._roller,
                problems,
                num_samples=wanted.num_samples,
                drop_solved=wanted.drop_solved,
                limits=agent_limits(self._recipe, stage),
                sampling=self._sampling,
                seed=self._recipe.seed,
                step=self._state.step,
                stage=stage.name,
                on_trace=self._keep_trace,
            )
            await self._traces.settled()
            self._run.write_event(
                "difficulty_filter",
                f"{len(problems) - len(hard)} of {len(problems)} problems are solved {wanted.drop_solved} of "
                f"{wanted.num_samples} times: {len(hard)} are left for stage {stage.name}",
                {"stage": stage.name, "num_problems": len(problems), "num_left": len(hard)},
            )
            self._say(
                f"{len(hard)} of {len(problems)} problems are not solved every time: stage {stage.name} trains on them"
            )
            self._reach(replace(self._state, problem_ids=tuple(problem.id for problem in hard)))
        left = set(self._state.problem_ids or ())
        kept = tuple(problem for problem in problems if problem.id in left)
        if not kept:
            self._say(f"stage {stage.name} has nothing left to learn from: it is skipped")
            self._run.write_event("stage_skipped", f"stage {stage.name}: every problem is already solved")
            self._reach(replace(self._state, stage_step=stage.steps))
        return kept

    def _ahead(self, stage: Stage, problems: tuple[Problem, ...]) -> Ahead:
        """The steps that are left of the stage, collected while earlier ones are learnt from, as far as allowed."""

        async def collect(step: int, cursor: Cursor) -> Collected:
            async with self._bench.collecting():
                self._roller.begin_step(step)
                plan = self._plan(step, stage)
                collected = await collect_step(self._roller, problems, cursor, plan, self._keep_trace)
                self._traces.begin_writing()
                schedule = await self._roller.end_step()
            self._run.write_step_record(schedule)
            return replace(collected, schedule=schedule)

        num_left = stage.steps - self._state.stage_step
        first = self._state.step + 1
        return Ahead(
            collect,
            self._state.cursor,
            range(first, first + num_left),
            max_staleness=self._recipe.train.max_staleness,
        )

    async def _train_step(self, stage: Stage, ahead: Ahead) -> None:
        started_s = time.monotonic()
        collected = await ahead.next()
        values = await uninterrupted(
            self._learn_step(stage, ahead, collected, started_s),
            lambda: asyncio.get_running_loop().call_later(INTERRUPT_S, ahead.stop),
        )
        await self._stop_if_hopeless(stage, values)

    async def _learn_step(self, stage: Stage, ahead: Ahead, collected: Collected, started_s: float) -> dict[str, float]:
        """From collected rollouts to the next state: all of it, or nothing."""
        num_older = self._recipe.train.max_staleness
        older_weights = (*self._state.older_weights, self._bench.weights)[-num_older:] if num_older else ()
        self._mark = None
        values = await self._learn_from(collected)
        ahead.go_on()
        await self._traces.settled()
        num_sampled = sum(trace.num_sampled_tokens for trace in collected.traces)
        values |= {
            "num_refills": collected.num_refills,
            "generate_s": collected.duration_s,
            "step_s": time.monotonic() - started_s,
            "tokens_per_s": num_sampled / collected.duration_s,
            **watch_schedule(collected.schedule),
        }
        if (busy_share := self._bench.gpu_busy_share()) is not None:
            values["gpu_busy_share"] = busy_share
        self._write_metrics(self._state.step + 1, stage.name, values)
        self._reach(replace(self._advanced(collected, values), older_weights=older_weights))
        return values

    def _plan(self, step: int, stage: Stage) -> StepPlan:
        algo = self._recipe.algo
        return StepPlan(
            step=step,
            stage=stage.name,
            seed=self._recipe.seed,
            num_groups=self._recipe.train.prompts_per_step,
            num_sampled=algo.num_sampled,
            max_refills=algo.max_refills,
            settings=RocSettings(
                group_size=algo.group_size,
                mode=Mode(algo.selection),
                penalty=Penalty(algo.penalty),
                penalty_epsilon=algo.penalty_epsilon,
                drop_equal_groups=algo.drop_equal_groups,
            ),
            limits=agent_limits(self._recipe, stage),
            sampling=self._sampling,
        )

    @property
    def _sampling(self) -> Sampling:
        has_entropies = self._recipe.engine.kind == "embedded"  # vLLM reports none
        return Sampling(temperature=self._recipe.rollout.temperature, entropies=has_entropies)

    async def _learn_from(self, collected: Collected) -> dict[str, float]:
        """What was learnt, and what was seen of the rollouts."""
        if not collected.trainable:
            return {**self._look_at(collected), "train_s": 0.0}
        algo, train = self._recipe.algo, self._recipe.train
        traces = {trace.id: trace for trace in collected.traces}
        lr = train.lr * warmup_factor(self._state.steps_since_reset, train.warmup_steps)
        settings = UpdateSettings(
            loss=LossSettings(algo.clip_low, algo.clip_high, algo.kl_coef, algo.tis_cap, algo.clip_dual),
            temperature=self._recipe.rollout.temperature,
            micro_batch_tokens=train.micro_batch_tokens,
            num_optimizer_steps=train.optimizer_steps_per_batch,
            max_grad_norm=train.max_grad_norm,
        )
        groups = [kept_rollouts(group, traces) for group in collected.trainable]
        seed = named_seed(self._recipe.seed, "dropout", self._state.step)
        async with self._bench.learning(self._state.step + 1):
            began_s = time.monotonic()
            learnt = await self._learner.update(groups, settings, lr, seed)
            train_s = time.monotonic() - began_s
            # Now, because the end of `learning` may wait for rollouts, and then rollouts wait for this process.
            seen = self._look_at(collected)
        return {**seen, **learnt, "lr": lr, "train_s": train_s}

    def _look_at(self, collected: Collected) -> dict[str, float]:
        for group in collected.groups:
            self._run.write_group(group)
        values = watch_rollouts(collected.traces, collected.groups)
        look_for_cycles_if_rare()
        return values

    def _advanced(self, collected: Collected, values: Mapping[str, float]) -> TrainState:
        recent = (*self._state.recent_rewards, values["reward_mean"])[-WINDOW:]
        return replace(
            self._state,
            step=self._state.step + 1,
            stage_step=self._state.stage_step + 1,
            steps_since_reset=self._state.steps_since_reset + bool(collected.trainable),
            cursor=collected.cursor,
            recent_rewards=recent,
            best_reward=max(self._state.best_reward, window_mean(recent) or 0.0),
            steps_without_signal=0 if collected.trainable else self._state.steps_without_signal + 1,
        )

    async def _stop_if_hopeless(self, stage: Stage, values: dict[str, float]) -> None:
        num_steps = self._state.steps_without_signal
        if num_steps == 1:
            why = f"step {self._state.step} of stage {stage.name} taught nothing: {no_signal(values)}"
            self._run.write_event("no_signal", why, {"step": self._state.step, "stage": stage.name})
            self._say(f"warning: {why}. The run ends after {MAX_STEPS_WITHOUT_SIGNAL} such steps in a row")
        if num_steps >= MAX_STEPS_WITHOUT_SIGNAL:
            await self._save()
            raise UserError(
                f"stage {stage.name}: the last {num_steps} steps taught nothing: {no_signal(values)}. What was learnt "
                "before is saved"
            )
        seen = collapse(values, self._state.recent_rewards, self._state.best_reward)
        if seen is not None and self._recipe.train.stop_at_collapse:
            await self._save()
            self._run.write_event("collapse", seen, {"step": self._state.step, "stage": stage.name})
            raise UserError(
                f"the policy collapsed at step {self._state.step} of stage {stage.name}: {seen}. Go on from an earlier "
                "checkpoint with a lower train.lr, or set train.stop_at_collapse to false"
            )

    # Evaluation, records, checkpoints.

    async def _evaluate_if_due(self) -> None:
        stage = self._state.pending_evaluation
        if stage is None:
            return
        settings = self._recipe.eval
        if self._curriculum.benchmarks:
            name = f"eval:{stage}"
            num_rollouts = settings.num_samples * sum(map(len, self._curriculum.benchmarks.values()))
            self._observer.phase(name, num_rollouts, 0)
            protocol = Protocol(
                num_samples=settings.num_samples,
                temperature=settings.temperature,
                max_response_tokens=settings.max_response_tokens,
                max_turns=settings.max_turns,
                max_tool_output_tokens=self._recipe.agent.max_tool_output_tokens,
                max_fault_retries=self._recipe.rollout.max_fault_retries,
            )
            results = await evaluate(
                self._roller,
                self._curriculum.benchmarks,
                protocol,
                step=self._state.step,
                stage=name,
                seed=self._recipe.seed,
                on_trace=self._keep_trace,
            )
            await self._traces.settled()
            for benchmark, result in results.items():
                numbers = {key: float(value) for key, value in asdict(result).items() if isinstance(value, int | float)}
                self._write_metrics(self._state.step, f"{name}/{benchmark}", numbers)
        self._reach(replace(self._state, pending_evaluation=None))

    def _keep_trace(self, trace: Trace) -> None:
        self._traces.keep(trace)
        self._observer.rollouts(1)

    def _write_metrics(self, step: int, stage: str, values: Mapping[str, float]) -> None:
        self._run.write_metrics(step, stage, values)
        self._observer.metrics(step, stage, values)

    def _say(self, message: str) -> None:
        self._observer.say(message)

    def _say_what_is_held_out(self) -> None:
        for num, what in (
            (self._curriculum.num_held_out_conversations, "conversations of the warm-up"),
            (self._curriculum.num_held_out, "problems of the stages"),
        ):
            if num:
                self._say(f"{what} that are left out because they are evaluated on: {num}")

    def _check_prompts(self) -> None:
        for problems in (*self._curriculum.stages, *self._curriculum.benchmarks.values()):
            lengths = [self._roller.num_prompt_tokens(problem) for problem in problems]
            require_short_prompts(problems, lengths, self._recipe.rollout.max_prompt_tokens)

    def _reach(self, state: TrainState) -> None:
        """The weights are those of the state, and all that led to it is written down."""
        self._state = state
        self._mark = mark(self._run.layout, state.step)

    async def _save_what_is_done(self) -> None:
        """Weights that are on their way to another state are in no checkpoint."""
        if self._mark is None or self._state == self._saved_state:
            return
        await self._save()
        state = self._state
        is_warming_up = state.sft_step and not state.sft_is_done
        step = f"step {state.sft_step} of the warm-up" if is_warming_up else f"step {state.step}"
        self._say(f"interrupted: everything up to {step} is saved")

    async def _save(self, *, keep: bool = False) -> None:
        assert self._mark is not None, "between two states nothing is saved"
        self._run.sync()
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
        self._run.write_event("checkpoint", f"saved {path.name}", {"step": self._state.step, "path": path.name})

    async def _load(self, checkpoint: Checkpoint) -> None:
        async with self._bench.learning(checkpoint.state.step):
            await self._learner.load(checkpoint.path)
        self._reach(checkpoint.state)
        self._saved_state = checkpoint.state
        self._say(f"resumed at step {self._state.step} from {checkpoint.path.name}")
