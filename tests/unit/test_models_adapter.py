"""A folder of adapters is a model: its base with the adapters merged in, as peft would."""

import json
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from rstar2.errors import UserError
from rstar2.models import resolve
from rstar2.models.resolve import CONFIG_FILE
from rstar2.models.tiny import TinySizes, build_tiny

pytestmark = pytest.mark.unit


@pytest.fixture
def adapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RSTAR2_HOME", str(tmp_path / "home"))
    build_tiny(tmp_path / "base", "llama", TinySizes(2, 16, 2, 1, 400, 64), ["some words"], seed=0)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.float32)
    adapted = get_peft_model(model, LoraConfig(r=2, lora_alpha=6, target_modules=["q_proj", "down_proj"]))
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.normal_()
    adapted.peft_config["default"].base_model_name_or_path = str(tmp_path / "base")
    adapted.save_pretrained(tmp_path / "adapter")
    (tmp_path / "adapter" / "agent_format.json").write_text('{"system_text": "as trained"}')
    adapted.merge_and_unload().save_pretrained(tmp_path / "expected")
    return tmp_path / "adapter"


def test_it_is_the_base_with_the_adapters_merged_in_and_made_once(adapter: Path) -> None:
    folder = resolve(str(adapter))
    found, expected = (
        AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        for path in (folder, adapter.parent / "expected")
    )
    for name, parameter in expected.named_parameters():
        torch.testing.assert_close(found.get_parameter(name), parameter, msg=name)
    assert (folder / "tokenizer.json").is_file() and "as trained" in (folder / "agent_format.json").read_text()
    made_at = (folder / "config.json").stat().st_mtime_ns
    assert resolve(adapter) == folder and (folder / "config.json").stat().st_mtime_ns == made_at
    (adapter / "agent_format.json").write_text('{"system_text": "otherwise"}')
    assert resolve(adapter) != folder


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"base_model_name_or_path": None}, "base_model_name_or_path must name"),
        ({"base_model_name_or_path": "nowhere/to/be/found"}, "neither a model folder"),
        ({"peft_type": "IA3"}, "only plain LoRA"),
        ({"modules_to_save": ["lm_head"]}, "only plain LoRA"),
    ],
)
def test_what_cannot_be_merged_is_said(adapter: Path, change: dict[str, object], message: str) -> None:
    config = json.loads((adapter / CONFIG_FILE).read_text())
    (adapter / CONFIG_FILE).write_text(json.dumps(config | change))
    with pytest.raises(UserError, match=message):
        resolve(adapter)


def test_adapters_of_another_model_are_refused(adapter: Path) -> None:
    build_tiny(adapter.parent / "small", "llama", TinySizes(1, 16, 2, 1, 400, 64), ["some words"], seed=0)
    config = json.loads((adapter / CONFIG_FILE).read_text())
    config["base_model_name_or_path"] = str(adapter.parent / "small")
    (adapter / CONFIG_FILE).write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"layers\.1\..*of another model"):
        resolve(adapter)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"r": 0}, "r must be a number of at least 1"),
        ({"r": "two"}, "r must be a number of at least 1"),
        ({"lora_alpha": None}, "lora_alpha a number"),
        ({"base_model_name_or_path": "ITSELF"}, "adapts itself"),
    ],
)
def test_settings_that_cannot_be_are_named(adapter: Path, changed: dict[str, object], sentence: str) -> None:
    settings = json.loads((adapter / CONFIG_FILE).read_text()) | changed
    (adapter / CONFIG_FILE).write_text(json.dumps(settings).replace("ITSELF", str(adapter)))
    with pytest.raises(UserError, match=sentence):
        resolve(adapter)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe" * 20])
def test_damaged_adapters_are_named(adapter: Path, content: bytes) -> None:
    (adapter / "adapter_model.safetensors").write_bytes(content)
    with pytest.raises(UserError, match=r"adapter_model\.safetensors is damaged"):
        resolve(adapter)
