"""The activations that a micro-batch keeps on a GPU, from the model's sizes and the arithmetic of `train/cuda`.
Pure."""

from dataclasses import dataclass

from rstar2.train.learning.forward import HEAD_PIECE_TOKENS
from rstar2.train.memory.sizes import ModelSizes

_NORMALIZER_BYTES = 4
"""Attention keeps one float32 for each head and token."""
_PLAIN_FACTOR = 2.2
"""How much more the layers of `transformers` keep than ours (benchmarks/update.py)."""


@dataclass(frozen=True, slots=True)
class ActivationBytes:
    """The activations of one micro-batch, in bytes."""

    kept_layers: int
    """What all layers keep from the forward to the backward pass; with gradient checkpointing, only their inputs."""
    one_layer: int
    """Additional bytes while one layer is computed: what gradient checkpointing recomputes, and gradients of
    activations."""
    ends: int
    """Additional bytes while the head is computed: logits of a piece and their gradients; on a CPU their log-softmax,
    too."""

    @property
    def total(self) -> int:
        return self.kept_layers + max(self.one_layer, self.ends)


@dataclass(frozen=True, slots=True)
class GpuActivations:
    """The activations of one model in one process; `measure` answers for any size of micro-batch."""

    sizes: ModelSizes
    itemsize: int
    is_checkpointed: bool
    is_full: bool
    """Whether all weights are trained, not adapters."""
    is_ours: bool = True
    """Whether the kernels of `train/cuda` compute them, not the layers of `transformers`."""

    def measure(self, num_tokens: int) -> ActivationBytes:
        sizes, itemsize = self.sizes, self.itemsize
        inputs = 2 * sizes.hidden * itemsize
        """Bytes of a layer's inputs for one token: hidden states and the residual stream."""
        factor = 1.0 if self.is_ours else _PLAIN_FACTOR
        layer = factor * self._layer_bytes
        recomputed = layer if self.is_checkpointed else 0.0
        num_head_tokens = min(num_tokens, HEAD_PIECE_TOKENS)
        head = 2 * num_head_tokens * sizes.vocab * itemsize * factor
        if self.is_full:
            head += 2 * sizes.vocab * sizes.hidden * itemsize  # the gradients of the head and of the embedding
        return ActivationBytes(
            kept_layers=int(num_tokens * (sizes.layers * (inputs if self.is_checkpointed else layer) + inputs / 2)),
            one_layer=int(num_tokens * (recomputed + factor * self._gradient_bytes)),
            ends=int(num_tokens * 5 * sizes.hidden * itemsize + head),
        )

    @property
    def token_bytes(self) -> int:
        """Bytes that all layers keep of one token, if nothing is recomputed."""
        return self.sizes.layers * self._layer_bytes

    @property
    def _layer_bytes(self) -> int:
        """Bytes that one layer keeps of one token: two sums, two normed inputs, queries with keys and values, the
        attention output, gate with up, and their product."""
        sizes = self.sizes
        numbers = 4 * sizes.hidden + sizes.qkv + sizes.queries + 3 * sizes.intermediate
        if sizes.has_qk_norms:
            numbers += sizes.qkv  # queries, keys and values before the norm
        return numbers * self.itemsize + _NORMALIZER_BYTES * sizes.heads

    @property
    def _gradient_bytes(self) -> int:
        """Bytes of one token's gradients during a layer's backward pass: those of the gate, or those of attention with
        the float32 sums of flash attention, when the gate's activations are freed."""
        sizes = self.sizes
        of_gate = (2 * sizes.intermediate + sizes.hidden) * self.itemsize
        of_attention = (sizes.qkv + 3 * sizes.queries + sizes.hidden) * self.itemsize + 4 * sizes.queries
        return max(of_gate, of_attention - (3 * sizes.intermediate + 2 * sizes.hidden) * self.itemsize)
