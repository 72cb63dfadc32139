"""What a worker of a farm rolls out foreign programs with in tests: no sandbox, and a tokenizer without PyTorch."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

from rollout_leftovers import left_in_driver

from rstar2.agent import load_chat
from rstar2.config import load_recipe
from rstar2.engine import Engine
from rstar2.environments.open import open_environments
from rstar2.errors import InfrastructureError
from rstar2.records import StepRecord
from rstar2.rollout.roller import Roller
from rstar2.rollout.setup import driver_on
from rstar2.sandbox import Executor


class CheckedRoller(Roller):
    """The end of a step is an error if anything is left of rollouts here."""

    async def end_step(self) -> StepRecord:
        left = left_in_driver(self.driver)
        left += [task.get_name() for task in asyncio.all_tasks() if "handle" in repr(task.get_coro())]
        if left:
            raise InfrastructureError(f"rollouts have left {left}")
        return await super().end_step()


@asynccontextmanager
async def open_harness_roller(
    recipe_file: Path, model: Path, num_sharers: int, joining: Awaitable[Engine]
) -> AsyncIterator[CheckedRoller]:
    recipe = load_recipe(recipe_file)
    driver = driver_on(await joining, recipe, num_sharers)
    async with open_environments(recipe, cast(Executor, None)) as environments:
        yield CheckedRoller(driver, load_chat(model, "qwen", ""), environments)
