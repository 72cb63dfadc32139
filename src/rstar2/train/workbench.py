"""What a training run works with, opened together and closed together: sandbox, engine, driver, grader.

One process does it all: the engine reads the trainer's own weights, the sandbox runs beside them.
"""

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from rstar2.agent import AgentLimits, ChatFormat, JupyterTool, PythonTool, Tool
from rstar2.config import Recipe, Stage
from rstar2.engine.embedded import EmbeddedEngine, EmbeddedOptions
from rstar2.errors import UserError
from rstar2.grading import Grader
from rstar2.records import Trace
from rstar2.rollout import EngineSpeed, make_policy
from rstar2.rollout.driver import Driver
from rstar2.rollout.roller import Roller, math_judge
from rstar2.sandbox import Executor, Limits, LocalExecutor
from rstar2.sandbox.client import RemoteExecutor
from rstar2.sandbox.local import LocalConfig
from rstar2.train.policy import Policy

ENGINE_NAME = "embedded"
ENGINE_SPEED = EngineSpeed(prefill_token_s=1e-5, step_s=1e-2, cached_token_s=1e-8)
"""Prices moves between engines; with a single engine there is nowhere to move to."""


@dataclass(frozen=True, slots=True)
class Workbench:
    engine: EmbeddedEngine
    roller: Roller
    recipe: Recipe

    def limits(self, stage: Stage) -> AgentLimits:
        return AgentLimits(
            max_turns=stage.max_turns,
            max_response_tokens=stage.max_response_tokens,
            max_tool_output_tokens=self.recipe.agent.max_tool_output_tokens,
            max_fault_retries=self.recipe.rollout.max_fault_retries,
            tool_deadline_s=tool_deadline_s(self.recipe),
        )


def tool_deadline_s(recipe: Recipe) -> float:
    """Above the sandbox's own queue and wall clock, so that it is the sandbox that stops what is late, and says why."""
    return recipe.sandbox.queue_s + recipe.sandbox.limits.wall_s + 30.0


@asynccontextmanager
async def open_workbench(recipe: Recipe, policy: Policy, chat: ChatFormat) -> AsyncIterator[Workbench]:
    async with AsyncExitStack() as stack:
        executor = make_executor(recipe)
        stack.push_async_callback(executor.close)
        engine = EmbeddedEngine.on_model(policy.served, engine_options(recipe))
        stack.push_async_callback(engine.close)
        driver: Driver[Trace] = Driver(make_policy(recipe.rollout.scheduler))
        driver.add_engine(ENGINE_NAME, engine, ENGINE_SPEED)
        judge = math_judge(Grader(executor, evaluated_only=True))
        limits = sandbox_limits(recipe)

        def make_tools() -> Sequence[Tool]:
            if recipe.agent.tool == JupyterTool.schema.name:
                return (JupyterTool(executor, limits),)
            return (PythonTool(executor, limits, recipe.sandbox.queue_s),)

        yield Workbench(engine, Roller(driver, chat, make_tools, judge, recipe.model.name), recipe)


def engine_options(recipe: Recipe) -> EmbeddedOptions:
    if recipe.engine.kind != "embedded":
        raise UserError(
            f'engine.kind is "{recipe.engine.kind}": on one machine a recipe is trained with "embedded", whose weights '
            "are the trainer's own"
        )
    return EmbeddedOptions(
        max_running=recipe.engine.max_batch,
        max_context_tokens=recipe.model.context_tokens,
        kv_cache_tokens=recipe.engine.kv_cache_tokens,
        max_prefill_tokens=recipe.engine.prefill_chunk_tokens,
        seed=recipe.seed,
    )


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


def sandbox_limits(recipe: Recipe) -> Limits:
    return Limits(**recipe.sandbox.limits.model_dump())
