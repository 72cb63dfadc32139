"""What a training run works with, opened together and closed together: sandbox, engines, driver, grader, learner.

Here they are all on one machine: the engine reads the trainer's own weights, the sandbox runs beside them.
"""

import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Protocol

from rstar2.agent import AgentLimits, ChatFormat, JupyterTool, PythonTool, Tool
from rstar2.config import Recipe, Stage
from rstar2.engine.embedded import EmbeddedEngine, EmbeddedOptions
from rstar2.engine.process.shared import SharedEngine
from rstar2.errors import InfrastructureError, UserError
from rstar2.grading import Grader
from rstar2.records import Trace
from rstar2.rollout import EngineSpeed, make_policy
from rstar2.rollout.driver import Driver
from rstar2.rollout.roller import Roller, math_judge
from rstar2.sandbox import Executor, Limits, LocalExecutor
from rstar2.sandbox.client import RemoteExecutor
from rstar2.sandbox.executor import Request
from rstar2.sandbox.local import LocalConfig
from rstar2.train.gpu_use import GpuWatch
from rstar2.train.learner import Learner, SoloLearner
from rstar2.train.learner_rank import LearnerRank
from rstar2.train.policy import load_policy

ENGINE_NAME = "embedded"
ENGINE_SPEED = EngineSpeed(prefill_token_s=1e-5, step_s=1e-2, cached_token_s=1e-8)
"""Prices moves between engines; with a single engine there is nowhere to move to."""
PROBE_DEADLINE_S = 120.0
"""How long the first program may wait for the sandbox to start."""


class Workbench(Protocol):
    @property
    def roller(self) -> Roller: ...

    @property
    def learner(self) -> Learner: ...

    def learning(self, version: int) -> AbstractAsyncContextManager[None]:
        """Inside it the learner may change its weights. After it the engines generate with them, as `version`."""
        ...

    def gpu_busy_share(self) -> float | None:
        """Of the time since it was last asked; None where that cannot be told."""
        ...


OpenWorkbench = Callable[[Recipe, Path, ChatFormat], AbstractAsyncContextManager[Workbench]]
"""From a recipe, the folder of its model and its chat format."""


class SoloWorkbench:
    def __init__(self, rank: LearnerRank, engine: EmbeddedEngine | SharedEngine, roller: Roller, gpu: GpuWatch) -> None:
        self.roller = roller
        self.learner = SoloLearner(rank)
        self._rank = rank
        self._engine = engine
        self._gpu = gpu

    def gpu_busy_share(self) -> float | None:
        return self._gpu.share()

    @asynccontextmanager
    async def learning(self, version: int) -> AsyncIterator[None]:
        async with self._engine.learning(version):
            yield
            self._rank.policy.publish()


@asynccontextmanager
async def open_solo_workbench(recipe: Recipe, folder: Path, chat: ChatFormat) -> AsyncIterator[Workbench]:
    rank = LearnerRank(load_policy(folder, recipe), recipe.train.weight_decay)
    async with AsyncExitStack() as stack:
        executor = make_executor(recipe)
        stack.push_async_callback(executor.close)
        await require_working(executor)
        gpu = stack.enter_context(GpuWatch(rank.policy.device))
        engine = await _open_engine(rank, recipe)
        stack.push_async_callback(engine.close)
        driver: Driver[Trace] = Driver(make_policy(recipe.rollout.scheduler))
        driver.add_engine(ENGINE_NAME, engine, ENGINE_SPEED)
        yield SoloWorkbench(rank, engine, make_roller(recipe, driver, executor, chat), gpu)


async def _open_engine(rank: LearnerRank, recipe: Recipe) -> EmbeddedEngine | SharedEngine:
    """Beside a GPU the interpreter is what everybody waits for, so the engine gets one of its own."""
    policy, options = rank.policy, engine_options(recipe)
    if policy.device.type == "cuda":
        return await SharedEngine.start(policy.served, options)
    return EmbeddedEngine.on_model(policy.served, options)


def make_roller(recipe: Recipe, driver: Driver[Trace], executor: Executor, chat: ChatFormat) -> Roller:
    """The recipe's agent, with its tool and its judge in the sandbox, on the driver's engines."""
    limits = Limits(**recipe.sandbox.limits.model_dump())

    def make_tools() -> Sequence[Tool]:
        if recipe.agent.tool == JupyterTool.schema.name:
            return (JupyterTool(executor, limits),)
        return (PythonTool(executor, limits, recipe.sandbox.queue_s),)

    return Roller(driver, chat, make_tools, math_judge(Grader(executor, evaluated_only=True)), recipe.model.name)


def agent_limits(recipe: Recipe, stage: Stage) -> AgentLimits:
    return AgentLimits(
        max_turns=stage.max_turns,
        max_response_tokens=stage.max_response_tokens,
        max_tool_output_tokens=recipe.agent.max_tool_output_tokens,
        max_fault_retries=recipe.rollout.max_fault_retries,
        tool_deadline_s=tool_deadline_s(recipe),
    )


def tool_deadline_s(recipe: Recipe) -> float:
    """Above the sandbox's own queue and wall clock, so that it is the sandbox that stops what is late, and says why."""
    return recipe.sandbox.queue_s + recipe.sandbox.limits.wall_s + 30.0


def engine_options(recipe: Recipe) -> EmbeddedOptions:
    return EmbeddedOptions(
        max_running=recipe.engine.max_batch,
        max_context_tokens=recipe.model.context_tokens,
        kv_cache_tokens=recipe.engine.kv_cache_tokens,
        gpu_memory_share=recipe.engine.gpu_memory_share,
        max_prefill_tokens=recipe.engine.prefill_chunk_tokens,
        seed=recipe.seed,
    )


async def require_working(executor: Executor) -> None:
    """InfrastructureError before anything is spent, if the sandbox cannot run the simplest program."""
    probe = await executor.run(Request("print(1)", "", Limits(), PROBE_DEADLINE_S))
    if not probe.ok:
        raise InfrastructureError(f"the sandbox does not work: {probe.message or probe.stderr or probe.status}")


def make_executor(recipe: Recipe) -> Executor:
    sandbox = recipe.sandbox
    if sandbox.base_url is not None:
        token = None
        if sandbox.token_env is not None:
            token = os.environ.get(sandbox.token_env)
            if not token:
                raise UserError(f"sandbox.token_env: the environment variable {sandbox.token_env} is not set")
        return RemoteExecutor(sandbox.base_url, token)
    config = LocalConfig() if sandbox.num_slots is None else LocalConfig(num_young=sandbox.num_slots)
    return LocalExecutor(config)
