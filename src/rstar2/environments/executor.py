"""Makes the sandbox that a recipe names: on this machine, or a service."""

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from rstar2.errors import UserError
from rstar2.sandbox import LocalExecutor
from rstar2.sandbox.local import LocalConfig
from rstar2.sandbox.slots.slot_factory import SlotConfig

if TYPE_CHECKING:
    from rstar2.config import Recipe
    from rstar2.sandbox.client import RemoteExecutor


def make_executor(recipe: "Recipe", num_sharers: int = 1) -> "LocalExecutor | RemoteExecutor":
    """Make one of `num_sharers` executors that share this machine's cores."""
    sandbox = recipe.sandbox
    if sandbox.base_url is not None:
        from rstar2.sandbox.client import RemoteExecutor

        token = None if sandbox.token_env is None else secret("sandbox.token_env", sandbox.token_env)
        return RemoteExecutor(sandbox.base_url, token)
    config = LocalConfig(SlotConfig(packages=sandbox.packages))
    num_slots = config.num_young if sandbox.num_slots is None else sandbox.num_slots
    return LocalExecutor(replace(config, num_young=max(2, num_slots // num_sharers)))


def secret(key: str, variable: str) -> str:
    """The value of the environment variable that the recipe names under `key`."""
    value = os.environ.get(variable)
    if not value:
        raise UserError(f"{key}: the environment variable {variable} is not set")
    return value
