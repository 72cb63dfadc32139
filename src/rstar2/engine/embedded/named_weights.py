"""The engine's parameters under the names that a Hugging Face checkpoint gives them.

Invariant: each tensor is a view of the memory that the engine reads, so writing to it in place updates the engine.
Names of parameters that share memory (a head tied to the embedding) appear once, under the embedding's name.
"""

from collections.abc import Iterator, Sequence

from torch import Tensor

from rstar2.engine.embedded.weights import Linear, Projection, Weights


def named_weights(weights: Weights) -> dict[str, Tensor]:
    """Every parameter by its name. Write to them only while the engine is paused."""
    return dict(_pairs(weights))


def _pairs(weights: Weights) -> Iterator[tuple[str, Tensor]]:
    shape = weights.shape
    num_q, num_kv = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    yield "model.embed_tokens.weight", weights.embedding
    for index, layer in enumerate(weights.layers):
        prefix = f"model.layers.{index}"
        yield f"{prefix}.input_layernorm.weight", layer.input_norm
        yield f"{prefix}.post_attention_layernorm.weight", layer.mlp_norm
        for name, norm in (("q", layer.q_norm), ("k", layer.k_norm)):
            if norm is not None:
                yield f"{prefix}.self_attn.{name}_norm.weight", norm
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        num_inner = _linear(layer.gate_up).weight.shape[0] // 2
        yield from _split(layer.qkv, attention, [("q", num_q), ("k", num_kv), ("v", num_kv)])
        yield from _split(layer.attention_out, attention, [("o", weights.embedding.shape[1])])
        yield from _split(layer.gate_up, mlp, [("gate", num_inner), ("up", num_inner)])
        yield from _split(layer.down, mlp, [("down", weights.embedding.shape[1])])
    yield "model.norm.weight", weights.final_norm
    head = _linear(weights.head).weight
    if head.data_ptr() != weights.embedding.data_ptr():
        yield "lm_head.weight", head


def _split(fused: Projection, prefix: str, parts: Sequence[tuple[str, int]]) -> Iterator[tuple[str, Tensor]]:
    linear, start = _linear(fused), 0
    for name, num_rows in parts:
        rows = slice(start, start + num_rows)
        yield f"{prefix}.{name}_proj.weight", linear.weight[rows]
        if linear.bias is not None:
            yield f"{prefix}.{name}_proj.bias", linear.bias[rows]
        start += num_rows


def _linear(projection: Projection) -> Linear:
    assert isinstance(projection, Linear)
    return projection
