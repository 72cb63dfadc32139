"""Training on trees: without forks it is training on flat rollouts, and a stopped run ends with the same bits."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from train_recipes import write_recipe

from rstar2.algo.tree import paths_of
from rstar2.config import Recipe, load_recipe
from rstar2.records import Group, Outcome, RunView, Selection, Trace
from rstar2.train import Observers, prepare_new, prepare_resumed, train
from rstar2.train.learning.update import kept_rollouts

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("one_thread", "cold_sandboxes")]

STEPS = (1, 2, 3)


class StopError(Exception):
    pass


class StopAt(Observers):
    """Ends the run when it has written down a step."""

    def metrics(self, step: int, stage: str, _values: Mapping[str, float]) -> None:
        if (step, stage) == (2, "first"):
            raise StopError


def recipe(folder: Path, sandbox_url: str, tree: str = "") -> Recipe:
    folder.mkdir()
    return load_recipe(
        write_recipe(
            folder,
            ("num_slots = 1", f'base_url = "{sandbox_url}"'),
            ("max_prompt_tokens = 48\n", f"max_prompt_tokens = 48\n{tree}"),
            ("group_size = 2", "group_size = 4"),
            ("checkpoint_every_steps = 1", "checkpoint_every_steps = 9"),
            ("steps = 2\n\n[[", "steps = 3\n\n[["),
        )
    )


def final(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "final" / "model.safetensors")


def same(ours: Path, theirs: Path) -> bool:
    return all(torch.equal(tensor, final(theirs)[name]) for name, tensor in final(ours).items())


def step_of(run: Path, step: int) -> tuple[list[Group], dict[str, Trace]]:
    view = RunView(run)
    return list(view.groups(step)), {trace.id: trace for trace in view.traces(step)}


@pytest.mark.parametrize("advantage", ["leaves", "siblings"])
async def test_a_tree_without_forks_trains_to_the_same_bits_as_flat_rollouts(
    tmp_path: Path, sandbox_url: str, advantage: str
) -> None:
    flat, tree = tmp_path / "flat", tmp_path / "tree"
    tables = {"flat": "", "tree": f'[rollout.tree]\nnum_roots = 8\nadvantage = "{advantage}"\n'}
    for run in (flat, tree):
        await train(prepare_new(recipe(tmp_path / f"{run.name}-data", sandbox_url, tables[run.name]), run), Observers())
    assert same(flat, tree)


async def test_a_budget_of_tokens_leaves_leaves_out_and_is_not_made_up_for(tmp_path: Path, sandbox_url: str) -> None:
    tree = "[rollout.tree]\nnum_roots = 4\nmax_generated_tokens = 200\n"
    settings = recipe(tmp_path / "data", sandbox_url, tree)
    run = tmp_path / "run"
    await train(prepare_new(settings, run), Observers())
    num_unsampled = 0
    for step in STEPS:
        groups, traces = step_of(run, step)
        for group in groups:
            leaves = [traces[trace_id] for trace_id in group.trace_ids]
            assert len(leaves) == 8, "a leaf beyond the budget is not asked for again"
            sampled = [leaf for leaf in leaves if leaf.outcome is not Outcome.BEYOND_BUDGET]
            assert len(sampled) >= 4
            assert all(leaf.reward is None for leaf in leaves if leaf not in sampled)
            num_unsampled += 8 - len(sampled)
    assert num_unsampled > 0
    rows = [row.values for row in RunView(run).metrics() if row.stage == "first"]
    assert sum(row["num_rollouts"] or 0 for row in rows) + num_unsampled == sum(
        len(group.trace_ids) for step in STEPS for group in step_of(run, step)[0]
    )


@pytest.mark.parametrize("points", ["results", "entropy"])
async def test_trees_are_learnt_from_and_a_stopped_run_ends_with_the_same_bits(
    tmp_path: Path, sandbox_url: str, points: str
) -> None:
    tree = f'[rollout.tree]\nnum_roots = 2\nnum_rounds = 2\npoints = "{points}"\n'
    settings = recipe(tmp_path / "data", sandbox_url, tree)
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    await train(prepare_new(settings, whole), Observers())
    with pytest.raises(StopError):
        await train(prepare_new(settings, stopped), StopAt())
    await train(prepare_resumed(stopped), Observers())
    assert same(stopped, whole)

    num_branches, num_inside = 0, 0
    for step in STEPS:
        groups, traces = step_of(whole, step)
        assert {trace_id: trace.token_ids for trace_id, trace in step_of(stopped, step)[1].items()} == {
            trace_id: trace.token_ids for trace_id, trace in traces.items()
        }
        num_branches += sum(bool(trace.parent) for trace in traces.values())
        num_inside += sum(bool(trace.num_shared_tokens) for trace in traces.values())
        for group in groups:
            trained = sum(rollout.num_learnt for rollout in kept_rollouts(group, traces))
            members = [traces[trace_id] for trace_id in group.trace_ids]
            pairs = zip(paths_of(members), group.selections, strict=True)
            segments = {segment for path, selection in pairs if selection is Selection.KEPT for segment in path}
            assert trained == sum(segment.num_tokens for segment in segments), (
                "each token that was sampled for a kept leaf, once"
            )
    assert num_branches > 0
    assert (num_inside > 0) == (points == "entropy")
