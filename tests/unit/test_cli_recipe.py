"""`rstar2 recipe`: what it prints, and what its exit codes say."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rstar2.cli.recipe import app
from rstar2.config import load_recipe, parse_recipe
from rstar2.errors import UserError

pytestmark = pytest.mark.unit

QUICKSTART = "quickstart"
runner = CliRunner()


def test_show_prints_a_recipe_with_its_overrides() -> None:
    result = runner.invoke(app, ["show", QUICKSTART, "--set", "train.lr=1e-3", "--set", "stages.hard.steps=2"])
    assert result.exit_code == 0
    recipe = parse_recipe(result.stdout)
    assert (recipe.train.lr, recipe.stages[2].steps) == (1e-3, 2)
    as_json = json.loads(runner.invoke(app, ["show", QUICKSTART, "--json"]).stdout)
    assert as_json["model"]["tiny"]["num_layers"] == 2


def test_list_names_each_shipped_recipe_and_show_prints_it_to_copy(tmp_path: Path) -> None:
    lines = runner.invoke(app, ["list"]).stdout.splitlines()
    assert "quickstart       A tiny agent from nothing, on 2 CPU cores in minutes." in lines
    listed = json.loads(runner.invoke(app, ["list", "--json"]).stdout)
    assert [line.split()[0] for line in lines] == [entry["name"] for entry in listed]
    copy = tmp_path / "copy.toml"
    copy.write_text(runner.invoke(app, ["show", QUICKSTART, "--as-written"]).stdout)
    assert copy.read_text().startswith("# ") and load_recipe(copy) == load_recipe(QUICKSTART)
    refused = runner.invoke(app, ["show", QUICKSTART, "--as-written", "--set", "train.lr=1e-3"])
    assert isinstance(refused.exception, UserError)


def test_show_refuses_with_a_user_error() -> None:
    result = runner.invoke(app, ["show", "missing.toml"])
    assert isinstance(result.exception, UserError)


def test_check_names_the_mistakes_of_all_files(tmp_path: Path) -> None:
    bad, worse = tmp_path / "bad.toml", tmp_path / "worse.toml"
    bad.write_text('name = "x"\nsead = 1\n[model]\nname = "m"\n')
    worse.write_text("name = \n")
    result = runner.invoke(app, ["check", str(bad), QUICKSTART, str(worse)])
    assert result.exit_code == 2
    assert result.stdout == f"{QUICKSTART}: ok\n"
    assert f"{bad}:2: sead is not a key of a recipe; did you mean seed?" in result.stderr
    assert f"{worse}:1:8: is not valid TOML" in result.stderr
    found = json.loads(runner.invoke(app, ["check", str(bad), QUICKSTART, "--json"]).stdout)
    assert [entry["ok"] for entry in found] == [False, True]


def test_check_passes_what_is_right() -> None:
    assert runner.invoke(app, ["check", QUICKSTART]).exit_code == 0


def test_explain_speaks_three_languages() -> None:
    assert "train.lr  (number, more than 0; default: 1e-06)" in runner.invoke(app, ["explain", "train"]).stdout
    assert runner.invoke(app, ["explain", "--markdown"]).stdout.startswith("# The fields of a recipe\n")
    (field,) = json.loads(runner.invoke(app, ["explain", "train.lr", "--json"]).stdout)
    assert (field["key"], field["default"], field["required"]) == ("train.lr", 1e-6, False)


def test_the_verb_loads_nothing_heavy_before_it_is_called() -> None:
    code = "import sys, rstar2.cli.recipe; print('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
