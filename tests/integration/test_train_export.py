"""A checkpoint of a run, as a model that the agent can be started with."""

from pathlib import Path

import pytest
from safetensors.torch import load_file
from train_recipes import adapted, warm_up_alone, write_recipe
from typer.testing import CliRunner

from rstar2.cli.main import app
from rstar2.config import parse_recipe
from rstar2.records import RunDirectory
from rstar2.train import Observers, prepare_new, train
from rstar2.train.checkpoints.export_checkpoint import export_checkpoint

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("cold_sandboxes")]


async def test_the_last_checkpoint_is_the_final_model_and_an_earlier_one_is_not(tmp_path: Path) -> None:
    """Of whole weights: a tiny model that was built by the run itself."""
    run = tmp_path / "run"
    await train(prepare_new(parse_recipe(write_recipe(tmp_path).read_text()), run), Observers())
    newest = export_checkpoint(run)
    assert newest.parent == run / "exported"
    final = run / "final"
    assert same_weights(newest, final)
    assert {file.name for file in newest.iterdir()} == {file.name for file in final.iterdir()}
    assert (newest / "agent_format.json").read_text() == (final / "agent_format.json").read_text()
    warm_up, *_ = sorted(path.name for path in (run / "checkpoints").glob("*-step-000000"))
    earlier = export_checkpoint(run, warm_up, tmp_path / "elsewhere" / "warm")
    assert not same_weights(earlier, final)


async def test_adapters_come_merged_and_alone(tmp_path: Path) -> None:
    text = write_recipe(tmp_path).read_text()
    await train(prepare_new(warm_up_alone(text), tmp_path / "warm"), Observers())
    run = tmp_path / "run"
    await train(prepare_new(parse_recipe(adapted(text, tmp_path / "warm" / "final")), run), Observers())
    result = CliRunner().invoke(app, ["export", str(run), "-o", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert f"rstar2 solve --model {tmp_path / 'out'}" in result.stdout
    assert same_weights(tmp_path / "out", run / "final")
    adapter = "adapter/adapter_model.safetensors"
    assert (tmp_path / "out" / adapter).read_bytes() == (run / "final" / adapter).read_bytes()


@pytest.mark.parametrize(
    ("verb", "checkpoint", "message"),
    [
        ("eval", None, "run of `rstar2 eval`: it has no checkpoints"),
        ("train", None, "holds no checkpoint yet"),
        ("train", "000009-step-000001", "it has 000001-step-000000"),
        ("train", "000001-step-000000", "is there already"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, verb: str, checkpoint: str | None, message: str) -> None:
    run, target = tmp_path / "run", tmp_path / "out"
    recipe = write_recipe(tmp_path).read_text()
    with RunDirectory.create(run, verb=verb, recipe_toml=recipe, argv=[]):
        pass
    if checkpoint is not None:
        stored = run / "checkpoints" / "000001-step-000000"
        stored.mkdir(parents=True)
        (stored / "state.json").write_text(STATE)
    target.mkdir()
    (target / "mine.txt").write_text("do not touch")
    arguments = ["export", str(run), "-o", str(target), *(["--checkpoint", checkpoint] if checkpoint else [])]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code != 0
    assert message in str(result.exception)
    assert (target / "mine.txt").read_text() == "do not touch"


STATE = """{"format_version": 3, "recipe_digest": "", "keep": true, "mark": {}, "state": {"sft_step": 0,
"sft_is_done": true, "stage_index": 0, "stage_step": 0, "steps_since_reset": 0, "step": 0, "cursor": {"epoch": 0,
"position": 0}, "problem_ids": null, "pending_evaluation": null, "recent_rewards": [], "best_reward": 0.0,
"steps_without_signal": 0, "older_weights": []}}"""


def same_weights(folder: Path, other: Path) -> bool:
    ours, theirs = (load_file(path / "model.safetensors") for path in (folder, other))
    assert ours.keys() == theirs.keys()
    return all(ours[name].equal(theirs[name]) for name in ours)
