"""Data sets from a hub on loopback: downloaded once, continued where a transfer broke off, never other bytes."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import huggingface_hub.constants
import pytest
from loopback_hub import COMMIT, TEST, TRAIN, Hub, serving
from typer.testing import CliRunner

from rstar2.cli.data import app
from rstar2.cli.output import ExitCode
from rstar2.config import DataSet
from rstar2.data import CATALOG, load_benchmark, load_problems
from rstar2.data.catalog_set import HubSource
from rstar2.data.hub import LOCK_NAME, PARTIAL_NAME, cached_files, choose_files, fetch_files, repo_folder
from rstar2.data.hub_split import choose_split
from rstar2.errors import InfrastructureError, UserError
from rstar2.models.hub import HubUnavailableError

pytestmark = pytest.mark.unit


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serving(tmp_path, monkeypatch) as held:
        yield held


def go_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


SOURCE = HubSource("owner/set", None, ("data/train.jsonl",))


def test_a_split_is_loaded_and_then_needs_no_hub(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = DataSet(source="hub:owner/set")
    problems = load_problems("mine", spec, seed=0)
    assert [problem.answer for problem in problems] == ["2", "4"]
    assert len(hub.ranges) == 1
    go_offline(monkeypatch)
    assert load_problems("mine", spec, seed=0) == problems
    with pytest.raises(HubUnavailableError, match="HF_HUB_OFFLINE is set"):
        load_problems("mine", spec.model_copy(update={"split": "test"}), seed=0)


def test_without_a_hub_the_error_is_one_sentence(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HubUnavailableError, match=r"did not serve owner/none \(.*404.*\): try again") as raised:
        load_problems("mine", DataSet(source="hub:owner/none"), seed=0)
    assert "\n" not in str(raised.value)
    go_offline(monkeypatch)
    with pytest.raises(HubUnavailableError, match="HF_HUB_OFFLINE is set"):
        load_problems("mine", DataSet(source="hub:owner/set"), seed=0)
    assert hub.ranges == []


def test_a_transfer_goes_on_where_it_stopped(hub: Hub) -> None:
    scratch = repo_folder(SOURCE) / PARTIAL_NAME
    scratch.mkdir(parents=True)
    (scratch / f"{COMMIT[:12]}-data--train.jsonl").write_bytes(TRAIN[:30])
    (path,) = fetch_files(SOURCE)
    assert path.read_bytes() == TRAIN
    assert hub.ranges == ["bytes=30-"]
    assert not scratch.exists()


def test_the_lock_says_what_was_downloaded_and_the_branch_may_move_on(hub: Hub) -> None:
    (path,) = fetch_files(SOURCE)
    lock = json.loads((repo_folder(SOURCE) / LOCK_NAME).read_text())
    assert lock["commit"] == COMMIT
    assert lock["sha256"] == {"data/train.jsonl": hashlib.sha256(TRAIN).hexdigest()}
    hub.files["data/train.jsonl"] = TRAIN + TEST
    assert fetch_files(SOURCE) == (path,)
    assert path.read_bytes() == TRAIN
    path.unlink()
    with pytest.raises(InfrastructureError, match=r"not [0-9a-f]{64} as the lock says"):
        fetch_files(SOURCE)
    assert not path.exists()


@pytest.mark.usefixtures("hub")
def test_a_file_that_was_changed_here_is_refused() -> None:
    (path,) = fetch_files(SOURCE)
    path.write_bytes(TRAIN.replace(b"2", b"3"))
    with pytest.raises(UserError, match="is not the file that was downloaded"):
        cached_files(SOURCE)


@pytest.mark.parametrize("who", ["the catalog", "the hub's listing"])
def test_bytes_that_are_not_the_published_ones_are_refused(hub: Hub, who: str) -> None:
    wrong = {"data/train.jsonl": "0" * 64}
    hub.listed_sha256 = wrong if who == "the hub's listing" else {}
    source = HubSource(SOURCE.repo, None, SOURCE.files, wrong if who == "the catalog" else {})
    with pytest.raises(InfrastructureError, match=f"as {who} says"):
        fetch_files(source)
    assert cached_files(source) is None


@pytest.mark.usefixtures("hub")
def test_a_file_that_the_repository_does_not_have() -> None:
    with pytest.raises(UserError, match=r"has no data/dev-\*\.parquet; it holds data/train\.jsonl, data/test\.jsonl"):
        fetch_files(HubSource("owner/set", None, ("data/dev-*.parquet",)))


@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [
        (("b.json", "a.json"), ["b.json", "a.json"]),
        (("a.json", "c.json"), None),
        (("*.parquet", "d/*.json"), ["d/e.json", "d/f.json"]),
        (("*.json", "d/*.json"), ["a.json", "b.json"]),
        (("a.json", "*.csv"), None),
    ],
)
def test_names_are_all_needed_and_patterns_are_alternatives(wanted: tuple[str, ...], chosen: list[str] | None) -> None:
    assert choose_files(["a.json", "b.json", "d/e.json", "d/f.json", "d/README.md"], wanted) == chosen


def test_the_command_gets_a_set_of_the_catalog(hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    entry = replace(CATALOG["aime24"], hub=HubSource("owner/set", COMMIT, ("data/test*.jsonl",)))
    monkeypatch.setitem(CATALOG, "aime24", entry)
    monkeypatch.delenv("RSTAR2_DATA", raising=False)
    result = CliRunner().invoke(app, ["get", "aime24"])
    assert result.exit_code == 0 and Path(result.stdout.strip()).is_relative_to(tmp_path)
    assert [problem.answer for problem in load_benchmark("aime24")] == ["6"]
    go_offline(monkeypatch)
    assert CliRunner().invoke(app, ["get", "aime24"]).exit_code == 0
    assert len(hub.ranges) == 1
    result = CliRunner().invoke(app, ["get", "aime24", "aime25", "--json"])
    assert result.exit_code == ExitCode.INFRASTRUCTURE
    assert json.loads(result.stdout)["failed"] == ["aime25"]


@pytest.mark.parametrize(
    ("paths", "split", "chosen"),
    [
        (["data/train-00000-of-00001.parquet", "data/test-00000-of-00001.parquet"], "train", 0),
        (["train.jsonl", "test.jsonl"], "test", 1),
        (["deepscaler.json", "README.md"], "train", 0),
        (["main/train-0.parquet", "socratic/train-0.parquet"], "train", 0),
    ],
)
def test_splits_by_the_hub_s_habits(paths: list[str], split: str, chosen: int) -> None:
    assert choose_split(paths, split) == [paths[chosen]]


def test_splits_that_are_not_there_or_not_clear() -> None:
    with pytest.raises(UserError, match=r"no data file of the split 'dev'; the files are test\.jsonl"):
        choose_split(["test.jsonl"], "dev")
    with pytest.raises(UserError, match="no data file of the split 'train'"):
        choose_split(["test.jsonl"], "train")
    with pytest.raises(UserError, match=r"in several folders \(cn, en\)"):
        choose_split(["en/train-0.parquet", "cn/train-0.parquet"], "train")
