"""From a recipe to the parts that roll out: sandbox, tools, limits, driver and roller.

Training, evaluation, `solve`, `chat` and the playground make them here. `engines.py` opens the model and its engine.
"""

import os
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rstar2.agent import ChatFormat, Tool, load_chat
from rstar2.config import Recipe
from rstar2.engine import Engine
from rstar2.errors import InfrastructureError, UserError
from rstar2.extensions import TOOLS
from rstar2.grading import Grader
from rstar2.records import Trace
from rstar2.rollout import EngineSpeed, make_policy
from rstar2.rollout.driver import Driver
from rstar2.rollout.judge import answer_judge
from rstar2.rollout.roller import Roller
from rstar2.sandbox import Executor, Limits, LocalExecutor
from rstar2.sandbox.executor import Request
from rstar2.sandbox.local import LocalConfig

if TYPE_CHECKING:
    from rstar2.sandbox.client import RemoteExecutor

ENGINE_SPEED = EngineSpeed(prefill_token_s=1e-5, step_s=1e-2, cached_token_s=1e-8)
"""Prices moves between engines; with a single engine there is nowhere to move to."""
UNKNOWN_CACHE_TOKENS = 1 << 30
"""For servers and scripts, which do not report the size of their cache and queue requests themselves."""
PROBE_DEADLINE_S = 120.0
"""How long the first program may wait for the sandbox to start."""


@asynccontextmanager
async def open_roller(recipe: Recipe, chat: ChatFormat, engine: Engine) -> AsyncIterator[Roller]:
    """A roller on a single engine of this process."""
    async with _open_executor(recipe) as executor:
        yield _roller_on(engine, recipe, executor, chat)


@asynccontextmanager
async def open_shared_roller(
    recipe: Recipe, folder: Path, num_sharers: int, joining: Awaitable[Engine]
) -> AsyncIterator[Roller]:
    """As a process of a farm opens it: the engine's cache, like the machine's cores, is shared among as many."""
    chat = load_chat(folder, recipe.agent.template, recipe.agent.system_text, recipe.agent.tool_tags)
    async with _open_executor(recipe, num_sharers) as executor:
        yield _roller_on(await joining, recipe, executor, chat, num_sharers)


@asynccontextmanager
async def _open_executor(recipe: Recipe, num_sharers: int = 1) -> AsyncIterator[Executor]:
    executor = make_executor(recipe, num_sharers)
    try:
        await require_working(executor)
        yield executor
    finally:
        await executor.close()


def _roller_on(engine: Engine, recipe: Recipe, executor: Executor, chat: ChatFormat, num_sharers: int = 1) -> Roller:
    return make_roller(recipe, driver_on(engine, recipe, num_sharers), executor, chat)


def driver_on(engine: Engine, recipe: Recipe, num_sharers: int = 1) -> Driver[Trace]:
    """A driver of this one engine, of which it may use one part in `num_sharers`."""
    driver = make_driver(recipe, num_sharers)
    load = engine.load()
    num_cache_tokens = load.num_blocks * load.block_size or UNKNOWN_CACHE_TOKENS
    driver.add_engine(recipe.engine.kind, engine, ENGINE_SPEED, num_cache_tokens // num_sharers)
    return driver


def make_driver(recipe: Recipe, num_sharers: int = 1, engine_timeout_s: float = 0.0) -> Driver[Trace]:
    """One of `num_sharers` drivers that share the rollouts among them."""
    limit = recipe.rollout.max_concurrent
    max_concurrent = None if limit is None else max(1, limit // num_sharers)
    return Driver(
        make_policy(recipe.rollout.scheduler), engine_timeout_s=engine_timeout_s, max_concurrent=max_concurrent
    )


def make_roller(recipe: Recipe, driver: Driver[Trace], executor: Executor, chat: ChatFormat) -> Roller:
    """The recipe's agent, with its tool and its judge in the sandbox, on the driver's engines."""

    def make_tools() -> Sequence[Tool]:
        return (TOOLS.load(recipe.agent.tool).of(recipe, executor),)

    return Roller(driver, chat, make_tools, answer_judge(Grader(executor, evaluated_only=True)), recipe.model.name)


async def require_working(executor: Executor) -> None:
    """InfrastructureError before anything is spent, if the sandbox cannot run the simplest program."""
    probe = await executor.run(Request("print(1)", "", Limits(), PROBE_DEADLINE_S))
    if not probe.ok:
        raise InfrastructureError(f"the sandbox does not work: {probe.message or probe.stderr or probe.status}")


def make_executor(recipe: Recipe, num_sharers: int = 1) -> "LocalExecutor | RemoteExecutor":
    sandbox = recipe.sandbox
    if sandbox.base_url is not None:
        from rstar2.sandbox.client import RemoteExecutor

        token = None if sandbox.token_env is None else secret("sandbox.token_env", sandbox.token_env)
        return RemoteExecutor(sandbox.base_url, token)
    config = LocalConfig() if sandbox.num_slots is None else LocalConfig(num_young=sandbox.num_slots)
    return LocalExecutor(replace(config, num_young=max(2, config.num_young // num_sharers)))


def secret(key: str, variable: str) -> str:
    """What an environment variable holds that the recipe names under `key`."""
    value = os.environ.get(variable)
    if not value:
        raise UserError(f"{key}: the environment variable {variable} is not set")
    return value
