"""Rollouts in several processes: the same ones, and a process that dies is told."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
import torch
from train_recipes import write_recipe

from rstar2.agent import AgentLimits, load_chat
from rstar2.config import Recipe, parse_recipe
from rstar2.data import load_problems
from rstar2.engine import Sampling
from rstar2.errors import InfrastructureError, UserError
from rstar2.records import RunView, Trace
from rstar2.rollout.request import RolloutRequest
from rstar2.train import Observers, prepare_new, train
from rstar2.train.workbench import open_solo_workbench

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("cold_sandboxes")]


async def test_two_workers_do_what_one_process_does_and_one_that_is_killed_is_named(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    text = write_recipe(tmp_path).read_text()
    recipe = parse_recipe(text.replace("[rollout]\n", "[rollout]\nnum_workers = 2\n"))
    await train(prepare_new(parse_recipe(text), tmp_path / "alone"), Observers())
    await train(prepare_new(recipe, tmp_path / "farm"), Observers())
    alone, farm = RunView(tmp_path / "alone"), RunView(tmp_path / "farm")
    assert alone.trace_steps() == farm.trace_steps() != []
    for step in alone.trace_steps():
        assert said(alone, step) == said(farm, step)
    for step in alone.schedule_steps():
        (mine,), (theirs,) = alone.step_records(step), farm.step_records(step)
        assert mine.num_rollouts == theirs.num_rollouts
        assert theirs.engines[0].num_generated_tokens > 0 and theirs.critical_path
    await expect_loss(recipe, tmp_path / "farm" / "final")


def said(view: RunView, step: int) -> dict[str, tuple[object, ...]]:
    """What rollouts said and were worth, without the times that they took."""
    return {
        trace.id: (trace.response_text, trace.reward, [turn.token_ids for turn in trace.turns])
        for trace in view.traces(step)
    }


def loaded_by(pid: int) -> str:
    return Path(f"/proc/{pid}/maps").read_text()


async def expect_loss(recipe: Recipe, folder: Path) -> None:
    chat = load_chat(folder, recipe.agent.template, recipe.agent.system_text)
    requests = [
        RolloutRequest(problem, f"{problem.id}-{sample}", seed=sample)
        for problem in load_problems("guesses", recipe.data["guesses"], 0)
        for sample in range(40)
    ]
    async with open_solo_workbench(recipe, folder, chat) as bench:
        first, *_ = bench.roller._workers  # type: ignore[attr-defined]
        assert "libtorch" not in loaded_by(first.pid), "a worker has no use for PyTorch"

        def kill(_trace: Trace) -> None:
            os.kill(first.pid, signal.SIGKILL)

        with pytest.raises(InfrastructureError, match=f"rollout process {first.pid} has disconnected"):
            async with asyncio.timeout(240):
                await bench.roller.run(requests, AgentLimits.of(recipe, recipe.stages[0]), Sampling(), kill)

    no_token = recipe.sandbox.model_copy(update={"base_url": "http://127.0.0.1:9", "token_env": "NOBODY_SETS_THIS"})
    with pytest.raises(UserError, match="NOBODY_SETS_THIS is not set"):
        async with open_solo_workbench(recipe.model_copy(update={"sandbox": no_token}), folder, chat):
            pass
