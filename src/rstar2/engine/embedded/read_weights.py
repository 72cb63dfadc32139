"""The weights of a plain model folder, without the seconds that it takes to import `transformers`' model classes.

Plain is a Llama, Qwen2 or Qwen3 model in one file, with ordinary rotary embeddings, whose tensors are exactly those
that its config.json announces. Everything else, damaged folders included, is left to `load_model`. The weights equal,
bit for bit, those of `load_model` and `share_weights`.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from rstar2.engine.embedded.weights import SUPPORTED_ARCHITECTURES, LayerWeights, Linear, Shape, Weights

_UNUSUAL = ("quantization_config", "rope_scaling", "partial_rotary_factor", "attention_bias", "mlp_bias")
"""Fields that, if they are set, leave the folder to `load_model`."""
_NORMS = ("input_layernorm", "self_attn.q_norm", "self_attn.k_norm", "post_attention_layernorm")


def read_weights(folder: Path, device: torch.device, dtype: torch.dtype) -> Weights | None:
    """The weights; None if the folder is not plain."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        theta = _rope_theta(config)
        expected = _expected_shapes(config)
        if theta is None or len(list(folder.glob("*.safetensors"))) != 1:
            return None
        tensors = load_file(folder / "model.safetensors")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError):
        return None
    if {name: tuple(tensor.shape) for name, tensor in tensors.items()} != expected:
        return None
    return _weights(config, theta, tensors, lambda tensor: tensor.to(device, dtype))


def _rope_theta(config: dict[str, Any]) -> float | None:
    """The base of the rotary embedding; None if anything about the model is not plain."""
    rope = dict(config.get("rope_parameters") or {})
    theta = rope.pop("rope_theta", config.get("rope_theta"))
    has_plain_rope = rope.pop("rope_type", "default") == "default" and not rope and theta is not None
    has_full_attention = not config.get("use_sliding_window") and all(
        kind == "full_attention" for kind in config.get("layer_types") or ()
    )
    is_known = config["model_type"] in SUPPORTED_ARCHITECTURES and config["hidden_act"] == "silu"
    is_plain = has_plain_rope and has_full_attention and is_known and not any(config.get(key) for key in _UNUSUAL)
    return float(theta) if is_plain else None


def _expected_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    head_dim = _head_dim(config)
    num_q, num_kv = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (num_q, hidden),
        "self_attn.k_proj.weight": (num_kv, hidden),
        "self_attn.v_proj.weight": (num_kv, hidden),
        "self_attn.o_proj.weight": (hidden, num_q),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    if config["model_type"] == "qwen2":
        layer |= {f"self_attn.{name}_proj.bias": (num_q if name == "q" else num_kv,) for name in "qkv"}
    if config["model_type"] == "qwen3":
        layer |= {f"self_attn.{name}_norm.weight": (head_dim,) for name in "qk"}
    embedding = (config["vocab_size"], hidden)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": embedding, "model.norm.weight": (hidden,)}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = embedding
    for index in range(config["num_hidden_layers"]):
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in layer.items()}
    return shapes


def _head_dim(config: dict[str, Any]) -> int:
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def _weights(
    config: dict[str, Any], theta: float, tensors: dict[str, Tensor], place: Callable[[Tensor], Tensor]
) -> Weights:
    """The engine's weights. `place` moves a tensor of the file to the engine's device, in its dtype."""
    embedding, head_dim = place(tensors["model.embed_tokens.weight"]), _head_dim(config)
    head = place(tensors["lm_head.weight"]) if "lm_head.weight" in tensors else embedding
    # Computed on the CPU as in `transformers`, to the last bit.
    powers = torch.arange(0, head_dim, 2, dtype=torch.int64).to(dtype=torch.float) / head_dim
    return Weights(
        shape=Shape(
            num_heads=config["num_attention_heads"],
            num_kv_heads=config["num_key_value_heads"],
            head_dim=head_dim,
            vocab_size=config["vocab_size"],
            context_tokens=config["max_position_embeddings"],
            norm_eps=config["rms_norm_eps"],
        ),
        embedding=embedding,
        layers=tuple(_layer(tensors, f"model.layers.{index}.", place) for index in range(config["num_hidden_layers"])),
        final_norm=place(tensors["model.norm.weight"]),
        head=Linear(head, None),
        inverse_frequencies=(1.0 / (theta**powers)).to(embedding.device),
        rope_scaling=1.0,
        model=None,
        addresses=(),
    )


def _layer(tensors: dict[str, Tensor], prefix: str, place: Callable[[Tensor], Tensor]) -> LayerWeights:
    def linear(*names: str) -> Linear:
        # Tensors are joined in the dtype of the file: memory that is new to the process costs more than the conversion.
        weights = [tensors[f"{prefix}{name}_proj.weight"] for name in names]
        biases = [tensors[key] for name in names if (key := f"{prefix}{name}_proj.bias") in tensors]
        return Linear(place(torch.cat(weights)), place(torch.cat(biases)) if biases else None)

    norms = {name: place(weight) for name in _NORMS if (weight := tensors.get(f"{prefix}{name}.weight")) is not None}

    return LayerWeights(
        input_norm=norms["input_layernorm"],
        qkv=linear("self_attn.q", "self_attn.k", "self_attn.v"),
        q_norm=norms.get("self_attn.q_norm"),
        k_norm=norms.get("self_attn.k_norm"),
        attention_out=linear("self_attn.o"),
        mlp_norm=norms["post_attention_layernorm"],
        gate_up=linear("mlp.gate", "mlp.up"),
        down=linear("mlp.down"),
    )
