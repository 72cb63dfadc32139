"""The device operations in plain PyTorch: for CPUs, and what the GPU's kernels are tested against.

The cache of a layer is K x blocks x S x D: gathering a sequence's blocks gives each head its keys in one piece.
Suffixes as in `architecture`.
"""

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from rstar2.engine.embedded import sampler
from rstar2.engine.embedded.architecture import Batch, rotary_table
from rstar2.engine.embedded.options import Limits
from rstar2.engine.embedded.weights import LayerWeights, Weights


class CpuKernels:
    def __init__(self, weights: Weights, limits: Limits) -> None:
        self._shape = shape = weights.shape
        self._block_size = limits.block_size
        self._rotary = rotary_table(weights, limits.max_context_tokens)
        # One block more than is given out: slot -1, where rows that have ended store, is its last.
        num_slots = (limits.num_blocks + 1) * limits.block_size
        cache_shape = (len(weights.layers), 2, shape.num_kv_heads, num_slots, shape.head_dim)
        self._cache = torch.zeros(cache_shape, dtype=weights.dtype, device=weights.device)

    def add_norm(self, hidden_TH: Tensor, residual_TH: Tensor | None, weight_H: Tensor) -> tuple[Tensor, Tensor]:
        sum_TH = hidden_TH if residual_TH is None else hidden_TH + residual_TH
        return self._norm(sum_TH, weight_H), sum_TH

    def _norm(self, values: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(values, weight.shape, weight, self._shape.norm_eps)

    def gate(self, gate_up_TX: Tensor) -> Tensor:
        gate_TX, up_TX = gate_up_TX.chunk(2, dim=-1)
        return F.silu(gate_TX) * up_TX

    def attend(self, qkv_TX: Tensor, layer: LayerWeights, layer_index: int, batch: Batch) -> Tensor:
        shape = self._shape
        heads_TXD = qkv_TX.view(len(qkv_TX), -1, shape.head_dim)
        q_TND, k_TKD, v_TKD = heads_TXD.split((shape.num_heads, shape.num_kv_heads, shape.num_kv_heads), dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q_TND, k_TKD = self._norm(q_TND, layer.q_norm), self._norm(k_TKD, layer.k_norm)
        cos_T1D, sin_T1D = self._rotary[batch.positions_T].unsqueeze(1).chunk(2, dim=-1)
        q_TND, k_TKD = _rotate(q_TND, cos_T1D, sin_T1D), _rotate(k_TKD, cos_T1D, sin_T1D)
        keys, values = self._cache[layer_index]
        keys[:, batch.slots_T] = k_TKD.transpose(0, 1)
        values[:, batch.slots_T] = v_TKD.transpose(0, 1)
        if batch.spans:
            return self._attend_spans(q_TND, keys, values, batch)
        return self._attend_rows(q_TND, keys, values, batch)

    def _attend_rows(self, q_BND: Tensor, keys: Tensor, values: Tensor, batch: Batch) -> Tensor:
        """One query a row. The queries of a key-value head are that head's query length, so keys are not repeated."""
        shape, num_rows = self._shape, len(q_BND)
        k_KBLD, v_KBLD = (self._gather(cache, batch.table_RP) for cache in (keys, values))
        q_KBGD = q_BND.view(num_rows, shape.num_kv_heads, -1, shape.head_dim).transpose(0, 1)
        is_past_BL = torch.arange(k_KBLD.shape[2]) <= batch.positions_T[:, None]
        out_KBGD = F.scaled_dot_product_attention(q_KBGD, k_KBLD, v_KBLD, attn_mask=is_past_BL[None, :, None])
        return out_KBGD.transpose(0, 1).reshape(num_rows, -1)

    def _attend_spans(self, q_TND: Tensor, keys: Tensor, values: Tensor, batch: Batch) -> Tensor:
        out_TND = torch.empty_like(q_TND)
        for row, span in enumerate(batch.spans):
            num_context = span.position + span.end - span.start
            num_blocks = -(-num_context // self._block_size)
            table_1P = batch.table_RP[row : row + 1, :num_blocks]
            k_1KLD, v_1KLD = (
                self._gather(cache, table_1P).transpose(0, 1)[:, :, :num_context] for cache in (keys, values)
            )
            q_1NTD = q_TND[None, span.start : span.end].transpose(1, 2)
            is_past_TL = torch.arange(num_context) <= torch.arange(span.position, num_context)[:, None]
            out_1NTD = F.scaled_dot_product_attention(q_1NTD, k_1KLD, v_1KLD, attn_mask=is_past_TL, enable_gqa=True)
            out_TND[span.start : span.end] = out_1NTD[0].transpose(0, 1)
        return out_TND.reshape(len(out_TND), -1)

    def _gather(self, cache_KCD: Tensor, table_RP: Tensor) -> Tensor:
        num_kv_heads, _, head_dim = cache_KCD.shape
        blocks_KCX = cache_KCD.view(num_kv_heads, -1, self._block_size * head_dim)
        return blocks_KCX.index_select(1, table_RP.reshape(-1)).view(num_kv_heads, len(table_RP), -1, head_dim)

    def draw(
        self, logits_BV: Tensor, uniform_B: Tensor, inverse_temperature_B: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        return sampler.draw(logits_BV, uniform_B, inverse_temperature_B)


def _rotate(heads_TXD: Tensor, cos_T1D: Tensor, sin_T1D: Tensor) -> Tensor:
    first, second = heads_TXD.chunk(2, dim=-1)
    return torch.cat((first * cos_T1D - second * sin_T1D, second * cos_T1D + first * sin_T1D), dim=-1)
