"""The engine's parameters by name: all of a checkpoint's, as views of what the engine reads."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from rstar2.engine.embedded.named_weights import named_weights
from rstar2.engine.embedded.read_weights import read_weights
from rstar2.engine.embedded.weights import load_model, share_weights
from rstar2.models.tiny import TinySizes, build_tiny

pytestmark = pytest.mark.unit

CPU = torch.device("cpu")


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
@pytest.mark.parametrize("is_tied", [True, False])
def test_they_are_the_checkpoints_and_writing_to_them_updates_the_model(
    architecture: str, is_tied: bool, tmp_path: Path
) -> None:
    build_tiny(tmp_path, architecture, TinySizes(2, 32, 4, 2, 400, 64), ["some words"], seed=0)
    expected = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    if not is_tied:
        expected.config.tie_word_embeddings = False
        expected.lm_head.weight = torch.nn.Parameter(expected.lm_head.weight.detach() * 2)
        expected.save_pretrained(tmp_path)
    parameters = dict(expected.named_parameters())
    read = read_weights(tmp_path, CPU, torch.float32)
    model = load_model(tmp_path, CPU, torch.float32)
    assert read is not None
    for weights in (read, share_weights(model)):
        named = named_weights(weights)
        assert named.keys() == parameters.keys()
        assert all(torch.equal(named[name], parameter) for name, parameter in parameters.items())
    named["model.layers.1.self_attn.k_proj.weight"].fill_(3.0)
    assert bool((model.model.layers[1].self_attn.k_proj.weight == 3.0).all())
