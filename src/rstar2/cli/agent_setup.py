"""From a recipe to an agent that is ready for questions. Everything that is opened is closed."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rstar2.cli.output import note
from rstar2.cli.threads import check_threads, use_threads
from rstar2.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from rstar2.agent import Agent, Tool
    from rstar2.config import Recipe
    from rstar2.rollout.engines import OpenedModel
    from rstar2.sandbox.executor import Executor


@dataclass(frozen=True, slots=True)
class Asked:
    """A command line's request: a recipe, and values that no recipe has."""

    recipe: "Recipe"
    tools: tuple[str, ...] = ()
    """Names of tools or files; none: the recipe's, or the one that the model was trained with."""
    num_threads: int | None = None


@dataclass(frozen=True, slots=True)
class ReadyAgent:
    agent: "Agent"
    model: "OpenedModel"
    executor: "Executor"
    """Runs its programs; shared by all conversations."""
    make_tools: "Callable[[], list[Tool]]"
    """For one conversation; the caller closes them."""

    @asynccontextmanager
    async def tools(self) -> "AsyncIterator[list[Tool]]":
        from rstar2.agent.tool import close_all

        tools = self.make_tools()
        try:
            yield tools
        finally:
            await close_all(tools)


@asynccontextmanager
async def ready_agent(asked: Asked, progress: "Console") -> AsyncIterator[ReadyAgent]:
    """Loads the model, saying so on `progress`. A sandbox on this machine starts meanwhile; beside a script or a
    server, which are ready at once, it starts with the first call."""
    from rstar2.agent import Agent, AgentLimits
    from rstar2.engine import Sampling
    from rstar2.rollout.engines import open_model

    recipe = asked.recipe
    check_threads(asked.num_threads)
    is_loaded_here = recipe.engine.kind in ("embedded", "vllm") and recipe.engine.base_url is None
    async with AsyncExitStack() as stack:
        executor = await stack.enter_async_context(open_executor(recipe, at_once=is_loaded_here))
        makers = _tool_makers(asked.tools, recipe, executor)
        with progress.status("loading the model"):
            if recipe.engine.kind == "embedded":
                with suppress(ImportError):  # the engine says what is missing
                    await asyncio.to_thread(use_threads, asked.num_threads)
            model = await open_model(recipe)
        stack.push_async_callback(model.engine.close)
        names = _tool_names(asked, model)
        makers = makers or _tool_makers(names, recipe, executor)
        seed = recipe.seed if "seed" in recipe.model_fields_set else None
        sampling = Sampling(temperature=recipe.eval.temperature, seed=seed)
        agent = Agent(model.engine, model.chat, AgentLimits.of(recipe, recipe.eval), sampling)
        yield ReadyAgent(agent, model, executor, lambda: [make() for make in makers])


@asynccontextmanager
async def open_executor(recipe: "Recipe", *, at_once: bool = False) -> "AsyncIterator[Executor]":
    """A service that cannot be reached is an error here and now. A sandbox of this machine starts in the background if
    it is wanted `at_once`, and else with the first program. Each call of the executor waits for the start, or gets its
    error."""
    from rstar2.rollout.setup import make_executor
    from rstar2.sandbox.local import LocalExecutor

    executor = make_executor(recipe)
    starting: asyncio.Task[None] | None = None
    try:
        if not isinstance(executor, LocalExecutor):
            await executor.reach()
        elif at_once:
            starting = asyncio.create_task(executor.start(), name="start the sandbox")
        yield executor
    finally:
        if starting is not None:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
        await executor.close()


def _tool_names(asked: Asked, model: "OpenedModel") -> Sequence[str]:
    """The tools of the command line, else the recipe's, else the one that the model was trained with."""
    from rstar2.agent import read_format

    trained = None if model.folder is None else read_format(model.folder).tool
    tool = asked.recipe.agent.tool
    is_given = "tool" in asked.recipe.agent.model_fields_set
    names = asked.tools or (tool if is_given or trained is None else trained,)
    if trained is not None and trained not in names:
        note(f"{model.name} was trained with the tool {trained}: it may not know how to call another")
    return names


def _tool_makers(names: Sequence[str], recipe: "Recipe", executor: "Executor") -> "list[Callable[[], Tool]]":
    from functools import partial

    from rstar2.cli.tool_file import tool_maker
    from rstar2.extensions import TOOLS

    makers: list[Callable[[], Tool]] = []
    for name in names:
        if name in TOOLS or ":" in name:
            tool = TOOLS.load(name)
            if not hasattr(tool, "of"):
                raise UserError(f"--tool: {name!r} has no classmethod of(recipe, executor) that makes a tool")
            makers.append(partial(tool.of, recipe, executor))
        elif name.endswith(".py"):
            makers.append(tool_maker(Path(name)))
        else:
            raise UserError(
                f"--tool: {name!r} is neither {' nor '.join(TOOLS)}, nor package.module:name, nor a file that ends in "
                ".py"
            )
    return makers
