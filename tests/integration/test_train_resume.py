"""What a resumed run takes over from before: rollouts of its own weights, and of no others."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from train_recipes import adapted, warm_up_alone, write_recipe

from rstar2.config import Recipe, load_recipe, parse_recipe
from rstar2.records import RunView, Trace
from rstar2.records.rewind import superseded_traces
from rstar2.records.run_layout import RunLayout
from rstar2.train import Observers, prepare_new, prepare_resumed, train
from rstar2.train.learning.rank import LearnerRank

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("one_thread", "cold_sandboxes")]

NUM_STEPS = 6


class StopError(Exception):
    pass


class StopAt(Observers):
    """Ends the run when it has written down a step."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self._step = step

    def metrics(self, step: int, stage: str, _values: Mapping[str, float]) -> None:
        if (step, stage) == (self._step, "first"):
            raise StopError


def rollouts(run: Path, step: int) -> dict[str, Trace]:
    """Of training."""
    return {trace.id: trace for trace in RunView(run).traces(step) if trace.id.startswith("s")}


async def test_a_run_that_learns_otherwise_than_before_samples_with_what_it_learnt(
    tmp_path: Path, sandbox_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU sums are rounded in another order every time: so are they here."""
    changes = ("checkpoint_every_steps = 1", "checkpoint_every_steps = 9"), ("steps = 2\n\n[[", "steps = 4\n\n[[")
    recipe = load_recipe(write_recipe(tmp_path, ("num_slots = 1", f'base_url = "{sandbox_url}"'), *changes))
    run = tmp_path / "run"
    with pytest.raises(StopError):
        await train(prepare_new(recipe, run), StopAt(3))
    update = LearnerRank.update

    def rounded_otherwise(rank: LearnerRank, *arguments: object) -> dict[str, float]:
        values = update(rank, *arguments)  # type: ignore[arg-type]
        with torch.no_grad():
            for parameter in rank.policy.parameters().values():
                parameter.mul_(1 + 1e-2)
        return values

    monkeypatch.setattr(LearnerRank, "update", rounded_otherwise)
    prepared = prepare_resumed(run)
    assert prepared.checkpoint is not None and prepared.checkpoint.state.step == 0
    await train(prepared, Observers())

    earlier = superseded_traces(RunLayout(run), 0)
    for step in (1, 2, 3):
        now = rollouts(run, step)
        before = {trace_id: trace for trace_id, trace in earlier.items() if trace_id in now}
        assert before and all(trace.weights for trace in (*before.values(), *now.values()))
        assert (now == before) == (step == 1), "the first step is the checkpoint's own"
    rows = {row.step: row.values for row in RunView(run).metrics() if row.stage == "first"}
    assert all((rows[step]["mismatch"] or 0) < 1e-3 for step in rows), (
        "rollouts are of the weights that learn from them"
    )
    assert len({trace.weights for step in rows for trace in rollouts(run, step).values()}) == len(rows)


async def test_rollouts_that_were_sampled_ahead_are_taken_over_and_the_run_ends_with_the_same_bits(
    tmp_path: Path, sandbox_url: str
) -> None:
    recipe = await stale_recipe(tmp_path, sandbox_url)
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    await train(prepare_new(recipe, whole), Observers())
    for stop_at in (3, 5):
        prepared = prepare_resumed(stopped) if stopped.exists() else prepare_new(recipe, stopped)
        with pytest.raises(StopError):
            await train(prepared, StopAt(stop_at))
    prepared = prepare_resumed(stopped)
    assert prepared.checkpoint is not None and prepared.checkpoint.state.step == 4
    await train(prepared, Observers())
    for step in range(1, NUM_STEPS + 1):
        expected = {trace_id: (trace.token_ids, trace.weights) for trace_id, trace in rollouts(whole, step).items()}
        assert {
            trace_id: (trace.token_ids, trace.weights) for trace_id, trace in rollouts(stopped, step).items()
        } == expected
        assert len({weights for _, weights in expected.values()}) == 1
    ours, theirs = (load_file(run / "final" / "model.safetensors") for run in (stopped, whole))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


async def stale_recipe(folder: Path, sandbox_url: str) -> Recipe:
    """With adapters, sampling one step ahead of learning."""
    text = write_recipe(folder, ("num_slots = 1", f'base_url = "{sandbox_url}"')).read_text()
    await train(prepare_new(warm_up_alone(text), folder / "warm"), Observers())
    text = adapted(text, folder / "warm" / "final").replace("steps = 2", f"steps = {NUM_STEPS}", 1)
    text = text.replace("lr = 1e-3", "lr = 1e-2").replace("checkpoint_every_steps = 1", "checkpoint_every_steps = 2")
    return parse_recipe(
        text.replace("[train]\n", "[train]\nmax_staleness = 1\n").replace("[algo]\n", "[algo]\ntis_cap = 2.0\n")
    )
