"""Rollouts of the next step, sampled while this one is learnt from: beside the engine, on one machine."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch
from train_recipes import adapted, warm_up_alone, write_recipe

from rstar2.config import parse_recipe
from rstar2.records import RunView
from rstar2.rollout.farm import RollerFarm
from rstar2.rollout.roller import Roller
from rstar2.train import Observers, prepare_new, train
from rstar2.train.reporting.metrics import WINDOW

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("cold_sandboxes")]

NUM_STEPS = 5


@pytest.fixture(scope="module")
def recipe_ahead(tmp_path_factory: pytest.TempPathFactory, sandbox_url: str) -> str:
    """With adapters, on a model that has had its warm-up: rollouts run ahead by one step."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("ahead")
    text = write_recipe(folder, ("num_slots = 1", f'base_url = "{sandbox_url}"')).read_text()
    asyncio.run(train(prepare_new(warm_up_alone(text), folder / "warm"), Observers()))
    text = adapted(text, folder / "warm" / "final")
    return text.replace("[train]\n", "[train]\nmax_staleness = 1\n").replace("[algo]\n", "[algo]\ntis_cap = 2.0\n")


async def test_rollouts_run_ahead_of_learning_by_one_step_and_no_further(tmp_path: Path, recipe_ahead: str) -> None:
    text = recipe_ahead.replace("steps = 2", f"steps = {NUM_STEPS}", 1)
    for num_workers in (0, 2):
        run = tmp_path / f"run-{num_workers}"
        recipe = parse_recipe(text.replace("[rollout]\n", f"[rollout]\nnum_workers = {num_workers}\n"))
        await train(prepare_new(recipe, run), Observers())
        expect_one_step_ahead(RunView(run))


def expect_one_step_ahead(view: RunView) -> None:
    first = [row for row in view.metrics() if row.stage == "first"]
    assert [row.step for row in first] == list(range(1, NUM_STEPS + 1))
    lags = [
        {
            step - 1 - turn.policy_version
            for trace in view.traces(step)
            for turn in trace.turns
            if trace.id.startswith(f"s{step:06d}-")
        }
        for step in range(1, NUM_STEPS + 1)
    ]
    assert lags == [{0}, *[{1}] * (NUM_STEPS - 1)], "each step but the first is sampled by the policy before the last"


async def test_a_stage_that_reaches_its_reward_leaves_what_runs_ahead_and_the_next_completes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe_ahead: str
) -> None:
    """The cache has room for a few of a step's rollouts: the others wait for a place when they are left."""
    text = recipe_ahead.replace("steps = 2", "steps = 100\ntarget_reward = 0.01", 1)
    text = text.replace("kv_cache_tokens = 4096", "kv_cache_tokens = 320")
    num_left = 0

    def count_left(kind: type[Roller | RollerFarm]) -> None:
        run = kind.run

        async def counted(*args: Any, **kwargs: Any) -> Any:
            nonlocal num_left
            try:
                return await run(*args, **kwargs)
            except asyncio.CancelledError:
                num_left += 1
                raise

        monkeypatch.setattr(kind, "run", counted)

    count_left(Roller)
    count_left(RollerFarm)
    for num_workers, scheduler in ((0, "worst-case"), (2, "kv-aware")):
        run, num_left = tmp_path / f"run-{num_workers}", 0
        settings = f'[rollout]\nnum_workers = {num_workers}\nscheduler = "{scheduler}"\n'
        recipe = parse_recipe(text.replace("[rollout]\n", settings))
        async with asyncio.timeout(240):
            await train(prepare_new(recipe, run), Observers())
        assert num_left == 1, "the stage ended in the middle of a step that ran ahead"
        expect_two_stages(RunView(run))


def expect_two_stages(view: RunView) -> None:
    steps = {stage: [row.step for row in view.metrics() if row.stage == stage] for stage in ("first", "second")}
    assert steps == {"first": [*range(1, WINDOW + 1)], "second": [WINDOW + 1, WINDOW + 2]}
    for step in view.trace_steps():
        ids = [trace.id for trace in view.traces(step)]
        assert len(ids) == len(set(ids)), "what was left and what took its place are told apart"
