"""Weights of a llama GGUF file as the tensors that `LlamaForCausalLM` loads.

llama.cpp rotates neighbouring pairs of a head's rows where transformers rotates its two halves, so its converter
permutes the rows of the query and key projections. Here that is undone; every other tensor only changes its name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rstar2.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    import torch

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
    """`blk.3.attn_q.weight` to `model.layers.3.self_attn.q_proj.weight`."""
    if gguf_name in _OUTER_NAMES:
        return _OUTER_NAMES[gguf_name]
    prefix, _, rest = gguf_name.partition(".")
    layer, _, part = rest.partition(".")
    if prefix == "blk" and layer.isdecimal() and part in _LAYER_NAMES:
        return f"model.layers.{layer}.{_LAYER_NAMES[part]}"
    raise UserError(f"GGUF tensor {gguf_name!r} is not part of a plain llama model")


def undo_rotary_permutation(weights: np.ndarray, num_heads: int) -> np.ndarray:
    """Rows of each head from llama.cpp's (pair, member) order back to (half, position)."""
    num_pairs = weights.shape[0] // num_heads // 2
    by_pair = weights.reshape(num_heads, num_pairs, 2, *weights.shape[1:])
    return by_pair.swapaxes(1, 2).reshape(weights.shape)


def to_bfloat16(tensor: Any, num_heads: int, num_kv_heads: int) -> torch.Tensor:
    """One `gguf.ReaderTensor`, dequantized."""
    import torch
    from gguf.quants import dequantize

    weights = dequantize(tensor.data, tensor.tensor_type)
    if tensor.name.endswith(".attn_q.weight"):
        weights = undo_rotary_permutation(weights, num_heads)
    elif tensor.name.endswith(".attn_k.weight"):
        weights = undo_rotary_permutation(weights, num_kv_heads)
    # Copied: the reader's arrays are views of a read-only file.
    return torch.tensor(weights).to(torch.bfloat16)
