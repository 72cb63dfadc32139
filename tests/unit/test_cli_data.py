"""`rstar2 data` as a person and a program use it."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from rstar2.cli.data import app
from rstar2.data import CATALOG
from rstar2.data.hub import LOCK_NAME, repo_folder
from rstar2.errors import UserError

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RSTAR2_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RSTAR2_DATA", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def write(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_list_says_what_is_here(home: Path) -> None:
    write(home / "aime24.jsonl", {"id": "1", "problem": "p", "answer": "1"})
    result = call("list", "--json")
    here = {entry["name"]: entry["files"] for entry in json.loads(result.stdout)}
    assert here["aime24"] == [str(home / "aime24.jsonl")]
    assert here["aime25"] == []
    assert "gpqa_diamond" in call("list").stdout


def test_show_problems_conversations_and_generated_ones(home: Path) -> None:
    write(home / "mine.jsonl", *({"problem": f"What is {n}?", "answer": n} for n in range(5)))
    result = call("show", home / "mine.jsonl", "-n", 2)
    assert "What is 1?" in result.stdout and "What is 2?" not in result.stdout
    assert "2 of 5 rows" in result.stderr
    talk = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    write(home / "talk.jsonl", {"messages": talk})
    assert "assistant: ho" in call("show", home / "talk.jsonl").stdout
    assert json.loads(call("show", "procedural:gcd", "-n", 2, "--json").stdout)["num_rows"] == 2
    assert "assistant:" in call("show", "procedural:tool_format", "-n", 1).stdout


def test_an_unknown_name_is_a_user_error() -> None:
    result = call("show", "aime2024")
    assert isinstance(result.exception, UserError)
    assert "did you mean 'aime24'" in str(result.exception)
    assert isinstance(call("get", "sft_mix").exception, UserError)


def test_curate_writes_what_is_kept_and_what_is_not(home: Path) -> None:
    leak = "A list of exactly eight words and one more, which is this."
    write(home / "aime24.jsonl", {"id": "1", "problem": leak, "answer": "1"})
    write(
        home / "in.jsonl",
        {"id": "a", "problem": "What is 3+4?", "answer": "7"},
        {"id": "b", "problem": "What is 1/2?", "answer": "1/2"},
        {"id": "c", "problem": leak, "answer": "3"},
    )
    write(home / "more.jsonl", {"id": "a", "problem": "what is $3+4$?", "answer": "7"})
    out = home / "out.jsonl"
    result = call("curate", home / "in.jsonl", home / "more.jsonl", "-o", out, "--against", "aime24", "--json")
    assert json.loads(result.stdout)["num_rejected"] == {"not_integer": 1, "duplicate": 1, "contaminated": 1}
    assert [json.loads(line)["id"] for line in out.read_text().splitlines()] == ["a"]
    rejects = [json.loads(line) for line in (home / "out.rejects.jsonl").read_text().splitlines()]
    assert [(row["id"], row["reason"]) for row in rejects] == [
        ("b", "not_integer"),
        ("c", "contaminated"),
        (f"{home / 'more.jsonl'}/a", "duplicate"),
    ]


def test_curate_refuses_what_it_cannot_do(home: Path) -> None:
    source = write(home / "in.jsonl", {"problem": "p", "answer": "1"})
    for arguments, message in (
        (("-o", home / "out.txt"), "ends in .jsonl"),
        (("-o", home / "none" / "out.jsonl"), "there is no folder"),
        (("-o", home / "out.jsonl", "--drop-unsolved"), "--drop-unsolved needs --run"),
        (("-o", home / "out.jsonl", "--run", home), "is not a run directory"),
    ):
        result = call("curate", source, *arguments)
        assert isinstance(result.exception, UserError) and message in str(result.exception)
    assert not (home / "out.jsonl").exists()


def test_curate_never_writes_over_an_input(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    row = {"id": "a", "problem": "What is 3+4?", "answer": "7"}
    source = write(home / "in.jsonl", row, {**row, "id": "b", "answer": "1/2"})
    benchmark = write(home / "aime24.jsonl", {**row, "problem": "What is 1+1?"})
    write(home / "other.rejects.jsonl", row)
    (home / "link.jsonl").symlink_to(source)
    (home / "twin.jsonl").hardlink_to(source)
    before = {path: path.read_bytes() for path in home.glob("*.jsonl")}
    for arguments in (
        (source, "-o", source),
        (source, "-o", "in.jsonl"),
        (source, "-o", "link.jsonl"),
        ("link.jsonl", "-o", source),
        (source, "-o", "twin.jsonl"),
        (f"file:{source}", "-o", source),
        ("aime24", "-o", benchmark),
        (source, "--against", "aime24", "-o", benchmark),
        ("other.rejects.jsonl", "-o", "other.jsonl"),
    ):
        result = call("curate", *arguments)
        assert isinstance(result.exception, UserError) and "would be overwritten" in str(result.exception), arguments
    assert {path: path.read_bytes() for path in home.glob("*.jsonl")} == before


@pytest.mark.parametrize("place", ["home", "home/data"])
@pytest.mark.parametrize("kind", ["file", "loop"])
def test_a_home_that_cannot_be_read_is_a_sentence(home: Path, place: str, kind: str) -> None:
    path = home / place
    path.parent.mkdir(exist_ok=True)
    if kind == "file":
        path.write_text("")
    else:
        path.symlink_to(path)
    for arguments in (("list",), ("show", "aime24"), ("get", "aime24")):
        result = call(*arguments)
        assert isinstance(result.exception, UserError), result.exception
        assert f"cannot read {path}" in str(result.exception) and "RSTAR2_HOME" in str(result.exception)


def test_a_lock_that_cannot_be_read_is_a_sentence() -> None:
    """A folder in its place, because root, who runs tests in containers, may read every file."""
    source = CATALOG["aime24"].hub
    assert source is not None
    (repo_folder(source) / LOCK_NAME).mkdir(parents=True)
    result = call("list")
    assert isinstance(result.exception, UserError), result.exception
    assert f"cannot read {repo_folder(source) / LOCK_NAME} (Is a directory)" in str(result.exception)
