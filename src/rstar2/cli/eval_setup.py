"""From a plan and a recipe to what an evaluation needs: who answers, who judges, where programs run."""

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rstar2.cli.flag_groups import in_panel
from rstar2.errors import UserError

if TYPE_CHECKING:
    from rstar2.cli.agent_setup import AgentRequest
    from rstar2.config import Recipe
    from rstar2.evals import Bench, Benchmark, EvalPlan, Judges
    from rstar2.rollout.engines import OpenedModel
    from rstar2.sandbox import Executor

PROMPT_SHARE = 8
"""The prompt of a conversation gets one part in this many of the cache."""
_judge = in_panel("Judge of Arena-Hard")


@dataclass(frozen=True, slots=True)
class JudgeFlags:
    judge_url: Annotated[str | None, _judge(metavar="URL", help="Its OpenAI-compatible server.")] = None
    judge_model: Annotated[str | None, _judge(metavar="NAME", help="Its model.")] = None
    judge_key_env: Annotated[str | None, _judge(metavar="NAME", help="Environment variable that holds its key.")] = None
    judge_baseline: Annotated[
        str | None, _judge(metavar="FILE", help="JSONL of the answers to compare with: id and answer.")
    ] = None


@asynccontextmanager
async def open_bench(
    plan: "EvalPlan", benchmarks: "Sequence[Benchmark]", asked: "AgentRequest", judge: JudgeFlags
) -> "AsyncIterator[tuple[Bench, OpenedModel]]":
    from rstar2.cli.agent_setup import AgentRequest, ready_agent
    from rstar2.cli.console import Console
    from rstar2.config import EnvironmentSection
    from rstar2.data import Grading
    from rstar2.environments import Environment
    from rstar2.environments.math import MathEnvironment
    from rstar2.environments.open import open_environment, open_environments
    from rstar2.evals import Bench
    from rstar2.evals.retrying_engine import RetryingEngine
    from rstar2.rollout.setup import driver_on

    recipe = with_services(asked.recipe if plan.settings.has_tools else _without_tools(asked.recipe), benchmarks)
    async with AsyncExitStack() as stack:
        ready = await stack.enter_async_context(
            ready_agent(AgentRequest(recipe, asked.num_threads), Console(stderr=True))
        )
        judges = make_judges(plan, judge, ready.services.executor)
        answers = MathEnvironment(judges.grader, judges.answer_place)
        section = ready.section if ready.section.source == "math" else EnvironmentSection(tools=ready.section.tools)
        math = await stack.enter_async_context(open_environment(section, ready.services, answers))
        environments: Mapping[str, Environment] = dict.fromkeys(("", *recipe.environments), math)
        if any(benchmark.grading is Grading.ENVIRONMENT for benchmark in benchmarks):
            environments = await stack.enter_async_context(open_environments(recipe, ready.services.executor))
        driver = driver_on(RetryingEngine(ready.agent.engine), recipe)
        threshold = recipe.algo.success_threshold
        bench = Bench(driver, ready.agent.chat, environments, math, judges, ready.model.name, threshold)
        yield bench, ready.model


def with_services(recipe: "Recipe", benchmarks: "Sequence[Benchmark]") -> "Recipe":
    """The recipe with what the benchmarks need inside of the sandbox. A service must be started with it."""
    from rstar2.data import Grading
    from rstar2.evals.bfcl.services import PACKAGE

    needed = PACKAGE.partition("==")[0]
    is_needed = any(benchmark.grading is Grading.MULTI_TURN_CALLS for benchmark in benchmarks)
    if not is_needed or recipe.sandbox.base_url is not None or needed in recipe.sandbox.packages:
        return recipe
    sandbox = recipe.sandbox.model_copy(update={"packages": (*recipe.sandbox.packages, needed)})
    return recipe.model_copy(update={"sandbox": sandbox})


def _without_tools(recipe: "Recipe") -> "Recipe":
    environment = recipe.environment.model_copy(update={"tools": (), "mcp": {}})
    return recipe.model_copy(update={"environment": environment})


def most_response_tokens(model: "OpenedModel") -> int | None:
    """The longest response of a model that runs here, by its context and its cache. None for others."""
    if model.context_tokens is None:
        return None
    load = model.engine.load()
    num_cached = load.num_blocks * load.block_size
    return min(model.context_tokens, num_cached - num_cached // PROMPT_SHARE) if num_cached else model.context_tokens


def keep_tokenizer(model: "OpenedModel", target: Path) -> None:
    """Beside the traces, so that their tokens can be read without the model. Servers and scripts may have none."""
    import shutil

    if model.folder is not None:
        target.mkdir(exist_ok=True)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            if (model.folder / name).is_file():
                shutil.copy(model.folder / name, target / name)


def load_benchmarks(plan: "EvalPlan", recipe: "Recipe") -> "list[Benchmark]":
    """The benchmarks of the plan. A set of the recipe's [data] is named as there."""
    from rstar2.data import load_problems

    own = {
        name: load_problems(name, recipe.data[name], recipe.seed, recipe.environment_of(name))
        for name in plan.benchmarks
        if name in recipe.data
    }
    return plan.load(own)


def make_judges(plan: "EvalPlan", judge: JudgeFlags, executor: "Executor | None") -> "Judges":
    from rstar2.evals import Judges
    from rstar2.evals.arena import ChatClient, read_baseline
    from rstar2.grading import Grader
    from rstar2.sandbox import LocalExecutor

    grader = Grader(executor or LocalExecutor())
    url, model, baseline = judge.judge_url, judge.judge_model, judge.judge_baseline
    if url is None and model is None and baseline is None:
        return Judges(grader, plan.answer_place)
    if url is None or model is None or baseline is None:
        raise UserError("--judge-url, --judge-model and --judge-baseline belong together: give all three")
    key = os.environ.get(judge.judge_key_env) if judge.judge_key_env else None
    if judge.judge_key_env and not key:
        raise UserError(f"--judge-key-env: the environment variable {judge.judge_key_env} is not set")
    return Judges(grader, plan.answer_place, ChatClient(url, model, key), read_baseline(Path(baseline)))
