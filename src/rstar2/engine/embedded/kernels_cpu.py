"""The device operations in plain PyTorch: for CPUs, and what the GPU's kernels are tested against.

Invariant: in float32 on a CPU, each bit of a token depends on the ids before it alone: not on what shares the batch,
nor on whether keys and values came from a prefill, a decode step or the cache, nor on how a prefill was cut. So a run
that is resumed samples what it would have sampled, though tools answer at other times. Libraries do not promise this;
what it rests on, each for one number of threads:

- a matrix product's row is the same in any number of rows that is a multiple of `ROW_QUANTUM` (others may take other
  kernels): the runner pads its rows, and here each head's queries are padded;
- a sum over the context is cut into tiles, added up in order, because a product over more is split by its length;
  what lies beyond a query's own context has the weight 0 and so changes no bit;
- sums and products of elements are exact wherever a thread's share begins, but a transcendental function differs
  between whole vectors and what remains of a row: `gate` keeps each row in one share.

The cache of a layer is blocks x 2 x K x S x D: gathered by block and head, a sequence's context is one matrix for each
head. Decoding rows take turns in groups of about one length, so that what is gathered for a group is still in the
processor's cache when it is read. What depends on the batch and not on the layer is laid out once a pass.

Suffixes as in `architecture`; X: several heads or columns, M: rows of a matrix product, C: cache rows, of one head and
token each.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from rstar2.engine.embedded import sampler
from rstar2.engine.embedded.architecture import Batch, Span, rotary_table
from rstar2.engine.embedded.options import Limits
from rstar2.engine.embedded.weights import LayerWeights, Weights

ROW_QUANTUM = 4
_CONTEXT_TILE = 128
"""Tokens of context that one product sums over; MKL sums up to 192 in one go."""
_GROUP_BYTES = 2 << 20
"""Of keys and values that a group of decoding rows looks at: about what the cores' own caches hold."""
_SPAN_PART = 64
"""Tokens of a span that look at their context together: their scores stay small, and little of it is yet to come."""
_SHARE_ELEMENTS = 32768
"""PyTorch gives a thread at least so many elements: fewer are one share."""


@dataclass(frozen=True, slots=True)
class _Context:
    """What the queries of tokens `start` to `end` look at, for each key-value head of their sequences."""

    start: int
    end: int
    pieces: Tensor
    """Of the cache, by block and head: those of keys, then those of values, of each row and head in order."""
    mask_XML: Tensor
    """0 for what a query may look at, minus infinity for the rest."""


@dataclass(frozen=True, slots=True)
class _Pass:
    """What all layers of a pass have in common."""

    cos_T1D: Tensor
    sin_T1D: Tensor
    """Negative in the first half: with its halves swapped, a head times this and itself times the cosines add up."""
    places_C: Tensor
    """Where the keys and values of these tokens are stored, by token, then keys before values, then head."""
    contexts: tuple[_Context, ...]
    """Of each group of rows in a decode pass, in which they are in order; of each part of a span in a prefill pass."""
    order_B: Tensor | None
    """Of the rows in a decode pass: the longest first."""


class CpuKernels:
    def __init__(self, weights: Weights, limits: Limits) -> None:
        self._shape = shape = weights.shape
        self._block_size = limits.block_size
        self._group_size = shape.num_heads // shape.num_kv_heads
        self._score_scale = shape.head_dim**-0.5
        cos_LX, sin_LX = rotary_table(weights, limits.max_context_tokens).chunk(2, dim=-1)
        self._cos_LD = torch.cat((cos_LX, cos_LX), dim=-1)
        self._sin_LD = torch.cat((-sin_LX, sin_LX), dim=-1)
        # One block more than is given out: slot -1, where rows that have ended store, is its last.
        cache_shape = (len(weights.layers), limits.num_blocks + 1, 2, shape.num_kv_heads, self._block_size)
        self._cache = torch.zeros((*cache_shape, shape.head_dim), dtype=weights.dtype, device=weights.device)
        self._num_slots = (limits.num_blocks + 1) * self._block_size
        self._gathered = torch.empty(0, dtype=weights.dtype, device=weights.device)
        """Kept between calls: the memory of large tensors would be given back to the system, and zeroed, each time."""
        self._pass: _Pass | None = None

    def add_norm(self, hidden_TH: Tensor, residual_TH: Tensor | None, weight_H: Tensor) -> tuple[Tensor, Tensor]:
        sum_TH = hidden_TH if residual_TH is None else residual_TH.add_(hidden_TH)
        return self._norm(sum_TH, weight_H), sum_TH

    def _norm(self, values: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(values, weight.shape, weight, self._shape.norm_eps)

    def gate(self, gate_up_TX: Tensor) -> Tensor:
        gate_TX, up_TX = gate_up_TX.chunk(2, dim=-1)
        num_rows = max(1, _SHARE_ELEMENTS // gate_TX.shape[-1])
        for start in range(0, len(gate_TX), num_rows):
            F.silu(gate_TX[start : start + num_rows], inplace=True)
        return gate_TX * up_TX

    def attend(self, qkv_TX: Tensor, layer: LayerWeights, layer_index: int, batch: Batch) -> Tensor:
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
        if batch.spans:
            return self._attend_spans(q_TND, cache, self._pass.contexts)
        assert self._pass.order_B is not None
        return self._attend_rows(q_TND, cache, self._pass.order_B, self._pass.contexts)

    def _lay_out(self, batch: Batch) -> _Pass:
        num_kv_heads = self._shape.num_kv_heads
        # A row that has ended looks at the first token: its output means nothing, but is a number.
        position_T = batch.positions_T.clamp(min=0)
        slot_T = batch.slots_T % self._num_slots
        block_T, offset_T = slot_T // self._block_size, slot_T % self._block_size
        places_TX = (block_T[:, None] * 2 * num_kv_heads + torch.arange(2 * num_kv_heads)) * self._block_size
        order_B: Tensor | None = None
        if batch.spans:
            contexts = self._span_contexts(batch.spans, position_T, batch.table_RP)
        else:
            order_B = position_T.argsort(descending=True)
            contexts = self._row_contexts(position_T[order_B], batch.table_RP[order_B])
        return _Pass(
            cos_T1D=self._cos_LD.index_select(0, position_T)[:, None],
            sin_T1D=self._sin_LD.index_select(0, position_T)[:, None],
            places_C=(places_TX + offset_T[:, None]).view(-1),
            contexts=tuple(contexts),
            order_B=order_B,
        )

    def _row_contexts(self, position_B: Tensor, table_BP: Tensor) -> Iterator[_Context]:
        """From the longest row on: as many as there is room for, each as long as the first."""
        positions, start = position_B.tolist(), 0
        while start < len(positions):
            num_blocks = positions[start] // self._block_size + 1
            num_rows = max(1, _GROUP_BYTES // (num_blocks * self._cache[0, 0].nbytes))
            end = min(start + num_rows, len(positions))
            mask_BL = self._mask(position_B[start:end], num_blocks)
            mask_X1L = mask_BL.repeat_interleave(self._shape.num_kv_heads, dim=0)[:, None]
            yield _Context(start, end, self._pieces(table_BP[start:end, :num_blocks]), mask_X1L)
            start = end

    def _span_contexts(self, spans: Sequence[Span], position_T: Tensor, table_RP: Tensor) -> Iterator[_Context]:
        for row, span in enumerate(spans):
            for start in range(span.start, span.end, _SPAN_PART):
                end = min(start + _SPAN_PART, span.end)
                num_blocks = (span.position + end - 1 - span.start) // self._block_size + 1
                mask_TL = self._mask(position_T[start:end], num_blocks)
                mask_ML = _pad_rows(mask_TL.repeat_interleave(self._group_size, dim=0))
                yield _Context(start, end, self._pieces(table_RP[row : row + 1, :num_blocks]), mask_ML[None])

    def _mask(self, position_X: Tensor, num_blocks: int) -> Tensor:
        is_past_XL = torch.arange(num_blocks * self._block_size) <= position_X[:, None]
        return torch.zeros(is_past_XL.shape, dtype=self._cache.dtype).masked_fill_(~is_past_XL, -torch.inf)

    def _pieces(self, table_RP: Tensor) -> Tensor:
        num_pieces = 2 * self._shape.num_kv_heads  # in a block
        piece_2KP = torch.arange(num_pieces).view(2, 1, -1, 1)
        return (table_RP.long()[None, :, None] * num_pieces + piece_2KP).view(-1)

    def _attend_rows(self, q_BND: Tensor, cache: Tensor, order_B: Tensor, contexts: tuple[_Context, ...]) -> Tensor:
        """The queries of a key-value head stand together, so keys are not repeated."""
        shape, num_rows = self._shape, len(q_BND)
        q_XMD = _pad_rows(q_BND.index_select(0, order_B).view(-1, self._group_size, shape.head_dim))
        out_XMD = torch.empty_like(q_XMD)
        for context in contexts:
            heads = slice(context.start * shape.num_kv_heads, context.end * shape.num_kv_heads)
            self._attend(q_XMD[heads], cache, context, out_XMD[heads])
        out_BX = out_XMD[:, : self._group_size].reshape(num_rows, -1)
        return torch.empty_like(out_BX).index_copy_(0, order_B, out_BX)

    def _attend_spans(self, q_TND: Tensor, cache: Tensor, contexts: tuple[_Context, ...]) -> Tensor:
        shape, num_tokens = self._shape, len(q_TND)
        q_KTGD = q_TND.view(num_tokens, shape.num_kv_heads, -1, shape.head_dim).transpose(0, 1)
        out_TKGD = q_TND.new_zeros((num_tokens, *q_KTGD.shape[:1], *q_KTGD.shape[2:]))
        for context in contexts:
            part_KTGD = q_KTGD[:, context.start : context.end]
            q_KMD = _pad_rows(part_KTGD.flatten(1, 2))
            out_KMD = torch.empty_like(q_KMD)
            self._attend(q_KMD, cache, context, out_KMD)
            num_queries = part_KTGD.shape[1] * self._group_size
            out_TKGD[context.start : context.end] = out_KMD[:, :num_queries].view(part_KTGD.shape).transpose(0, 1)
        return out_TKGD.flatten(1)

    def _attend(self, q_XMD: Tensor, cache: Tensor, context: _Context, out_XMD: Tensor) -> None:
        k_XLD, v_XLD = self._gather(cache, context.pieces, len(q_XMD))
        mask_XML = context.mask_XML.expand(len(q_XMD), q_XMD.shape[1], -1)
        weights_XML = torch.baddbmm(mask_XML, q_XMD, k_XLD.transpose(1, 2), alpha=self._score_scale).softmax(-1)
        torch.bmm(weights_XML[:, :, :_CONTEXT_TILE], v_XLD[:, :_CONTEXT_TILE], out=out_XMD)
        for start in range(_CONTEXT_TILE, v_XLD.shape[1], _CONTEXT_TILE):
            end = start + _CONTEXT_TILE
            out_XMD.baddbmm_(weights_XML[:, :, start:end], v_XLD[:, start:end])

    def _gather(self, cache: Tensor, pieces: Tensor, num_heads: int) -> tuple[Tensor, Tensor]:
        """Keys and values of each row and head, in order."""
        width = self._block_size * self._shape.head_dim
        num_elements = len(pieces) * width
        if self._gathered.numel() < num_elements:
            self._gathered = self._gathered.new_empty(num_elements)
        gathered = self._gathered[:num_elements].view(-1, width)
        torch.index_select(cache.view(-1, width), 0, pieces, out=gathered)
        k_XLD, v_XLD = gathered.view(2, num_heads, -1, self._shape.head_dim).unbind()
        return k_XLD, v_XLD

    def draw(
        self, logits_BV: Tensor, uniform_B: Tensor, inverse_temperature_B: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        return sampler.draw(logits_BV, uniform_B, inverse_temperature_B)


def _rotate(heads_TXD: Tensor, cos_T1D: Tensor, sin_T1D: Tensor) -> None:
    """In place."""
    first, second = heads_TXD.chunk(2, dim=-1)
    swapped_TXD = torch.cat((second, first), dim=-1).mul_(sin_T1D)
    heads_TXD.mul_(cos_T1D).add_(swapped_TXD)


def _pad_rows(matrices: Tensor) -> Tensor:
    num_rows = matrices.shape[-2]
    num_padding = -num_rows % ROW_QUANTUM
    return F.pad(matrices, (0, 0, 0, num_padding)) if num_padding else matrices
