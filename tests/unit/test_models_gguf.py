"""A GGUF file that the test writes itself, with values that survive quantization exactly, back to the original."""

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from rstar2.errors import UserError
from rstar2.models.gguf_convert import convert_gguf, hf_name, undo_rotary_permutation
from rstar2.models.progress import SilentProgress

pytestmark = pytest.mark.unit

HIDDEN, FFN, HEADS, KV_HEADS = 64, 96, 4, 2
HEAD_DIM = HIDDEN // HEADS
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *"abcx=12Ġ½", "ab", "Ġab", "12", "Â", "½Â"]
MERGES = ["a b", "Ġ ab", "1 2", "½ Â"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"


def exact_in_q4_1(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """Multiples of 0.25 from -2 to 1.75, both ends in every block of 32: four bits hold them without loss."""
    steps = rng.integers(0, 16, size=(rows, columns // 32, 32))
    steps[..., 0], steps[..., 1] = 0, 15
    return (steps.reshape(rows, columns) * 0.25 - 2.0).astype(np.float32)


def exact_in_q8_0(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    steps = rng.integers(-127, 128, size=(rows, columns // 32, 32))
    steps[..., 0] = 127
    return (steps.reshape(rows, columns) * 0.5).astype(np.float32)


def llama_cpp_permutation(weights: np.ndarray, num_heads: int) -> np.ndarray:
    """As llama.cpp's converter writes query and key rows."""
    halves = weights.reshape(num_heads, 2, weights.shape[0] // num_heads // 2, weights.shape[1])
    return halves.swapaxes(1, 2).reshape(weights.shape)


def original_weights() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    layer = "model.layers.0"
    return {
        "model.embed_tokens.weight": exact_in_q8_0(rng, len(TOKENS), HIDDEN),
        "model.norm.weight": np.full(HIDDEN, 1.25, dtype=np.float32),
        f"{layer}.input_layernorm.weight": np.full(HIDDEN, 0.75, dtype=np.float32),
        f"{layer}.post_attention_layernorm.weight": np.full(HIDDEN, 1.5, dtype=np.float32),
        f"{layer}.self_attn.q_proj.weight": exact_in_q4_1(rng, HEADS * HEAD_DIM, HIDDEN),
        f"{layer}.self_attn.k_proj.weight": exact_in_q4_1(rng, KV_HEADS * HEAD_DIM, HIDDEN),
        f"{layer}.self_attn.v_proj.weight": exact_in_q4_1(rng, KV_HEADS * HEAD_DIM, HIDDEN),
        f"{layer}.self_attn.o_proj.weight": exact_in_q4_1(rng, HIDDEN, HEADS * HEAD_DIM),
        f"{layer}.mlp.gate_proj.weight": exact_in_q4_1(rng, FFN, HIDDEN),
        f"{layer}.mlp.up_proj.weight": exact_in_q4_1(rng, FFN, HIDDEN),
        f"{layer}.mlp.down_proj.weight": exact_in_q4_1(rng, HIDDEN, FFN),
    }


def gguf_tensors(weights: dict[str, np.ndarray]) -> dict[str, tuple[np.ndarray, gguf.GGMLQuantizationType]]:
    q4, q8, f32 = (gguf.GGMLQuantizationType[name] for name in ("Q4_1", "Q8_0", "F32"))
    layer = "model.layers.0"
    return {
        "token_embd.weight": (weights["model.embed_tokens.weight"], q8),
        "output_norm.weight": (weights["model.norm.weight"], f32),
        "blk.0.attn_norm.weight": (weights[f"{layer}.input_layernorm.weight"], f32),
        "blk.0.ffn_norm.weight": (weights[f"{layer}.post_attention_layernorm.weight"], f32),
        "blk.0.attn_q.weight": (llama_cpp_permutation(weights[f"{layer}.self_attn.q_proj.weight"], HEADS), q4),
        "blk.0.attn_k.weight": (llama_cpp_permutation(weights[f"{layer}.self_attn.k_proj.weight"], KV_HEADS), q4),
        "blk.0.attn_v.weight": (weights[f"{layer}.self_attn.v_proj.weight"], q4),
        "blk.0.attn_output.weight": (weights[f"{layer}.self_attn.o_proj.weight"], q4),
        "blk.0.ffn_gate.weight": (weights[f"{layer}.mlp.gate_proj.weight"], q4),
        "blk.0.ffn_up.weight": (weights[f"{layer}.mlp.up_proj.weight"], q4),
        "blk.0.ffn_down.weight": (weights[f"{layer}.mlp.down_proj.weight"], q4),
    }


def write_gguf(path: Path, weights: dict[str, np.ndarray], architecture: str = "llama", pre: str = "smollm") -> None:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(100_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, 3, *[1] * (len(TOKENS) - 3)])
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    for name, (values, kind) in gguf_tensors(weights).items():
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def converted(tmp_path: Path) -> Path:
    write_gguf(tmp_path / "tiny.gguf", original_weights())
    folder = tmp_path / "folder"
    folder.mkdir()
    convert_gguf(tmp_path / "tiny.gguf", folder, SilentProgress())
    return folder


def test_every_weight_comes_back(converted: Path) -> None:
    loaded = load_file(converted / "model.safetensors")
    originals = original_weights()
    assert loaded.keys() == originals.keys()
    for name, values in originals.items():
        assert loaded[name].dtype == torch.bfloat16
        assert torch.equal(loaded[name].float(), torch.tensor(values).bfloat16().float()), name


def test_the_rotary_permutation_by_hand() -> None:
    """One head of six rows: llama.cpp stores the halves (0 1 2 | 3 4 5) as the pairs (0 3) (1 4) (2 5)."""
    stored = np.array([[0], [3], [1], [4], [2], [5]])
    assert undo_rotary_permutation(stored, num_heads=1).ravel().tolist() == [0, 1, 2, 3, 4, 5]
    two_heads = np.array([[0], [2], [1], [3], [10], [12], [11], [13]])
    assert undo_rotary_permutation(two_heads, num_heads=2).ravel().tolist() == [0, 1, 2, 3, 10, 11, 12, 13]


def test_the_configuration(converted: Path) -> None:
    config = json.loads((converted / "config.json").read_text())
    assert config["rms_norm_eps"] == 1e-5
    assert config["rope_theta"] == 100_000.0
    assert config["tie_word_embeddings"] is True
    assert (config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]) == (HEADS, KV_HEADS, 16)
    assert config["vocab_size"] == len(TOKENS)
    assert json.loads((converted / "generation_config.json").read_text())["eos_token_id"] == 2


def test_the_tokenizer_splits_every_digit(converted: Path) -> None:
    tokenizer = Tokenizer.from_file(str(converted / "tokenizer.json"))
    assert tokenizer.encode("x=12 ab").tokens == ["x", "=", "1", "2", "Ġab"]
    assert tokenizer.encode("½½").tokens == ["Â", "½", "Â", "½"]
    assert tokenizer.encode("<|im_start|>ab<|im_end|>").tokens == ["<|im_start|>", "ab", "<|im_end|>"]
    assert tokenizer.decode(tokenizer.encode("x=12 ab").ids) == "x=12 ab"


def test_special_tokens_and_template(converted: Path) -> None:
    config = json.loads((converted / "tokenizer_config.json").read_text())
    assert (config["bos_token"], config["eos_token"], config["unk_token"]) == tuple(TOKENS[i] for i in (1, 2, 0))
    assert [entry["content"] for entry in config["added_tokens_decoder"].values()] == TOKENS[:3]
    assert (converted / "chat_template.jinja").read_text() == TEMPLATE


@pytest.mark.parametrize(("architecture", "pre", "named"), [("qwen2", "smollm", "qwen2"), ("llama", "qwen2", "pre")])
def test_what_is_not_known_is_refused(tmp_path: Path, architecture: str, pre: str, named: str) -> None:
    write_gguf(tmp_path / "other.gguf", original_weights(), architecture, pre)
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match=named):
        convert_gguf(tmp_path / "other.gguf", tmp_path / "folder", SilentProgress())


@pytest.mark.parametrize(
    "name", ["rope_freqs.weight", "blk.0.attn_q.bias", "blk.x.attn_q.weight", "v.blk.0.ln1.weight"]
)
def test_a_tensor_of_another_model_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="not part of a plain llama"):
        hf_name(name)


def test_transformers_own_reader_agrees(tmp_path: Path, converted: Path) -> None:
    """The same file, read by transformers' GGUF loader."""
    from transformers import AutoModelForCausalLM, GgufConfig

    reference = AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file="tiny.gguf", dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    ).state_dict()
    ours = AutoModelForCausalLM.from_pretrained(converted, dtype="auto").state_dict()
    assert ours.keys() == reference.keys()
    assert all(torch.equal(ours[name], reference[name]) for name in ours)
