"""Converts a llama GGUF file to a Hugging Face folder: configuration, bfloat16 weights, tokenizer.

Dequantizing loses nothing more than the quantization did, except for the rounding to bfloat16. llama.cpp rotates
neighbouring pairs of a head's rows where transformers rotates its two halves, so its converter permutes the rows of the
query and key projections. Here that is undone; every other tensor only changes its name. GGUF only names the way text
is split before byte-pair merging (`tokenizer.ggml.pre`), so each name has to be known here. `smollm` splits every digit
off, then splits as GPT-2 does.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rstar2.errors import UserError
from rstar2.models.progress import FetchProgress

if TYPE_CHECKING:
    import numpy as np
    import torch
if TYPE_CHECKING:
    from tokenizers import Tokenizer


_OUTER_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}

_LAYER_NAMES = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}


def hf_name(gguf_name: str) -> str:
    """Maps `blk.3.attn_q.weight` to `model.layers.3.self_attn.q_proj.weight`."""
    if gguf_name in _OUTER_NAMES:
        return _OUTER_NAMES[gguf_name]
    prefix, _, rest = gguf_name.partition(".")
    layer, _, part = rest.partition(".")
    if prefix == "blk" and layer.isdecimal() and part in _LAYER_NAMES:
        return f"model.layers.{layer}.{_LAYER_NAMES[part]}"
    raise UserError(f"GGUF tensor {gguf_name!r} is not part of a plain llama model")


def undo_rotary_permutation(weights: np.ndarray, num_heads: int) -> np.ndarray:
    """Puts the rows of each head from llama.cpp's (pair, member) order back to (half, position)."""
    num_pairs = weights.shape[0] // num_heads // 2
    by_pair = weights.reshape(num_heads, num_pairs, 2, *weights.shape[1:])
    return by_pair.swapaxes(1, 2).reshape(weights.shape)


def to_bfloat16(tensor: Any, num_heads: int, num_kv_heads: int) -> torch.Tensor:
    """Dequantizes one `gguf.ReaderTensor`."""
    import torch
    from gguf.quants import dequantize

    weights = dequantize(tensor.data, tensor.tensor_type)
    if tensor.name.endswith(".attn_q.weight"):
        weights = undo_rotary_permutation(weights, num_heads)
    elif tensor.name.endswith(".attn_k.weight"):
        weights = undo_rotary_permutation(weights, num_kv_heads)
    # Copied: the reader's arrays are views of a read-only file.
    return torch.tensor(weights).to(torch.bfloat16)


_NORMAL, _CONTROL = 1, 3
"""Values of `tokenizer.ggml.token_type`."""


def write_tokenizer(metadata: dict[str, Any], folder: Path) -> None:
    """Writes tokenizer.json, tokenizer_config.json and chat_template.jinja."""
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    control_tokens = _control_tokens(metadata)
    build_tokenizer(metadata).save(str(folder / "tokenizer.json"))
    config = {
        # This class takes tokenizer.json as it is; GPT2Tokenizer would replace our splitting by its own.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[metadata["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[metadata["tokenizer.ggml.eos_token_id"]],
        "unk_token": tokens[metadata["tokenizer.ggml.unknown_token_id"]],
        "pad_token": tokens[metadata["tokenizer.ggml.padding_token_id"]],
        "model_max_length": metadata["llama.context_length"],
        "clean_up_tokenization_spaces": False,
        "added_tokens_decoder": {
            str(tokens.index(token)): {
                "content": token,
                "lstrip": False,
                "normalized": False,
                "rstrip": False,
                "single_word": False,
                "special": True,
            }
            for token in control_tokens
        },
    }
    _write_json(folder / "tokenizer_config.json", config)
    (folder / "chat_template.jinja").write_text(metadata["tokenizer.chat_template"], encoding="utf-8")


def build_tokenizer(metadata: dict[str, Any]) -> Tokenizer:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    _refuse_unknown_kinds(metadata)
    vocabulary = {token: index for index, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token in _control_tokens(metadata)]
    )
    return tokenizer


def _control_tokens(metadata: dict[str, Any]) -> list[str]:
    kinds = zip(metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"], strict=True)
    return [token for token, kind in kinds if kind == _CONTROL]


def _refuse_unknown_kinds(metadata: dict[str, Any]) -> None:
    """Refuses unknown kinds of tokenizers: one that is nearly right is worse than none, because its ids look
    plausible."""
    for key, supported in (("tokenizer.ggml.model", "gpt2"), ("tokenizer.ggml.pre", "smollm")):
        if metadata.get(key) != supported:
            raise UserError(f"GGUF field {key} is {metadata.get(key)!r}; only {supported!r} can be converted")
    for key in ("tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_space_prefix"):
        if metadata.get(key, False):
            raise UserError(f"GGUF field {key} is set; such tokenizers cannot be converted")
    other_kinds = set(metadata["tokenizer.ggml.token_type"]) - {_NORMAL, _CONTROL}
    if other_kinds:
        raise UserError(f"GGUF field tokenizer.ggml.token_type holds {sorted(other_kinds)}; only 1 and 3 are known")


def convert_gguf(gguf_path: Path, folder: Path, progress: FetchProgress) -> None:
    """Converts a GGUF file into the existing `folder`."""
    from gguf import GGUFReader

    reader = GGUFReader(gguf_path)
    metadata = {name: field.contents() for name, field in reader.fields.items()}
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise UserError(f"{gguf_path.name} holds a {architecture!r} model; only 'llama' can be converted")
    tied_head = all(tensor.name != "output.weight" for tensor in reader.tensors)
    _write_json(folder / "config.json", model_config(metadata, tied_head=tied_head))
    _write_json(folder / "generation_config.json", _special_ids(metadata))
    write_tokenizer(metadata, folder)
    _write_weights(reader.tensors, metadata, folder / "model.safetensors", progress)


def model_config(metadata: dict[str, Any], *, tied_head: bool) -> dict[str, Any]:
    """The config.json of a `LlamaForCausalLM`."""
    hidden_size: int = metadata["llama.embedding_length"]
    num_heads: int = metadata["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "mlp_bias": False,
        "hidden_act": "silu",
        "hidden_size": hidden_size,
        "head_dim": metadata.get("llama.attention.key_length", hidden_size // num_heads),
        "intermediate_size": metadata["llama.feed_forward_length"],
        "num_hidden_layers": metadata["llama.block_count"],
        "num_attention_heads": num_heads,
        "num_key_value_heads": metadata["llama.attention.head_count_kv"],
        "max_position_embeddings": metadata["llama.context_length"],
        "rms_norm_eps": _shortest(metadata["llama.attention.layer_norm_rms_epsilon"]),
        "rope_theta": _shortest(metadata["llama.rope.freq_base"]),
        "tie_word_embeddings": tied_head,
        "torch_dtype": "bfloat16",
        "vocab_size": len(metadata["tokenizer.ggml.tokens"]),
        **_special_ids(metadata),
    }


def _special_ids(metadata: dict[str, Any]) -> dict[str, int]:
    return {
        "bos_token_id": metadata["tokenizer.ggml.bos_token_id"],
        "eos_token_id": metadata["tokenizer.ggml.eos_token_id"],
        "pad_token_id": metadata["tokenizer.ggml.padding_token_id"],
    }


def _shortest(value: float) -> float:
    """The decimal that a stored float32 stands for: 1e-05 and not 9.999999747378752e-06."""
    import numpy as np

    return float(str(np.float32(value)))


def _write_weights(tensors: Any, metadata: dict[str, Any], path: Path, progress: FetchProgress) -> None:
    from safetensors.torch import save

    num_heads: int = metadata["llama.attention.head_count"]
    num_kv_heads: int = metadata["llama.attention.head_count_kv"]
    weights = {}
    num_bytes_done = 0
    with progress.stage("dequantizing", sum(2 * int(tensor.n_elements) for tensor in tensors)) as advance:
        for tensor in tensors:
            weights[hf_name(tensor.name)] = to_bfloat16(tensor, num_heads, num_kv_heads)
            num_bytes_done += 2 * int(tensor.n_elements)
            advance(num_bytes_done)
        # We write the file ourselves, so that a full disk raises an OSError and not an error of the library.
        path.write_bytes(save(weights, metadata={"format": "pt"}))


def _write_json(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
