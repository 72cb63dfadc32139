"""The parameters of a Hugging Face model, as the engine's forward pass reads them. No copy of them is kept.

Invariant: the engine and the model share the same memory. Projections that read the same input are fused into one
matrix, and the model's own parameters become views of its rows; an in-place update of a parameter (by an optimizer or
`copy_`) updates the engine. Replacing a parameter's storage (`model.to(...)`) breaks this, and is detected.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from rstar2.errors import UserError

SUPPORTED_ARCHITECTURES = ("llama", "qwen2", "qwen3")


@dataclass(frozen=True, slots=True)
class Linear:
    weight: Tensor
    bias: Tensor | None

    def __call__(self, input: Tensor) -> Tensor:
        return nn.functional.linear(input, self.weight, self.bias)


Projection = Callable[[Tensor], Tensor]
Multiply = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""A product of inputs and weight plus bias, like `torch.nn.functional.linear`."""


@dataclass(frozen=True, slots=True)
class LayerWeights:
    input_norm: Tensor
    qkv: Projection
    q_norm: Tensor | None
    k_norm: Tensor | None
    attention_out: Projection
    mlp_norm: Tensor
    gate_up: Projection
    down: Projection


@dataclass(frozen=True, slots=True)
class Shape:
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context_tokens: int
    norm_eps: float


@dataclass(frozen=True)
class Weights:
    shape: Shape
    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor
    head: Projection
    inverse_frequencies: Tensor
    rope_scaling: float
    model: nn.Module | None
    """The model that owns the parameters; None if it is in another process."""
    addresses: tuple[int, ...]

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    @property
    def activation_dtype(self) -> torch.dtype:
        """The format of hidden states and of the cache. A CPU multiplies matrices fast in bfloat16, and little else."""
        return torch.float32 if self.device.type == "cpu" else self.dtype

    @property
    def kv_bytes_per_token(self) -> int:
        num_values = 2 * len(self.layers) * self.shape.num_kv_heads * self.shape.head_dim
        return num_values * self.activation_dtype.itemsize

    def check_shared(self) -> None:
        assert self.model is None or _addresses(self.model) == self.addresses, (
            "a parameter of the model was moved or replaced after the engine was built on it: "
            "update parameters in place, or build a new engine"
        )


def load_model(folder: Path, device: torch.device, dtype: torch.dtype) -> Any:
    """The `transformers` model in that folder."""
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # type: ignore[no-untyped-call]
    load_config(folder)
    if not any(folder.glob("*.safetensors")):
        raise UserError(f"model: there are no weights (*.safetensors) in {folder}: get the model again")
    with _load_errors(folder):
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
    return model.to(device).eval()


def load_config(folder: Path) -> Any:
    """The config of the model in that folder, which the embedded engine can run."""
    from transformers import AutoConfig

    if not (folder / "config.json").is_file():
        raise UserError(f"model: there is no config.json in {folder}: give a Hugging Face model folder")
    with _load_errors(folder):
        config = AutoConfig.from_pretrained(folder)
        _require_supported(config)
    return config


@contextmanager
def _load_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except UserError:
        raise
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RuntimeError, SafetensorError) as error:
        # `transformers` raises these for a config.json of other weights, or for a truncated file.
        reason = str(error).partition("\n")[0]
        raise UserError(f"model: {folder} cannot be loaded ({reason}): get or export the model again") from error


def share_weights(model: Any) -> Weights:
    """The parameters of a loaded Llama, Qwen2 or Qwen3 model, whose projections become views of fused ones."""
    config = model.config
    _require_supported(config)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    with torch.no_grad():
        layers = tuple(_share_layer(layer) for layer in model.model.layers)
    return Weights(
        shape=Shape(
            num_heads=config.num_attention_heads,
            num_kv_heads=config.num_key_value_heads,
            head_dim=head_dim,
            vocab_size=config.vocab_size,
            context_tokens=config.max_position_embeddings,
            norm_eps=config.rms_norm_eps,
        ),
        embedding=model.model.embed_tokens.weight.data,
        layers=layers,
        final_norm=model.model.norm.weight.data,
        head=Linear(model.lm_head.weight.data, None),
        inverse_frequencies=model.model.rotary_emb.inv_freq,
        rope_scaling=model.model.rotary_emb.attention_scaling,
        model=model,
        addresses=_addresses(model),
    )


def _addresses(model: nn.Module) -> tuple[int, ...]:
    return tuple(parameter.data_ptr() for parameter in model.parameters())


def _require_supported(config: Any) -> None:
    if config.model_type not in SUPPORTED_ARCHITECTURES:
        raise UserError(
            f"model: the embedded engine runs {', '.join(SUPPORTED_ARCHITECTURES)}, not {config.model_type}: "
            f"use the vllm engine for it"
        )
    if config.hidden_act != "silu":
        raise UserError(f"model: the embedded engine knows the activation silu, not {config.hidden_act}")
    if any(kind != "full_attention" for kind in getattr(config, "layer_types", None) or ()):
        raise UserError("model: the embedded engine has no sliding-window attention: use the vllm engine")
    rope_type = config.rope_parameters["rope_type"]
    if rope_type in ("dynamic", "longrope"):
        raise UserError(f"model: rotary embeddings of type {rope_type} change with the length: use the vllm engine")


def _share_layer(layer: Any) -> LayerWeights:
    attention, mlp = layer.self_attn, layer.mlp
    has_norms = hasattr(attention, "q_norm")
    return LayerWeights(
        input_norm=layer.input_layernorm.weight.data,
        qkv=_fuse((attention.q_proj, attention.k_proj, attention.v_proj)),
        q_norm=attention.q_norm.weight.data if has_norms else None,
        k_norm=attention.k_norm.weight.data if has_norms else None,
        attention_out=_fuse((attention.o_proj,)),
        mlp_norm=layer.post_attention_layernorm.weight.data,
        gate_up=_fuse((mlp.gate_proj, mlp.up_proj)),
        down=_fuse((mlp.down_proj,)),
    )


def _fuse(layers: tuple[nn.Module, ...]) -> Linear:
    for layer in layers:
        if type(layer) is not nn.Linear:
            raise UserError(
                f"model: a projection is a {type(layer).__name__}, not a plain Linear: merge adapters and load without "
                f"quantization before the engine is built"
            )
    linears = [layer for layer in layers if isinstance(layer, nn.Linear)]
    biases = [linear.bias for linear in linears if linear.bias is not None]
    return Linear(_join([linear.weight for linear in linears]), _join(biases) if biases else None)


def _join(parameters: Sequence[Tensor]) -> Tensor:
    """One tensor whose consecutive views the parameters become, or are already if an engine was built on them."""
    joined = _as_one(parameters)
    if joined is None:
        joined = torch.cat([parameter.data for parameter in parameters])
        start = 0
        for parameter in parameters:
            parameter.data = joined[start : start + len(parameter)]
            start += len(parameter)
    return joined


def _as_one(parameters: Sequence[Tensor]) -> Tensor | None:
    first = parameters[0].data
    address = first.data_ptr()
    for parameter in parameters:
        if parameter.data_ptr() != address or not parameter.is_contiguous():
            return None
        address += parameter.numel() * parameter.element_size()
    if len({parameter.untyped_storage().data_ptr() for parameter in parameters}) > 1:
        return None
    num_rows = sum(len(parameter) for parameter in parameters)
    return first.as_strided((num_rows, *first.shape[1:]), first.stride(), first.storage_offset())
