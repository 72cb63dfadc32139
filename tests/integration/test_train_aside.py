"""Rollouts of the next step, sampled while this one is learnt from: beside the engine, on one machine."""

from pathlib import Path

import pytest
import torch
from train_recipes import adapted, warm_up_alone, write_recipe

from rstar2.config import parse_recipe
from rstar2.records import RunView
from rstar2.train import Observers, prepare_new, train

pytestmark = pytest.mark.integration

NUM_STEPS = 5


async def test_rollouts_run_ahead_of_learning_by_one_step_and_no_further(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    text = write_recipe(tmp_path).read_text()
    await train(prepare_new(warm_up_alone(text), tmp_path / "warm"), Observers())
    text = adapted(text, tmp_path / "warm" / "final").replace("steps = 2", f"steps = {NUM_STEPS}", 1)
    text = text.replace("[train]\n", "[train]\nmax_staleness = 1\n").replace("[algo]\n", "[algo]\ntis_cap = 2.0\n")
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
