"""The recipe's model on the meta device: every module and every shape, without memory for weights.

Its attention is the trainer's kernel for that kind of device, so that it saves the same tensors for the backward pass.
"""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rstar2.config import Lora, Recipe
from rstar2.errors import UserError
from rstar2.rollout.simulator.hardware import ModelShape
from rstar2.train.policy.policy import is_checkpointed

_ATTENTION_NAMES = {True: "rstar2_plan_gpu", False: "rstar2_plan_cpu"}


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """A model's sizes, and how the recipe trains it."""

    config: Any
    """The config object of `transformers`."""
    dtype: torch.dtype
    """The dtype that the model computes in."""
    lora: Lora | None
    is_checkpointed: bool
    is_on_gpu: bool

    @classmethod
    def of(cls, recipe: Recipe, config_values: dict[str, Any], *, is_on_gpu: bool) -> "ModelPlan":
        from transformers import AutoConfig

        values = dict(config_values)
        model_type = values.pop("model_type", "")
        try:
            config = AutoConfig.for_model(model_type, **values)
        except ValueError as error:
            raise UserError(f"model.name: transformers knows no model of type {model_type!r}") from error
        dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16}
        dtype = dtypes.get(recipe.model.dtype) or (torch.bfloat16 if is_on_gpu else torch.float32)
        return cls(config, dtype, recipe.model.lora, is_checkpointed(recipe), is_on_gpu)

    @property
    def num_layers(self) -> int:
        return int(self.config.num_hidden_layers)

    def build(self, dtype: torch.dtype, num_layers: int | None = None) -> Any:
        """The model on the meta device in that dtype, with adapters if it has some, and with fewer layers if
        `num_layers` says so."""
        from transformers import AttentionInterface, AutoModelForCausalLM

        AttentionInterface.register(_ATTENTION_NAMES[True], _varlen_attention)
        AttentionInterface.register(_ATTENTION_NAMES[False], _cpu_attention)
        config = copy.deepcopy(self.config)
        if num_layers is not None:
            config.num_hidden_layers = num_layers
            if getattr(config, "layer_types", None):
                config.layer_types = config.layer_types[:num_layers]
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(config, dtype=dtype)  # type: ignore[no-untyped-call]
            if self.lora is not None:
                model = _with_adapters(model, self.lora)
        model.set_attn_implementation(_ATTENTION_NAMES[self.is_on_gpu])
        if self.is_checkpointed:
            model.gradient_checkpointing_enable({"use_reentrant": False})
            model.train()
        return model

    def shape(self) -> ModelShape:
        """The sizes that rooflines need, of the model without adapters, as engines run it."""
        from transformers import AutoModelForCausalLM

        config = self.config
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
        num_params = sum(parameter.numel() for parameter in model.parameters())
        num_embedded = 0 if config.tie_word_embeddings else model.model.embed_tokens.weight.numel()
        return ModelShape(
            weight_bytes=num_params * self.dtype.itemsize,
            num_active_params=num_params - num_embedded,
            num_layers=self.num_layers,
            num_heads=config.num_attention_heads,
            num_kv_heads=config.num_key_value_heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
            bytes_per_value=self.dtype.itemsize,
        )


def _with_adapters(model: Any, lora: Lora) -> Any:
    from peft import LoraConfig, get_peft_model

    settings = LoraConfig(r=lora.rank, target_modules=list(lora.target_modules), task_type="CAUSAL_LM")
    try:
        return get_peft_model(model, settings).get_base_model()
    except ValueError as error:
        raise UserError(f"model.lora.target_modules: {error}") from error


def _varlen_attention(
    _module: Any, query: Tensor, key: Tensor, value: Tensor, _mask: Tensor | None, scaling: float, **_: Any
) -> tuple[Tensor, None]:
    """The attention of the trainer on a GPU: tokens before heads, no padding, flash attention."""
    from torch.nn.attention.varlen import varlen_attn

    query, key, value = (tensor[0].transpose(0, 1).contiguous() for tensor in (query, key, value))
    ends = torch.empty(2, dtype=torch.int32, device=query.device)
    num_tokens = len(query)
    out: Any = varlen_attn(
        query, key, value, ends, ends, num_tokens, num_tokens, scale=scaling, window_size=(-1, 0), enable_gqa=True
    )
    return out[None], None


def _cpu_attention(
    _module: Any, query: Tensor, key: Tensor, value: Tensor, _mask: Tensor | None, scaling: float, **_: Any
) -> tuple[Tensor, None]:
    """The attention of the trainer on a CPU. The kernel is named because on meta torch would choose its plain formula,
    which saves the scores of all pairs of tokens."""
    out: Tensor = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, True, scale=scaling
    )[0]
    return torch.cat([out], dim=2).transpose(1, 2), None
