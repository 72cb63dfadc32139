"""docs/own-problems.md as a stranger follows it: its files are written, its commands are run or at least understood."""

import re
import runpy
import shlex
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from rstar2.cli.main import app
from rstar2.config import parse_recipe

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("cold_sandboxes")]

PAGE = (Path(__file__).parents[2] / "docs" / "own-problems.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\$ rstar2 (.+)$", PAGE, re.MULTILINE)


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, with the files that the page asks for."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RSTAR2_HOME", str(tmp_path / "home"))
    for block in (*blocks("python"), blocks("toml")[0]):
        name = re.match(r"# (\S+)\n", block)
        assert name is not None, block
        (tmp_path / name[1]).write_text(block, encoding="utf-8")
    runpy.run_path("make_pencils.py")
    return tmp_path


def test_the_data_are_valid_and_the_recipe_passes_a_dry_run(folder: Path) -> None:
    validate = next(command for command in COMMANDS if command.startswith("data validate"))
    done = CliRunner().invoke(app, shlex.split(validate), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    for line in done.stdout.splitlines():
        assert line.rstrip() in PAGE
    dry_run = next(command for command in COMMANDS if command.endswith("--dry-run"))
    done = CliRunner().invoke(app, shlex.split(dry_run), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert parse_recipe(done.stdout) == parse_recipe((folder / "pencils.toml").read_text())


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_understood(command: str) -> None:
    group = typer.main.get_command(app)
    names = shlex.split(command)
    context = group.make_context("rstar2", list(names))
    assert isinstance(group, typer.core.TyperGroup)
    name, found, rest = group.resolve_command(context, names)
    assert found is not None
    found.make_context(name, rest)


def test_a_pretrained_model_goes_where_the_page_says() -> None:
    recipe, snippet = blocks("toml")
    without_model = re.sub(r"^\[model\]\n.*?(?=^\[engine\])", "", recipe, flags=re.MULTILINE | re.DOTALL)
    without_warm_up = re.sub(r"^\[sft\]\n.*?(?=^\[train\])", "", without_model, flags=re.MULTILINE | re.DOTALL)
    made = parse_recipe(without_warm_up + snippet)
    assert made.model.name == "qwen2.5-coder-1.5b-instruct" and made.sft is None
