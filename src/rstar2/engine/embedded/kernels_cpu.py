"""The device operations in plain PyTorch: they run on CPUs, and GPU kernels are tested against them.

Invariant: on a CPU, in float32 and in bfloat16 where oneDNN packs it, each bit of a token depends on the ids before it
alone: not on the rest of the batch, nor on whether keys and values came from a prefill, a decode step or the cache, nor
on the chunks of a prefill. So a resumed run samples the same tokens, though tools answer at other times. Libraries do
not promise this; it relies on these facts, each for one number of threads:

- a matrix product's row is the same in any number of rows that is a multiple of `ROW_QUANTUM` (others may take other
  kernels): the runner pads its rows, and here each head's queries are padded;
- a sum over the context is cut into tiles, added up in order, because a product over more is split by its length;
  what is beyond a query's own context has the weight 0 and so changes no bit;
- sums and products of elements are exact wherever a thread's share begins, but a transcendental function differs
  between full vectors and the rest of a row: `gate` keeps each row in one share.

The cache of a layer is blocks x 2 x K x S x D: gathered by block and head, a sequence's context is one matrix for each
head. Values that depend on the batch and not on the layer are computed once a pass.

Suffixes are those of `architecture`; X: several heads or columns, M: rows of a matrix product, C: cache rows, of one
head and token each.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from rstar2.engine.embedded import sampler
from rstar2.engine.embedded.architecture import ForwardBatch, rotary_table
from rstar2.engine.embedded.contexts_cpu import CONTEXT_TILE, Context, ContextPlanner, pad_rows
from rstar2.engine.embedded.options import EngineLimits
from rstar2.engine.embedded.weights import LayerWeights, Weights

_CACHE_LINE_BYTES = 64
_SHARE_ELEMENTS = 32768
"""PyTorch gives a thread at least this many elements; fewer are not split."""


@dataclass(frozen=True, slots=True)
class _Pass:
    """Values that all layers of a pass have in common."""

    cos_T1D: Tensor
    sin_T1D: Tensor
    """Sines, negative in the first half: a rotated head is itself times the cosines plus itself with halves swapped
    times these."""
    places_C: Tensor
    """Where the keys and values of these tokens are stored, by token, then keys before values, then head."""
    contexts: tuple[Context, ...]


class CpuKernels:
    def __init__(self, weights: Weights, limits: EngineLimits) -> None:
        self._shape = shape = weights.shape
        self._block_size = limits.block_size
        self._score_scale = shape.head_dim**-0.5
        self._planner = ContextPlanner(shape, limits.block_size, weights.activation_dtype)
        cos_LX, sin_LX = rotary_table(weights, limits.max_context_tokens).chunk(2, dim=-1)
        self._cos_LD = torch.cat((cos_LX, cos_LX), dim=-1)
        self._sin_LD = torch.cat((-sin_LX, sin_LX), dim=-1)
        # One block more than is allocated: slot -1, where rows that have ended store, is its last.
        cache_shape = (len(weights.layers), limits.num_blocks + 1, 2, shape.num_kv_heads, self._block_size)
        self._cache = _lazy_zeros((*cache_shape, shape.head_dim), weights.activation_dtype)
        self._num_slots = (limits.num_blocks + 1) * self._block_size
        # Kept between calls: the memory of large tensors would be returned to the system, and zeroed, each time.
        self._gather_buffer = torch.empty(0, dtype=weights.activation_dtype)
        self._probs = torch.empty(0)
        self._pass: _Pass | None = None

    def add_norm(self, hidden_TH: Tensor, residual_TH: Tensor | None, weight_H: Tensor) -> tuple[Tensor, Tensor]:
        sum_TH = hidden_TH.float() if residual_TH is None else residual_TH.add_(hidden_TH)
        return self._norm(sum_TH, weight_H), sum_TH

    def _norm(self, values: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(values, weight.shape, weight.to(values.dtype), self._shape.norm_eps)

    def give_cache_back(self) -> None:
        """Does nothing: nobody else waits for the memory of a CPU's cache."""

    def take_cache(self) -> None: ...

    def gate(self, gate_up_TX: Tensor) -> Tensor:
        gate_TX, up_TX = gate_up_TX.chunk(2, dim=-1)
        num_rows = max(1, _SHARE_ELEMENTS // gate_TX.shape[-1])
        for start in range(0, len(gate_TX), num_rows):
            F.silu(gate_TX[start : start + num_rows], inplace=True)
        return gate_TX * up_TX

    def attend(self, qkv_TX: Tensor, layer: LayerWeights, layer_index: int, batch: ForwardBatch) -> Tensor:
        if layer_index == 0:
            self._pass = self._lay_out(batch)
        assert self._pass is not None
        shape = self._shape
        heads_TXD = qkv_TX.view(len(qkv_TX), -1, shape.head_dim)
        q_TND = heads_TXD[:, : shape.num_heads]
        if layer.q_norm is not None and layer.k_norm is not None:
            k_TKD = heads_TXD[:, shape.num_heads : -shape.num_kv_heads]
            q_TND.copy_(self._norm(q_TND, layer.q_norm))
            k_TKD.copy_(self._norm(k_TKD, layer.k_norm))
        _rotate(heads_TXD[:, : -shape.num_kv_heads], self._pass.cos_T1D, self._pass.sin_T1D)
        cache = self._cache[layer_index]
        cache_CD = cache.view(-1, shape.head_dim)
        cache_CD.index_copy_(0, self._pass.places_C, heads_TXD[:, shape.num_heads :].reshape(-1, shape.head_dim))
        # The queries of a key-value head are adjacent, so keys are not repeated.
        q_TKGD = q_TND.view(len(q_TND), shape.num_kv_heads, -1, shape.head_dim)
        out_TKGD = torch.zeros(q_TKGD.shape, dtype=q_TKGD.dtype)
        for context in self._pass.contexts:
            q_KTGD = q_TKGD[context.token_X].transpose(0, 1)
            # X matrices of M queries: a matrix for each head, or for each head and token.
            matrices = pad_rows(q_KTGD.flatten(1, 2) if context.is_span else q_KTGD).contiguous()
            out = self._attend(matrices.view(-1, *matrices.shape[-2:]), cache, context).view(matrices.shape)
            if context.is_span:
                out_KTGD = out[:, : q_KTGD.shape[1] * q_KTGD.shape[2]].view(q_KTGD.shape)
            else:
                out_KTGD = out[:, :, : q_KTGD.shape[2]]
            out_TKGD[context.token_X] = out_KTGD.transpose(0, 1)
        return out_TKGD.flatten(1)

    def _lay_out(self, batch: ForwardBatch) -> _Pass:
        num_kv_heads = self._shape.num_kv_heads
        position_T = batch.positions_T.clamp(min=0)
        slot_T = batch.slots_T % self._num_slots
        block_T, offset_T = slot_T // self._block_size, slot_T % self._block_size
        places_TX = (block_T[:, None] * 2 * num_kv_heads + torch.arange(2 * num_kv_heads)) * self._block_size
        return _Pass(
            cos_T1D=self._cos_LD.index_select(0, position_T)[:, None],
            sin_T1D=self._sin_LD.index_select(0, position_T)[:, None],
            places_C=(places_TX + offset_T[:, None]).view(-1),
            contexts=tuple(self._planner.plan(batch)),
        )

    def _attend(self, q_XMD: Tensor, cache: Tensor, context: Context) -> Tensor:
        num_heads, num_queries, head_dim = q_XMD.shape
        num_shared = context.num_shared_tokens
        shared, own = self._gather(cache, context)
        k_XLD, v_XLD = own.view(num_heads, 2, -1, head_dim).unbind(1)
        mask_XML = context.mask_XML.expand(num_heads, num_queries, -1)
        scores_XML = torch.baddbmm(mask_XML, q_XMD, k_XLD.transpose(1, 2), alpha=self._score_scale)
        out_XMD = torch.zeros_like(q_XMD)
        if num_shared == 0:
            _add_tiles(out_XMD, scores_XML.softmax(-1), v_XLD)
            return out_XMD
        # The queries of all tokens with one key-value head: one matrix, against the common prefix.
        k_KLD, v_KLD = shared.view(self._shape.num_kv_heads, 2, num_shared, head_dim).unbind(1)
        q_KMD, out_KMD = (each_XMD.view(len(k_KLD), -1, head_dim) for each_XMD in (q_XMD, out_XMD))
        scores_KML = torch.baddbmm(q_XMD.new_zeros(1), q_KMD, k_KLD.transpose(1, 2), alpha=self._score_scale)
        scores_XML = torch.cat((scores_KML.view(num_heads, num_queries, -1), scores_XML), dim=-1)
        weights_XML = scores_XML.softmax(-1)
        _add_tiles(out_KMD, weights_XML.view(len(k_KLD), q_KMD.shape[1], -1), v_KLD)
        _add_tiles(out_XMD, weights_XML[:, :, num_shared:], v_XLD)
        return out_XMD

    def _gather(self, cache: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """Keys and values: the common prefix, and what follows it."""
        width = self._block_size * self._shape.head_dim
        num_elements = len(context.pieces) * width
        if self._gather_buffer.numel() < num_elements:
            self._gather_buffer = self._gather_buffer.new_empty(num_elements)
        gathered = self._gather_buffer[:num_elements].view(-1, width)
        torch.index_select(cache.view(-1, width), 0, context.pieces, out=gathered)
        num_shared_pieces = 2 * self._shape.num_kv_heads * context.num_shared_tokens // self._block_size
        return gathered[:num_shared_pieces], gathered[num_shared_pieces:]

    def draw(
        self, logits_BV: Tensor, uniform_B: Tensor, inverse_temperature_B: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        if self._probs.numel() < logits_BV.numel():
            self._probs = torch.empty(logits_BV.numel())
        probs_BV = self._probs[: logits_BV.numel()].view(logits_BV.shape)
        return sampler.draw(logits_BV, uniform_B, inverse_temperature_B, room_BV=probs_BV)


def _lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros whose pages the system provides when they are first written, because few runs fill their cache. The memory
    begins at a cache line, as torch's own does: otherwise every vector that is read spans two."""
    num_bytes = math.prod(shape) * dtype.itemsize
    memory = np.zeros(num_bytes + _CACHE_LINE_BYTES, dtype=np.uint8)
    start = -memory.ctypes.data % _CACHE_LINE_BYTES
    return torch.from_numpy(memory[start : start + num_bytes]).view(dtype).view(shape)


def _rotate(heads_TXD: Tensor, cos_T1D: Tensor, sin_T1D: Tensor) -> None:
    """Rotate the heads in place."""
    first, second = heads_TXD.chunk(2, dim=-1)
    swapped_TXD = torch.cat((second, first), dim=-1).mul_(sin_T1D)
    heads_TXD.mul_(cos_T1D).add_(swapped_TXD)


def _add_tiles(out_XMD: Tensor, weights_XML: Tensor, v_XLD: Tensor) -> None:
    for start in range(0, v_XLD.shape[1], CONTEXT_TILE):
        tile = slice(start, start + CONTEXT_TILE)
        out_XMD.baddbmm_(weights_XML[:, :, tile], v_XLD[:, tile])
