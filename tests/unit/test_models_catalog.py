"""Names, places and cards of models: what needs no download."""

import json
import re
from pathlib import Path

import pytest

from rstar2.errors import UserError
from rstar2.models import (
    AGENTS,
    CATALOG,
    ModelCard,
    ModelSource,
    Verification,
    data_home,
    find_entry,
    model_folder,
    resolve,
)
from rstar2.models.card import CARD_NAME, file_sizes, read_card, write_card
from rstar2.models.resolve import base_name

pytestmark = pytest.mark.unit


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RSTAR2_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def finished_folder(folder: Path, name: str) -> ModelCard:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    card = ModelCard(
        name=name,
        source=ModelSource.HUB,
        origin="owner/repo",
        pin="0" * 40,
        licence="Apache-2.0",
        quantization=None,
        verification=Verification.GENERATED,
        fetched_at="2026-01-01T00:00:00+00:00",
        file_bytes=file_sizes(folder),
    )
    write_card(folder, card)
    return card


def test_every_entry_is_pinned_to_bytes() -> None:
    for name, entry in CATALOG.items():
        assert name == entry.name == name.lower()
        assert re.fullmatch(r"[0-9a-f]{40}", entry.revision)
        assert entry.licence
        if entry.wheel is not None:
            assert re.fullmatch(r"[0-9a-f]{64}", entry.wheel.sha256)
            assert "==" in entry.wheel.requirement
    assert CATALOG["smollm2-135m"].wheel is not None


def test_an_unknown_name_gets_the_nearest_one() -> None:
    with pytest.raises(UserError, match="did you mean 'smollm2-135m'"):
        find_entry("SmolLM2-135")
    with pytest.raises(UserError, match="it has smollm2-135m, "):
        find_entry("zzz")


def test_data_home_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RSTAR2_HOME", raising=False)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    assert data_home() == tmp_path / ".local" / "share" / "rstar2"
    monkeypatch.setenv("XDG_DATA_HOME", "relative/is/ignored")
    assert data_home() == tmp_path / ".local" / "share" / "rstar2"
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "xdg"))
    assert data_home() == tmp_path / "xdg" / "rstar2"
    monkeypatch.setenv("RSTAR2_HOME", "~/mine")
    assert data_home() == tmp_path / "mine"
    assert model_folder("smollm2-135m") == tmp_path / "mine" / "models" / "smollm2-135m"


def test_resolve_takes_a_name_or_a_folder(home: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="rstar2 models get smollm2-135m"):
        resolve("smollm2-135m")
    finished_folder(home / "models" / "smollm2-135m", "smollm2-135m")
    assert resolve("smollm2-135m") == home / "models" / "smollm2-135m"

    own = tmp_path / "checkpoint"
    own.mkdir()
    with pytest.raises(UserError, match=r"no config\.json"):
        resolve(own)
    (own / "config.json").write_text("{}")
    assert resolve(own) == resolve(str(own)) == own

    with pytest.raises(UserError, match=r"neither a model folder nor a name.*'qwen3-0\.6b'"):
        resolve("qwen3-0.6")


def test_an_agent_of_ours_needs_only_the_model_that_it_adapts(home: Path) -> None:
    agent = AGENTS["smollm2-135m-agent"]
    assert base_name(agent.folder) == agent.base
    assert sum(file.stat().st_size for file in agent.folder.iterdir()) < 20_000_000
    assert "## Limits" in (agent.folder / "README.md").read_text()
    assert not home.exists()
    with pytest.raises(UserError, match="rstar2 models get smollm2-135m`"):
        resolve("smollm2-135m-agent")


def test_a_path_never_means_the_catalog(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finished_folder(home / "models" / "smollm2-135m", "smollm2-135m")
    (tmp_path / "smollm2-135m").mkdir()
    (tmp_path / "smollm2-135m" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert resolve("./smollm2-135m") == resolve(Path("smollm2-135m")) == tmp_path / "smollm2-135m"
    assert resolve("smollm2-135m") == home / "models" / "smollm2-135m"


def test_a_card_holds_only_while_its_files_do(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    card = finished_folder(folder, "smollm2-135m")
    assert read_card(folder) == card
    assert card.num_bytes == len("{}") + len("weights")
    (folder / "model.safetensors").write_bytes(b"weig")
    assert read_card(folder) is None
    (folder / "model.safetensors").unlink()
    assert read_card(folder) is None


@pytest.mark.parametrize(
    "text", ["", "not json", "[]", '{"name": 3}', '{"name": "smollm2-135m", "schema_version": 99}']
)
def test_a_broken_or_newer_card_is_no_card(tmp_path: Path, text: str) -> None:
    (tmp_path / CARD_NAME).write_text(text)
    assert read_card(tmp_path) is None


def test_a_card_is_plain_json(tmp_path: Path) -> None:
    finished_folder(tmp_path / "model", "smollm2-135m")
    document = json.loads((tmp_path / "model" / CARD_NAME).read_text())
    assert document["source"] == "hub"
    assert document["verification"] == "generated"
    assert document["file_bytes"] == {"config.json": 2, "model.safetensors": 7}
