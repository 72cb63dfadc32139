"""`rstar2 models list|path|get`: what is printed where, and the exit codes."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rstar2.cli.models import app
from rstar2.cli.output import ExitCode
from rstar2.errors import UserError
from rstar2.models import AGENTS, CATALOG, ModelCard, ModelSource, Verification, model_folder
from rstar2.models.card import file_sizes, write_card

pytestmark = pytest.mark.unit

NAME = "smollm2-135m"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RSTAR2_HOME", str(tmp_path))
    return tmp_path


def put_there(name: str) -> Path:
    folder = model_folder(name)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    write_card(
        folder,
        ModelCard(
            name,
            ModelSource.HUB,
            "owner/repo",
            "0" * 40,
            "Apache-2.0",
            None,
            Verification.GENERATED,
            "",
            file_sizes(folder),
        ),
    )
    return folder


def test_list_as_json_holds_the_catalog_and_what_is_here() -> None:
    folder = put_there(NAME)
    result = CliRunner().invoke(app, ["list", "--json"])
    rows = {row["name"]: row for row in json.loads(result.stdout)}
    assert rows.keys() == CATALOG.keys() | AGENTS.keys()
    assert rows[NAME]["folder"] == str(folder)
    assert rows[NAME]["card"]["source"] == "hub"
    assert rows["qwen3-14b-base"]["card"] is rows["qwen3-14b-base"]["folder"] is None


def test_list_for_people_names_every_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    put_there(NAME)
    result = CliRunner().invoke(app, ["list"])
    assert result.exit_code == ExitCode.OK
    for name in CATALOG:
        assert name in result.stdout


def test_path_prints_the_folder_or_says_how_to_get_it() -> None:
    absent = CliRunner().invoke(app, ["path", NAME])
    assert absent.exit_code == ExitCode.NO
    assert absent.stdout == ""
    assert absent.stderr == f"model {NAME!r} is not on this machine yet: run `rstar2 models get {NAME}`\n"
    folder = put_there(NAME)
    present = CliRunner().invoke(app, ["path", NAME])
    assert present.exit_code == ExitCode.OK
    assert present.stdout == f"{folder}\n"


def test_an_unknown_name_is_the_users_mistake() -> None:
    for verb in ("path", "get"):
        result = CliRunner().invoke(app, [verb, "smolm2-135m"])
        assert isinstance(result.exception, UserError)
        assert "did you mean 'smollm2-135m'" in str(result.exception)


def test_a_second_get_does_nothing() -> None:
    folder = put_there(NAME)
    result = CliRunner().invoke(app, ["get", NAME])
    assert (result.exit_code, result.stdout, result.stderr) == (ExitCode.OK, f"{folder}\n", "already there\n")
    document = json.loads(CliRunner().invoke(app, ["get", NAME, "--json"]).stdout)
    assert document["was_there"] is True
    assert document["folder"] == str(folder)
