"""Makes the parts that roll out, from a recipe: sandbox, environments, limits, driver and roller.

Training, evaluation, `solve`, `chat` and the playground make them here. `engines.py` opens the model and its engine.
"""

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path

from rstar2.agent import ChatFormat, chat_of
from rstar2.config import Recipe
from rstar2.engine import Engine
from rstar2.environments.executor import make_executor
from rstar2.environments.open import open_environments
from rstar2.errors import InfrastructureError
from rstar2.records import Trace
from rstar2.rollout import EngineSpeed, make_policy
from rstar2.rollout.driver import Driver
from rstar2.rollout.roller import Roller
from rstar2.sandbox import Executor, Limits
from rstar2.sandbox.executor import Request

ENGINE_SPEED = EngineSpeed(prefill_token_s=1e-5, step_s=1e-2, cached_token_s=1e-8)
"""A rough price of moves between engines; with a single engine there are none."""
UNKNOWN_CACHE_TOKENS = 1 << 30
"""The cache size assumed of servers and scripts, which do not report one and queue requests themselves."""
PROBE_DEADLINE_S = 120.0
"""How long the first program may wait for the sandbox to start."""


@asynccontextmanager
async def open_roller(recipe: Recipe, chat: ChatFormat, engine: Engine) -> AsyncIterator[Roller]:
    """A roller on a single engine of this process."""
    async with (
        _open_executor(recipe) as executor,
        open_roller_on(recipe, driver_on(engine, recipe), executor, chat) as roller,
    ):
        yield roller


@asynccontextmanager
async def open_shared_roller(
    recipe: Recipe, folder: Path, num_sharers: int, joining: Awaitable[Engine]
) -> AsyncIterator[Roller]:
    """A roller in one process of a farm, whose `num_sharers` processes share the engine's cache and the cores."""
    chat = chat_of(recipe, folder)
    async with (
        _open_executor(recipe, num_sharers) as executor,
        open_roller_on(recipe, driver_on(await joining, recipe, num_sharers), executor, chat) as roller,
    ):
        yield roller


@asynccontextmanager
async def _open_executor(recipe: Recipe, num_sharers: int = 1) -> AsyncIterator[Executor]:
    executor = make_executor(recipe, num_sharers)
    try:
        await require_working(executor)
        yield executor
    finally:
        await executor.close()


def driver_on(engine: Engine, recipe: Recipe, num_sharers: int = 1) -> Driver[Trace]:
    """A driver of one engine, of whose cache it may use one part in `num_sharers`."""
    driver = make_driver(recipe, num_sharers)
    load = engine.load()
    num_cache_tokens = load.num_blocks * load.block_size or UNKNOWN_CACHE_TOKENS
    driver.add_engine(recipe.engine.kind, engine, ENGINE_SPEED, num_cache_tokens // num_sharers)
    return driver


def make_driver(recipe: Recipe, num_sharers: int = 1, engine_timeout_s: float = 0.0) -> Driver[Trace]:
    """A driver without engines yet, one of `num_sharers` that divide the rollouts among them."""
    limit = recipe.rollout.max_concurrent
    max_concurrent = None if limit is None else max(1, limit // num_sharers)
    return Driver(
        make_policy(recipe.rollout.scheduler), engine_timeout_s=engine_timeout_s, max_concurrent=max_concurrent
    )


@asynccontextmanager
async def open_roller_on(
    recipe: Recipe, driver: Driver[Trace], executor: Executor, chat: ChatFormat
) -> AsyncIterator[Roller]:
    """A roller on the driver's engines, with the recipe's environments, whose programs run in the sandbox."""
    async with open_environments(recipe, executor) as environments:
        yield Roller(
            driver,
            chat,
            environments,
            recipe.model.name,
            recipe.rollout.max_prompt_tokens,
            recipe.algo.success_threshold,
        )


async def require_working(executor: Executor) -> None:
    """Raises InfrastructureError, before anything is spent, if the sandbox cannot run the simplest program."""
    probe = await executor.run(Request("print(1)", "", Limits(), PROBE_DEADLINE_S))
    if not probe.ok:
        raise InfrastructureError(f"the sandbox does not work: {probe.message or probe.stderr or probe.status}")
