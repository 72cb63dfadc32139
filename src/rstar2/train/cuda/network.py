"""The forward and backward pass of a Llama, Qwen2 or Qwen3 model over a pack, on the weights that an engine reads.

It is the engine's pass (`engine/embedded/architecture.py`) with a gradient: the same fused projections, the same
reduction order, the same roundings. Suffixes are those of `operations`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

from rstar2.engine.embedded import invariant
from rstar2.engine.embedded.architecture import rotary_table
from rstar2.engine.embedded.weights import Linear, Multiply, Projection, share_weights
from rstar2.train.cuda.operations import AddNorm, Attend, Contexts, Gate
from rstar2.train.learning.forward import Pack, head_log_probs
from rstar2.train.policy.merged_lora import AdaptedLinear, Adapters, MergedModel


class TrainedLinear(torch.autograd.Function):
    """`apply(x, weight, bias, multiply, *parameters)`: a linear layer whose trained parameters, first weights and then
    biases, are rows of `weight` and `bias`."""

    @staticmethod
    def forward(
        ctx: Any, x_TI: Tensor, weight: Tensor, bias: Tensor | None, multiply: Multiply, *parameters: Tensor
    ) -> Tensor:
        ctx.save_for_backward(x_TI if any(parameter.requires_grad for parameter in parameters) else None, weight)
        ctx.sizes = [len(parameter) for parameter in parameters if parameter.ndim == 2]
        ctx.has_bias = bias is not None
        return multiply(x_TI, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x_TI, weight = ctx.saved_tensors
        (gradient,) = gradients
        dx = gradient @ weight if ctx.needs_input_grad[0] else None
        if not any(ctx.needs_input_grad[4:]):
            return dx, *[None] * (len(ctx.needs_input_grad) - 1)
        weights = torch.split(gradient.T @ x_TI, ctx.sizes)
        biases = torch.split(gradient.sum(0), ctx.sizes) if ctx.has_bias else ()
        return dx, None, None, None, *weights, *biases


class CudaNetwork:
    """Runs a model, or the merged form of `adapted`, the network with adapters. If batch-invariant, its
    log-probabilities equal, bit for bit, those of a batch-invariant engine with the same weights."""

    def __init__(
        self,
        model: Any,
        *,
        merged: MergedModel | None = None,
        adapted: Any = None,
        is_checkpointed: bool = False,
        batch_invariant: bool = False,
    ) -> None:
        weights = share_weights(model)
        self._model = model
        self._merged = merged
        self._is_checkpointed = is_checkpointed
        self._batch_invariant = batch_invariant
        self._shape = weights.shape
        self._rotary = rotary_table(weights, weights.shape.context_tokens)
        multiply: Multiply = invariant.linear if batch_invariant else F.linear
        head = model.lm_head.weight
        self._head = _trained(Linear(head.data, None), [model.lm_head], multiply) if batch_invariant else model.lm_head

        def projection(joined: Projection, index: int, *names: str) -> Projection:
            assert isinstance(joined, Linear)
            paths = [f"model.layers.{index}.{name}" for name in names]
            if merged is None:
                return _trained(joined, [model.get_submodule(path) for path in paths], multiply)
            return _adapted(joined, merged.adapters(adapted, paths), multiply)

        self._layers = [
            _Layer(
                input_norm=module.input_layernorm.weight,
                qkv=projection(layer.qkv, index, "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
                q_norm=module.self_attn.q_norm.weight if layer.q_norm is not None else None,
                k_norm=module.self_attn.k_norm.weight if layer.k_norm is not None else None,
                attention_out=projection(layer.attention_out, index, "self_attn.o_proj"),
                mlp_norm=module.post_attention_layernorm.weight,
                gate_up=projection(layer.gate_up, index, "mlp.gate_proj", "mlp.up_proj"),
                down=projection(layer.down, index, "mlp.down_proj"),
            )
            for index, (layer, module) in enumerate(zip(weights.layers, model.model.layers, strict=True))
        ]

    def token_log_probs(self, pack: Pack, *, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
        """Each target's log-probability, with gradient, and the entropy of its distribution, without."""
        if self._merged is not None:
            self._merged.merge()
        hidden_TH = F.embedding(pack.token_ids_T, self._model.model.embed_tokens.weight)
        residual_TH: Tensor | None = None
        contexts = Contexts.of(pack.spans, self._shape, hidden_TH.device) if self._batch_invariant else None
        is_checkpointed = self._is_checkpointed and torch.is_grad_enabled()
        for layer in self._layers:
            arguments = (layer, hidden_TH, residual_TH, pack, contexts)
            hidden_TH, residual_TH = (
                checkpoint(self._run, *arguments, use_reentrant=False) if is_checkpointed else self._run(*arguments)
            )
        normed_TH, _ = self._add_norm(hidden_TH, residual_TH, self._model.model.norm.weight)
        return head_log_probs(self._head, normed_TH, pack, temperature)

    def _run(
        self, layer: "_Layer", hidden_TH: Tensor, residual_TH: Tensor | None, pack: Pack, contexts: Contexts | None
    ) -> tuple[Tensor, Tensor]:
        normed_TH, residual_TH = self._add_norm(hidden_TH, residual_TH, layer.input_norm)
        attended_TX: Tensor = Attend.apply(  # type: ignore[no-untyped-call]
            layer.qkv(normed_TH),
            layer.q_norm,
            layer.k_norm,
            pack.positions_T,
            self._rotary,
            pack.spans,
            self._shape,
            contexts,
        )
        normed_TH, residual_TH = self._add_norm(layer.attention_out(attended_TX), residual_TH, layer.mlp_norm)
        gated_TX: Tensor = Gate.apply(layer.gate_up(normed_TH))  # type: ignore[no-untyped-call]
        return layer.down(gated_TX), residual_TH

    def _add_norm(self, hidden_TH: Tensor, residual_TH: Tensor | None, weight_H: Tensor) -> tuple[Tensor, Tensor]:
        found: tuple[Tensor, Tensor] = AddNorm.apply(hidden_TH, residual_TH, weight_H, self._shape.norm_eps)  # type: ignore[no-untyped-call]
        return found


@dataclass(frozen=True, slots=True)
class _Layer:
    """The engine's `LayerWeights`, with trained parameters in place of their values."""

    input_norm: Tensor
    qkv: Projection
    q_norm: Tensor | None
    k_norm: Tensor | None
    attention_out: Projection
    mlp_norm: Tensor
    gate_up: Projection
    down: Projection


def _trained(joined: Linear, modules: Sequence[Any], multiply: Multiply) -> Projection:
    parameters = [module.weight for module in modules]
    parameters += [module.bias for module in modules if module.bias is not None]
    return lambda x_TI: TrainedLinear.apply(x_TI, joined.weight, joined.bias, multiply, *parameters)  # type: ignore[no-untyped-call]


def _adapted(joined: Linear, adapters: Adapters | None, multiply: Multiply) -> Projection:
    if adapters is None:
        return _trained(joined, [], multiply)
    return lambda x_TI: AdaptedLinear.apply(x_TI, joined.weight, joined.bias, multiply, adapters, *adapters.parameters)  # type: ignore[no-untyped-call]
