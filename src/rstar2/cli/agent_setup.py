"""From a recipe to an agent that is ready for questions. Everything that is opened is closed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rstar2.cli.output import note
from rstar2.cli.threads import check_threads, use_threads

if TYPE_CHECKING:
    from rstar2.agent import Agent, Observer
    from rstar2.cli.console import Console
    from rstar2.config import EnvironmentSection, Recipe
    from rstar2.environments import Environment, Services
    from rstar2.records import Problem, Trace
    from rstar2.rollout.engines import OpenedModel
    from rstar2.sandbox.executor import Executor
    from rstar2.serve import ServedAgent, ServedModel


@dataclass(frozen=True, slots=True)
class AgentRequest:
    """A command line's request: a recipe, and values that no recipe has."""

    recipe: "Recipe"
    num_threads: int | None = None


@dataclass(frozen=True, slots=True)
class ReadyAgent:
    agent: "Agent"
    model: "OpenedModel"
    services: "Services"
    section: "EnvironmentSection"
    """The environment that was asked for, or the one that the model was trained in."""

    @asynccontextmanager
    async def environment(self) -> "AsyncIterator[Environment]":
        """The recipe's environment, opened once for any number of conversations."""
        from rstar2.environments.open import open_environment

        async with open_environment(self.section, self.services) as environment:
            yield environment

    async def solve(
        self, environment: "Environment", problem: "Problem", observer: "Observer", *, is_scored: bool = False
    ) -> "Trace":
        """One episode, which its environment judges if `is_scored`."""
        from rstar2.environments.begin import observed_start
        from rstar2.rollout.judge import judge_of, judged

        opening = environment.opening(problem)
        episode = await environment.begin(problem)
        try:
            start = observed_start(self.agent.chat, opening, episode)
            trace = await self.agent.rollout(problem, episode.tools, observer=observer, start=start, world=episode)
            trace = replace(trace, model=self.model.name)
            judge = judge_of(environment, episode, self.agent.chat.end_of_turn)
            return await judged(judge, problem, trace) if is_scored else trace
        finally:
            await episode.close()


@asynccontextmanager
async def ready_agent(asked: AgentRequest, progress: "Console") -> AsyncIterator[ReadyAgent]:
    """Loads the model, saying so on `progress`. A sandbox on this machine starts meanwhile; beside a script or a
    server, which are ready at once, it starts with the first call."""
    from rstar2.agent import Agent, AgentLimits
    from rstar2.engine import Sampling
    from rstar2.environments import Services
    from rstar2.environments.open import check_environment
    from rstar2.rollout.engines import open_model

    recipe = asked.recipe
    check_threads(asked.num_threads)
    if "environment" in recipe.model_fields_set:
        check_environment(recipe.environment)
    is_loaded_here = recipe.engine.kind in ("embedded", "vllm") and recipe.engine.base_url is None
    async with AsyncExitStack() as stack:
        executor = await stack.enter_async_context(open_executor(recipe, at_once=is_loaded_here))
        with progress.status("loading the model"):
            if recipe.engine.kind == "embedded":
                with suppress(ImportError):  # the engine says what is missing
                    await asyncio.to_thread(use_threads, asked.num_threads)
            model = await open_model(recipe)
        stack.push_async_callback(model.engine.close)
        seed = recipe.seed if "seed" in recipe.model_fields_set else None
        sampling = Sampling(temperature=recipe.eval.temperature, seed=seed)
        agent = Agent(model.engine, model.chat, AgentLimits.of(recipe, recipe.eval), sampling)
        yield ReadyAgent(agent, model, Services(recipe, executor), _environment(recipe, model))


@asynccontextmanager
async def served_agent(
    asked: AgentRequest, progress: "Console", name: str | None = None, seed: int | None = None
) -> "AsyncIterator[tuple[ServedModel, ServedAgent]]":
    """A ready agent for any number of requests. Without a seed their answers differ: a training run's own seed is not
    used."""
    from rstar2.sandbox.local import LocalExecutor
    from rstar2.serve import ServedAgent, ServedModel

    async with ready_agent(asked, progress) as ready, ready.environment() as environment:
        opened, sampling = ready.model, replace(ready.agent.sampling, seed=seed)
        model = ServedModel(opened.engine, opened.chat, name or opened.name, opened.context_tokens)
        executor = ready.services.executor
        status = executor.status if isinstance(executor, LocalExecutor) else dict
        yield model, ServedAgent(environment, ready.agent.limits, sampling, status)


@asynccontextmanager
async def open_executor(recipe: "Recipe", *, at_once: bool = False) -> "AsyncIterator[Executor]":
    """A service that cannot be reached is an error here and now. A sandbox of this machine starts in the background if
    it is wanted `at_once`, and else with the first program. Each call of the executor waits for the start, or gets its
    error."""
    from rstar2.environments.executor import make_executor
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


def _environment(recipe: "Recipe", model: "OpenedModel") -> "EnvironmentSection":
    """The environment of the command line or the recipe, else the one that the model was trained in."""
    from rstar2.agent import read_format
    from rstar2.environments.by_name import tools_of

    asked = recipe.environment
    trained = None if model.folder is None else read_format(model.folder).environment
    if trained is None:
        return asked
    given = asked.model_fields_set
    if "source" in given and asked.source != trained.source:
        note(f"{model.name} was trained in the environment {trained.source}, not in {asked.source}")
        return asked
    section = trained.model_copy(update={name: getattr(asked, name) for name in given})
    if missing := set(tools_of(trained)) - set(tools_of(section)):
        known = ", ".join(sorted(missing))
        note(f"{model.name} was trained with the tool {known}: it may not know how to do without, or to call another")
    return section
