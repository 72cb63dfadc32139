"""A model from nothing: a plain Hugging Face folder, the same for the same seed."""

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
from train_models import SIZES, build_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from rstar2.errors import UserError
from rstar2.models.tiny import CONTROL_TOKENS, TAGS, build_tiny

pytestmark = pytest.mark.unit


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_the_same_seed_builds_the_same_bytes(tmp_path: Path) -> None:
    assert digests(build_model(tmp_path / "a")) == digests(build_model(tmp_path / "b"))


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_transformers_loads_it_like_any_other(tmp_path: Path, architecture: str) -> None:
    build_model(tmp_path, architecture)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert model.config.model_type == architecture
    assert model.config.eos_token_id == tokenizer.convert_tokens_to_ids("<|im_end|>") == tokenizer.eos_token_id
    assert len(tokenizer) == model.config.vocab_size == SIZES.vocab_size
    for word in (*CONTROL_TOKENS, *TAGS, "07", "42"):
        assert len(tokenizer.encode(word, add_special_tokens=False)) == 1, word
    text = "print(10 ** 3) # é 🎈\n<answer>\\boxed{1234567}</answer>"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert tokenizer.decode([ids[-5]]) in "1234567"
    rendered = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    assert rendered == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


def test_seeds_and_architectures(tmp_path: Path) -> None:
    for seed in (1, 2):
        build_tiny(tmp_path / str(seed), "llama", replace(SIZES, num_layers=1), ["a b c"], seed)
    one, two = (digests(tmp_path / name) for name in ("1", "2"))
    assert one["model.safetensors"] != two["model.safetensors"]
    assert one["tokenizer.json"] == two["tokenizer.json"]
    with pytest.raises(UserError, match="llama or qwen3, not 'gpt2'"):
        build_tiny(tmp_path, "gpt2", SIZES, [], 0)
