"""The device operations in plain PyTorch: for CPUs, and what the GPU's kernels are tested against.

The cache of a layer is slots x 2 x K x D: a block is one piece of memory with the keys and values of all heads, and
gathering a sequence's blocks gives its whole context in order, at one stride. Suffixes as in `architecture`.
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
        cache_shape = (len(weights.layers), num_slots, 2, shape.num_kv_heads, shape.head_dim)
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
        sizes = (shape.num_heads, shape.num_kv_heads, shape.num_kv_heads)
        q_TND, k_TKD, v_TKD = torch.split_with_sizes(heads_TXD, sizes, dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q_TND, k_TKD = self._norm(q_TND, layer.q_norm), self._norm(k_TKD, layer.k_norm)
        cos_T1D, sin_T1D = self._rotary[batch.positions_T].unsqueeze(1).chunk(2, dim=-1)
        q_TND, k_TKD = _rotate(q_TND, cos_T1D, sin_T1D), _rotate(k_TKD, cos_T1D, sin_T1D)
        cache = self._cache[layer_index]
        cache[batch.slots_T] = torch.stack((k_TKD, v_TKD), dim=1)
        if batch.spans:
            return self._attend_spans(q_TND, cache, batch)
        return self._attend_rows(q_TND, cache, batch)

    def _attend_rows(self, q_BND: Tensor, cache: Tensor, batch: Batch) -> Tensor:
        """One query a row. The queries of a key-value head are that head's query length, so keys are not repeated."""
        num_rows = len(q_BND)
        k_BKLD, v_BKLD = self._gather(cache, batch.table_RP)
        q_BKGD = q_BND.view(num_rows, self._shape.num_kv_heads, -1, self._shape.head_dim)
        is_past_BL = torch.arange(k_BKLD.shape[2]) <= batch.positions_T[:, None]
        out_BKGD = F.scaled_dot_product_attention(q_BKGD, k_BKLD, v_BKLD, attn_mask=is_past_BL[:, None, None])
        return out_BKGD.reshape(num_rows, -1)

    def _attend_spans(self, q_TND: Tensor, cache: Tensor, batch: Batch) -> Tensor:
        out_TND = torch.empty_like(q_TND)
        for row, span in enumerate(batch.spans):
            num_context = span.position + span.end - span.start
            num_blocks = -(-num_context // self._block_size)
            k_1KLD, v_1KLD = self._gather(cache, batch.table_RP[row : row + 1, :num_blocks])
            q_1NTD = q_TND[None, span.start : span.end].transpose(1, 2)
            is_past_TL = torch.arange(k_1KLD.shape[2]) <= torch.arange(span.position, num_context)[:, None]
            out_1NTD = F.scaled_dot_product_attention(q_1NTD, k_1KLD, v_1KLD, attn_mask=is_past_TL, enable_gqa=True)
            out_TND[span.start : span.end] = out_1NTD[0].transpose(0, 1)
        return out_TND.reshape(len(out_TND), -1)

    def _gather(self, cache: Tensor, table_RP: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of each row's blocks, R x K x L x D."""
        blocks = cache.view(-1, self._block_size * 2 * self._shape.num_kv_heads * self._shape.head_dim)
        gathered = blocks.index_select(0, table_RP.reshape(-1)).view(len(table_RP), -1, *cache.shape[1:])
        k_RLKD, v_RLKD = gathered.unbind(2)
        return k_RLKD.transpose(1, 2), v_RLKD.transpose(1, 2)

    def draw(
        self, logits_BV: Tensor, uniform_B: Tensor, inverse_temperature_B: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        return sampler.draw(logits_BV, uniform_B, inverse_temperature_B)


def _rotate(heads_TXD: Tensor, cos_T1D: Tensor, sin_T1D: Tensor) -> Tensor:
    first, second = heads_TXD.chunk(2, dim=-1)
    return torch.cat((first * cos_T1D - second * sin_T1D, second * cos_T1D + first * sin_T1D), dim=-1)
