"""Log-probabilities of targets, and entropies, from a GPU's logits, which are read once, and once for the gradient.

As PyTorch's own operations it is a dozen passes over numbers that are the largest of an update: a vocabulary for every
token. Sums are taken in float32, whatever the logits are.

Suffixes as in `packed`.
"""

from typing import Any

import torch
from torch import Tensor

_TILE = 4096


class LogProbs(torch.autograd.Function):
    """Use it by `apply(logits_SV, targets_S, temperature)`, where S is not 0."""

    @staticmethod
    def forward(ctx: Any, logits_SV: Tensor, targets_S: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        """The log-probabilities, and the entropies, which have no gradient."""
        from rstar2.train.head_kernels import log_prob_kernel

        logits_SV = logits_SV.contiguous()
        num_rows, vocab_size = logits_SV.shape
        log_prob_S, entropy_S, normalizer_S = (
            torch.empty(num_rows, dtype=torch.float32, device=logits_SV.device) for _ in range(3)
        )
        log_prob_kernel[(num_rows,)](
            logits_SV, targets_S, log_prob_S, entropy_S, normalizer_S, vocab_size, 1 / temperature, TILE=_TILE
        )
        ctx.save_for_backward(logits_SV, targets_S, normalizer_S)
        ctx.temperature = temperature
        ctx.mark_non_differentiable(entropy_S)
        return log_prob_S, entropy_S

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        from rstar2.train.head_kernels import log_prob_gradient_kernel

        logits_SV, targets_S, normalizer_S = ctx.saved_tensors
        num_rows, vocab_size = logits_SV.shape
        gradient_SV = torch.empty_like(logits_SV)
        log_prob_gradient_kernel[(num_rows, -(-vocab_size // _TILE))](
            logits_SV,
            targets_S,
            normalizer_S,
            gradients[0].contiguous(),
            gradient_SV,
            vocab_size,
            1 / ctx.temperature,
            TILE=_TILE,
        )
        return gradient_SV, None, None
