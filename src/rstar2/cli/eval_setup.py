"""From options to what an evaluation needs: who answers, who judges, where programs run. What was opened is closed."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rstar2.cli import agent_options as opt
from rstar2.errors import UserError

if TYPE_CHECKING:
    from rstar2.agent import Tool
    from rstar2.evals import Bench, EvalPlan, Judges
    from rstar2.sandbox import Executor

ENGINE = "engine"
UNKNOWN_CACHE_TOKENS = 1 << 30
"""For servers and scripts, which do not say what their cache holds: they queue for themselves."""
PROMPT_SHARE = 8
"""Of the cache, one part in so many is for the prompt of a conversation."""


@dataclass(frozen=True, slots=True)
class JudgeOptions:
    url: str | None
    model: str | None
    key_env: str | None
    baseline: str | None


@asynccontextmanager
async def open_bench(plan: "EvalPlan", options: opt.AgentOptions, judge: JudgeOptions) -> "AsyncIterator[Bench]":
    from rich.console import Console

    from rstar2.cli.agent_setup import ready_agent
    from rstar2.evals import Bench
    from rstar2.evals.retrying_engine import RetryingEngine
    from rstar2.records import Trace
    from rstar2.rollout import EngineSpeed, make_policy
    from rstar2.rollout.driver import Driver

    async with ready_agent(options, Console(stderr=True)) as ready:
        driver: Driver[Trace] = Driver(make_policy("kv-aware"))
        num_cache_tokens = None if ready.agent.engine.load().num_blocks else UNKNOWN_CACHE_TOKENS
        # Prices moves between engines; with a single engine there is nowhere to move to.
        speed = EngineSpeed(prefill_token_s=1e-5, step_s=1e-2, cached_token_s=1e-8)
        driver.add_engine(ENGINE, RetryingEngine(ready.agent.engine), speed, num_cache_tokens)

        def make_tools() -> "Sequence[Tool]":
            return ready.make_tools() if plan.settings.has_tools else ()

        yield Bench(driver, ready.agent.chat, make_tools, make_judges(plan, judge, ready.executor), ready.model)


def most_response_tokens(options: opt.AgentOptions, bench: "Bench") -> int | None:
    """What a model of ours can say at most: by its context, and by the cache that is there. None for others."""
    import json

    from rstar2.cli.agent_setup import engine_kind
    from rstar2.models import resolve

    engine = bench.driver.engine(ENGINE)
    if options.base_url is not None or engine_kind(options) == "scripted" or engine is None:
        return None
    config = json.loads((resolve(options.model or opt.DEFAULT_MODEL) / "config.json").read_text(encoding="utf-8"))
    load = engine.load()
    num_cached = load.num_blocks * load.block_size or UNKNOWN_CACHE_TOKENS
    return min(int(config.get("max_position_embeddings", num_cached)), num_cached - num_cached // PROMPT_SHARE)


@asynccontextmanager
async def open_executor(options: opt.AgentOptions) -> "AsyncIterator[Executor]":
    from rstar2.cli.agent_setup import make_executor

    executor = make_executor(options)
    try:
        yield executor
    finally:
        await executor.close()


def keep_tokenizer(options: opt.AgentOptions, target: Path) -> None:
    """Beside the traces, so that their tokens can be read without the model. Servers and scripts may have none."""
    import shutil

    from rstar2.cli.agent_setup import engine_kind
    from rstar2.models import resolve

    folder = options.tokenizer
    if folder is None and options.base_url is None and engine_kind(options) != "scripted":
        folder = resolve(options.model or opt.DEFAULT_MODEL)
    if folder is not None:
        target.mkdir(exist_ok=True)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            if (folder / name).is_file():
                shutil.copy(folder / name, target / name)


def make_judges(plan: "EvalPlan", judge: JudgeOptions, executor: "Executor | None") -> "Judges":
    import os

    from rstar2.evals import Judges
    from rstar2.evals.arena import ChatClient, read_baseline
    from rstar2.grading import Grader
    from rstar2.sandbox import LocalExecutor

    grader = Grader(executor or LocalExecutor())
    if judge.url is None and judge.model is None and judge.baseline is None:
        return Judges(grader, plan.answer_place)
    if judge.url is None or judge.model is None or judge.baseline is None:
        raise UserError("--judge-url, --judge-model and --judge-baseline belong together: give all three")
    key = os.environ.get(judge.key_env) if judge.key_env else None
    if judge.key_env and not key:
        raise UserError(f"--judge-key-env: the environment variable {judge.key_env} is not set")
    client = ChatClient(judge.url, judge.model, key)
    return Judges(grader, plan.answer_place, client, read_baseline(Path(judge.baseline)))
