"""Weights read without `transformers` are those that it gives, bit for bit; what is not plain is left to it."""

import json
from pathlib import Path

import pytest
import torch

from rstar2.engine.embedded.read_weights import read_weights
from rstar2.engine.embedded.weights import LayerWeights, Linear, load_model, share_weights
from rstar2.models.tiny import TinySizes, build_tiny

pytestmark = pytest.mark.unit

CPU = torch.device("cpu")


def tensors(value: object) -> list[torch.Tensor]:
    match value:
        case torch.Tensor():
            return [value]
        case Linear(weight=weight, bias=bias):
            return [weight, *([] if bias is None else [bias])]
        case LayerWeights():
            return [each for name in value.__slots__ for each in tensors(getattr(value, name))]
    return []


@pytest.fixture(params=["llama", "qwen3", "qwen2"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param != "qwen2":
        build_tiny(tmp_path, request.param, TinySizes(2, 32, 4, 2, 400, 64), ["some words"], seed=0)
        return tmp_path
    from transformers import Qwen2Config, Qwen2ForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 300}
    config = Qwen2Config(**sizes, num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=False)
    model = Qwen2ForCausalLM(config)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)
    model.save_pretrained(tmp_path)
    return tmp_path


def test_what_is_read_is_what_transformers_gives(folder: Path) -> None:
    read, given = read_weights(folder, CPU, torch.float32), share_weights(load_model(folder, CPU, torch.float32))
    assert read is not None
    assert (read.shape, read.rope_scaling) == (given.shape, given.rope_scaling)
    ours, theirs = (
        [each.embedding, each.final_norm, each.inverse_frequencies, *tensors(each.head)]
        + [tensor for layer in each.layers for tensor in tensors(layer)]
        for each in (read, given)
    )
    assert len(ours) == len(theirs) >= 16
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


@pytest.mark.parametrize(
    "change",
    [
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
        {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
        {"quantization_config": {"quant_method": "fp8"}},
        {"use_sliding_window": True},
        {"layer_types": ["sliding_attention", "full_attention"]},
        {"attention_bias": True},
        {"model_type": "mistral"},
        {"hidden_act": "gelu"},
        {"num_hidden_layers": 3},
        {"intermediate_size": 31},
        {"hidden_size": None},
    ],
    ids=str,
)
def test_what_is_not_plain_is_left_to_transformers(folder: Path, change: dict[str, object]) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    assert read_weights(folder, CPU, torch.float32) is None


def test_a_damaged_folder_is_left_to_transformers(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert read_weights(folder, CPU, torch.float32) is None
    (folder / "config.json").write_text("{")
    assert read_weights(folder, CPU, torch.float32) is None


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_the_tokenizer_class_is_the_one_that_transformers_chooses(tmp_path: Path, architecture: str) -> None:
    from transformers import AutoTokenizer

    from rstar2.agent import HfTokenizer

    build_tiny(tmp_path, architecture, TinySizes(2, 32, 4, 2, 400, 64), ["some words"], seed=0)
    ours, theirs = HfTokenizer.load(tmp_path)._tokenizer, AutoTokenizer.from_pretrained(tmp_path)
    assert type(ours) is type(theirs)
    assert ours.backend_tokenizer.to_str() == theirs.backend_tokenizer.to_str()
    assert (ours.chat_template, ours.eos_token_id) == (theirs.chat_template, theirs.eos_token_id)
    assert ours.added_tokens_decoder == theirs.added_tokens_decoder
