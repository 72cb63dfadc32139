"""Checks, before training, whether an environment can begin with each row of its data."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rstar2.environments.by_name import source_of
from rstar2.environments.executor import make_executor
from rstar2.environments.messages import ASKED
from rstar2.environments.protocol import Services
from rstar2.errors import InfrastructureError, UserError
from rstar2.records import Problem

if TYPE_CHECKING:
    from rstar2.config import EnvironmentSection, Recipe

PATIENCE_S = 60.0
"""The time limit for all rows of a set. An opening takes far less than a millisecond, unless the environment's code is
slow."""


@dataclass(frozen=True, slots=True)
class RowCheck:
    mistakes: dict[str, str]
    """What the environment cannot use, by problem id; the text does not name the problem."""
    num_checked: int


def check_rows(section: "EnvironmentSection", recipe: "Recipe", problems: Sequence[Problem]) -> RowCheck:
    """Make the opening of each problem, until the time limit. An environment that needs its own server or process is
    not checked. UserError if the environment cannot be opened."""
    if not source_of(section).opens_at_once:
        return RowCheck({}, 0)
    return asyncio.run(_check(section, recipe, problems))


async def _check(section: "EnvironmentSection", recipe: "Recipe", problems: Sequence[Problem]) -> RowCheck:
    mistakes = dict[str, str]()
    executor = make_executor(recipe)  # it starts with its first program, and an opening runs none
    try:
        async with source_of(section).open(section, Services(recipe, executor)) as environment:
            ends_at = time.monotonic() + PATIENCE_S
            for num_checked, problem in enumerate(problems):
                if time.monotonic() > ends_at:
                    return RowCheck(mistakes, num_checked)
                try:
                    environment.opening(replace(problem, id=ASKED))
                except (UserError, InfrastructureError) as error:
                    mistakes[problem.id] = str(error)
    except InfrastructureError as error:
        raise UserError(str(error)) from error
    finally:
        await executor.close()
    return RowCheck(mistakes, len(problems))
