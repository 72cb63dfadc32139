"""`rstar2 train` before anything is trained: recipes shown, mistakes named, exit codes; and what a terminal shows."""

import subprocess
import sys

import pytest
from rich.console import Console
from typer.testing import CliRunner

from rstar2.cli.main import app
from rstar2.cli.train_display import Lines, LiveView, Progress
from rstar2.config import load_recipe, parse_recipe
from rstar2.errors import UserError

pytestmark = pytest.mark.unit

runner = CliRunner()


@pytest.mark.parametrize("name", ["quickstart", "smollm2-1gpu", "qwen3-14b-64gpu"])
def test_recipes_pass_a_dry_run(name: str) -> None:
    result = runner.invoke(app, ["train", name, "--dry-run"])
    assert result.exit_code == 0, result.output
    assert parse_recipe(result.stdout) == load_recipe(name)


def test_a_dry_run_shows_overrides() -> None:
    arguments = ["train", "quickstart", "--dry-run", "--set", "train.lr=0.5"]
    assert parse_recipe(runner.invoke(app, arguments).stdout).train.lr == 0.5


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give a recipe to start a run, or --resume"),
        (["a.toml", "--resume", "runs/x"], "give a recipe to start a run, or --resume"),
        (["--resume", "runs/x", "--set", "train.lr=1"], "leave --set, --run and --dry-run out"),
        (["--resume", "runs/x", "--run", "y"], "leave --set, --run and --dry-run out"),
        (["--resume", "runs/x", "--dry-run"], "leave --set, --run and --dry-run out"),
        (["missing.toml", "--dry-run"], r"missing\.toml"),
        (["quickstart", "--threads", "100000"], r"--threads of 100000 is more than the \d+ cores"),
        (["quickstart", "--dry-run", "--set", "train.learning_rate=1"], "learning_rate"),
    ],
)
def test_mistakes_on_the_command_line(arguments: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        runner.invoke(app, ["train", *arguments], catch_exceptions=False)


def test_a_mistake_is_a_sentence_and_the_exit_code_of_mistakes() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rstar2.cli.main", "train"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: give a recipe")
    assert "Traceback" not in done.stderr


def test_what_a_terminal_shows() -> None:
    time_s = 0.0
    progress = Progress(lambda: time_s)
    console = Console(width=80, force_terminal=False, record=True)
    lines = Lines(console)
    for observer in (progress, lines):
        observer.phase("first", 10, 2)
        observer.rollouts(5)
        observer.metrics(3, "first", {"accuracy": 0.25, "loss": 0.1, "tokens_per_s": 1234.0, "entropy": 0.5})
        observer.metrics(4, "first", {"accuracy": 0.75, "loss": 0.2, "tokens_per_s": 1234.0, "entropy": 0.5})
        observer.metrics(4, "eval:first/held_out", {"accuracy": 0.625})
        observer.say("half way")
    console.print(LiveView(progress))
    shown = console.export_text()
    for words in ("first", "75%", "1,234", "held_out", "62.5%", "half way"):
        assert words in shown, shown
    assert (progress.num_done, progress.num_steps) == (4, 10)
