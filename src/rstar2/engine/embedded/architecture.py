"""The forward pass of the Llama family, Qwen2 and Qwen3, over a paged cache of keys and values.

Invariant: one pass does both prefill and decode. Tokens of many sequences are concatenated; each carries its position
and the cache slot its key and value go to, and only attention knows which tokens belong together.

Shape suffixes: T tokens of this pass, R sequences (rows) of it, B decoding rows, P blocks of a row's table,
S tokens in a block, H hidden, N query heads, K key-value heads, G queries a key-value head, D head dimension,
V vocabulary, L tokens of context.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from rstar2.engine.embedded.weights import LayerWeights, Weights


@dataclass(frozen=True, slots=True)
class PrefillSpan:
    """One sequence's tokens within a prefill pass: from `start` to `end` of T, the first at `position`."""

    start: int
    end: int
    position: int


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """The tokens of one pass. In a decode pass (no spans) each row has one token, so T equals B."""

    positions_T: Tensor
    """-1 is padding, or a row that has ended: nothing is stored for it and its output is meaningless."""
    slots_T: Tensor
    """The cache slot of each token: block times block size plus offset; -1 where nothing is stored."""
    table_RP: Tensor
    spans: tuple[PrefillSpan, ...] = ()
    tiles: Tensor | None = None
    """In a prefill pass on a GPU, each tile of queries: its row, first token and last token + 1."""


class Kernels(Protocol):
    """The operations that differ by device. They own the cache."""

    def add_norm(self, hidden_TH: Tensor, residual_TH: Tensor | None, weight_H: Tensor) -> tuple[Tensor, Tensor]:
        """The norm of hidden states plus residual, and their sum."""
        ...

    def attend(self, qkv_TX: Tensor, layer: LayerWeights, layer_index: int, batch: ForwardBatch) -> Tensor:
        """Norms (where the layer has any) and rotates queries and keys, stores keys and values, then attends."""
        ...

    def gate(self, gate_up_TX: Tensor) -> Tensor: ...

    def draw(
        self, logits_BV: Tensor, uniform_B: Tensor, inverse_temperature_B: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Token, log-probability and entropy of each row; an inverse temperature of 0 means the likeliest token."""
        ...

    def give_cache_back(self) -> None:
        """Free the cache's memory where that is possible. Nothing may attend until `take_cache`."""
        ...

    def take_cache(self) -> None: ...


def forward(weights: Weights, kernels: Kernels, token_ids_T: Tensor, batch: ForwardBatch) -> Tensor:
    """The normed hidden state after the last layer."""
    hidden_TH = F.embedding(token_ids_T, weights.embedding)
    residual_TH: Tensor | None = None
    for index, layer in enumerate(weights.layers):
        normed_TH, residual_TH = kernels.add_norm(hidden_TH, residual_TH, layer.input_norm)
        attended_TX = kernels.attend(layer.qkv(normed_TH), layer, index, batch)
        normed_TH, residual_TH = kernels.add_norm(layer.attention_out(attended_TX), residual_TH, layer.mlp_norm)
        hidden_TH = layer.down(kernels.gate(layer.gate_up(normed_TH)))
    return kernels.add_norm(hidden_TH, residual_TH, weights.final_norm)[0]


def rotary_table(weights: Weights, num_positions: int) -> Tensor:
    """Cosines and sines side by side for each position."""
    positions = torch.arange(num_positions, device=weights.device, dtype=torch.float32)
    angles = positions[:, None] * weights.inverse_frequencies.to(weights.device, torch.float32)
    return (torch.cat((angles.cos(), angles.sin()), dim=-1) * weights.rope_scaling).to(weights.activation_dtype)
