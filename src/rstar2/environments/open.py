"""Opens the environments that a recipe names, once per process."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from rstar2.environments.by_name import source_of, tools_of
from rstar2.environments.protocol import Environment, Services
from rstar2.environments.reward import load_reward, with_reward
from rstar2.environments.tools import ToolSource, load_tool, open_tools, with_tools
from rstar2.environments.user_code import Caller

if TYPE_CHECKING:
    from rstar2.config import EnvironmentSection, Recipe
    from rstar2.sandbox import Executor

DEFAULT = ""
"""The name of `[environment]` among the environments of a recipe."""


@asynccontextmanager
async def open_environments(recipe: "Recipe", executor: "Executor") -> AsyncIterator[dict[str, Environment]]:
    """The environments by name; the recipe's default is `DEFAULT`."""
    services = Services(recipe, executor)
    async with AsyncExitStack() as stack:
        yield {
            name: await stack.enter_async_context(open_environment(section, services))
            for name, section in {DEFAULT: recipe.environment, **recipe.environments}.items()
        }


@asynccontextmanager
async def open_environment(
    section: "EnvironmentSection", services: Services, base: Environment | None = None
) -> AsyncIterator[Environment]:
    """Open the source's environment, or use `base`, and add the section's tools."""
    async with AsyncExitStack() as stack:
        if base is None:
            base = await stack.enter_async_context(source_of(section).open(section, services))
        tools: list[ToolSource] = [
            await stack.enter_async_context(open_tools(section, tools_of(section), services)),
        ]
        if section.mcp:
            from rstar2.environments.mcp import open_mcp

            tools.append(await stack.enter_async_context(open_mcp(section.mcp, Caller.of(section))))
        yield with_tools(with_reward(base, load_reward(section)), *tools)


def check_environment(section: "EnvironmentSection") -> None:
    """UserError if the section names code that cannot be loaded. Nothing is opened."""
    source_of(section)
    load_reward(section)
    for name in tools_of(section):
        load_tool(name)
