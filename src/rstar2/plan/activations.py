"""What a micro-batch keeps in memory between its forward and its backward pass: measured by running it on meta.

One decoder layer and the two ends of the model (embedding, last norm, head, loss) are run forward and backward on
tensors without data, and every byte that operators make is counted while it lives. All layers are alike, so the whole
is layers times one layer, and the larger of what a layer and what the head need beyond that while they run.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rstar2.plan.live_bytes import LiveBytes
from rstar2.plan.meta_model import ModelPlan
from rstar2.train.learning.forward import ApplyHead, in_pieces, plain_head


@dataclass(frozen=True, slots=True)
class ActivationBytes:
    """Of one micro-batch."""

    kept_layers: int
    """From a layer's forward to its backward pass, of all layers; with checkpointing, their inputs alone."""
    one_layer: int
    """More, while one layer is computed: what checkpointing computes again, and gradients of activations."""
    ends: int
    """More, while the head is computed: logits of a piece and their gradients; on a CPU their log-softmax as well."""

    @property
    def total(self) -> int:
        return self.kept_layers + max(self.one_layer, self.ends)


class ActivationMeter:
    """Measures one model at any size of micro-batch. On another device than meta it is run for real, for comparison."""

    def __init__(self, plan: ModelPlan, device: str = "meta") -> None:
        self._plan = plan
        self._model = plan.build(plan.dtype, num_layers=1)
        if device != "meta":
            self._model.to_empty(device=device)
        self._device = device

    def measure(self, num_tokens: int) -> ActivationBytes:
        """Of a micro-batch of `num_tokens`, every one of which is learnt from."""
        plan = self._plan
        sizes = (1, num_tokens, plan.config.hidden_size)
        hidden = torch.empty(sizes, dtype=plan.dtype, device=self._device, requires_grad=True)
        kept, layer_peak = _layer(self._model, hidden)
        return ActivationBytes(
            kept_layers=hidden.nbytes + plan.num_layers * kept,
            one_layer=layer_peak - kept,
            ends=_ends(self._model, hidden[0].detach().requires_grad_(), gpu_head if plan.is_on_gpu else plain_head),
        )


def _layer(model: Any, hidden: Tensor) -> tuple[int, int]:
    """What one layer keeps after its forward pass, and the most that it ever holds, in bytes."""
    model.zero_grad(set_to_none=True)
    layer = model.model.layers[0]
    positions = torch.zeros(1, hidden.shape[1], dtype=torch.long, device=hidden.device)
    rotary = model.model.rotary_emb(hidden, positions)
    live = LiveBytes()
    with live:
        out = layer(hidden, attention_mask=None, position_embeddings=rotary, position_ids=positions)
        kept = live.now_bytes
        gradient = torch.empty_like(out)
        out.backward(gradient)
        del out, gradient
    return kept, live.peak_bytes(without=_gradients(model))


def _ends(model: Any, hidden: Tensor, apply_head: ApplyHead) -> int:
    model.zero_grad(set_to_none=True)
    targets = torch.zeros(hidden.shape[0], dtype=torch.long, device=hidden.device)
    live = LiveBytes()
    with live:
        normed = model.model.norm(hidden)[targets]
        log_probs, _entropies = in_pieces(apply_head, model.lm_head, normed, targets, 1.0)
        log_probs.sum().backward()  # type: ignore[no-untyped-call]
    return live.peak_bytes(without=_gradients(model))


def gpu_head(head: Any, hidden: Tensor, targets: Tensor, _temperature: float) -> tuple[Tensor, Tensor]:
    """As the trainer's kernels on a GPU: of the logits there is nothing but themselves, and later their gradient."""
    log_probs, entropies = _GpuKernel.apply(head(hidden), targets)  # type: ignore[no-untyped-call]
    return log_probs, entropies


class _GpuKernel(torch.autograd.Function):
    """Makes and keeps what `LogProbs` of the trainer does, and computes nothing."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(logits)
        log_probs, entropies = (torch.empty(len(targets), dtype=torch.float32, device=logits.device) for _ in range(2))
        ctx.mark_non_differentiable(entropies)
        return log_probs, entropies

    @staticmethod
    def backward(ctx: Any, *_gradients: Tensor) -> tuple[Tensor, None]:
        (logits,) = ctx.saved_tensors
        return torch.empty_like(logits), None


def _gradients(model: Any) -> list[Tensor | None]:
    return [parameter.grad for parameter in model.parameters()]
