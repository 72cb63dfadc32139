"""The recipes of examples/environments at a size that trains in seconds, from their warm-up files to the last step."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from examples_environments import EXAMPLES
from rstar2.cli.main import app
from rstar2.config import load_recipe
from rstar2.data import load_curriculum
from rstar2.records import RunStatus, RunView, Trace
from rstar2.train import Observers, prepare_new, train

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("cold_sandboxes")]

SMALL = (
    "model.tiny.num_layers=1",
    "model.tiny.hidden_size=32",
    "data.format.num_problems=960",
    "sft.lr=2e-2",
    "algo.group_size=4",
    "train.prompts_per_step=4",
    "stages.0.steps=2",
    "eval.num_samples=1",
    "data.held_out.num_problems=4",
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The examples, in a folder of their own that is the working directory."""
    shutil.copytree(EXAMPLES, tmp_path / "here", ignore=shutil.ignore_patterns("*.jsonl", "__pycache__", "runs"))
    monkeypatch.chdir(tmp_path / "here")
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield tmp_path
    torch.set_num_threads(num_threads)


def write_warm_up(name: str) -> None:
    """As the first lines of the example say: what it prints is its warm-up."""
    made = subprocess.run([sys.executable, f"{name}.py"], check=True, timeout=240, stdout=subprocess.PIPE)
    if made.stdout:
        Path(f"{name}_warmup.jsonl").write_bytes(made.stdout)


async def trained(name: str, folder: Path, *more: str) -> list[Trace]:
    """The rollouts of both steps, and of the evaluation after them."""
    write_warm_up(name)
    recipe = load_recipe(f"{name}.toml", [*SMALL, *more])
    await train(prepare_new(recipe, folder / "run"), Observers())
    run = RunView(folder / "run")
    assert run.status is RunStatus.FINISHED
    traces = [trace for step in (1, 2) for trace in run.traces(step)]
    assert len(traces) == 2 * 4 * recipe.algo.num_sampled + 4
    assert all(trace.reward is not None for trace in traces)
    return traces


async def test_code_tests(folder: Path) -> None:
    traces = await trained("code_tests", folder)
    assert any("def f(x, y):" in trace.turn_texts[0] for trace in traces), "it writes programs"


async def test_search(folder: Path) -> None:
    copying = ("model.tiny.num_layers=2", "model.tiny.hidden_size=128", "sft.lr=2e-3")  # as in the recipe
    traces = await trained("search", folder, *copying, "data.format.num_problems=3000", "algo.group_size=8")
    called = {call.name for trace in traces for turn in trace.turns for call in turn.calls}
    assert {"search", "read"} <= called


async def test_game(folder: Path) -> None:
    traces = await trained("game", folder)
    heard = "".join(turn.appended_text for trace in traces for turn in trace.turns)
    assert "It is in the north." in heard and "It is in the west." in heard, "the world answers"


def test_games_that_begin_with_the_same_words_are_told_apart_by_their_rows() -> None:
    write_warm_up("game")
    curriculum = load_curriculum(load_recipe("game.toml"))
    trained_on, evaluated = (
        {game.id for game in games} for games in (curriculum.stages[0], curriculum.benchmarks["held_out"])
    )
    assert len(evaluated) == curriculum.num_held_out == 40 and len(trained_on) == 200
    assert not trained_on & evaluated
    assert curriculum.num_held_out_conversations == 0, "what every game begins with gives none of them away"


@pytest.mark.parametrize("name", ["code_tests", "search", "game"])
def test_the_gold_answers_of_an_example_score_1(name: str) -> None:
    write_warm_up(name)
    done = CliRunner().invoke(app, ["env", "validate", "--recipe", f"{name}.toml", "--episodes", "3"])
    assert done.exit_code == 0, done.output
    assert "3 with a gold answer" in done.output
