"""The device operations as Triton kernels, fused so that a decode step is a short list of launches.

The cache of a layer is blocks x K x S x D: what one program of the attention reads of a block is one piece.
Values are rounded to the model's dtype where `transformers` rounds them, so that both sample from nearly the same
distribution in bfloat16. Suffixes as in `architecture`.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from rstar2.engine.embedded.architecture import Batch, rotary_table
from rstar2.engine.embedded.options import PREFILL_TILE, Limits
from rstar2.engine.embedded.weights import LayerWeights, Weights
from rstar2.errors import UserError

_CONTEXT_TILE = 64
_MIN_DOT = 16
"""The smallest side of a matrix that Triton multiplies."""
_VOCABULARY_TILE = 4096
_MAX_SPLITS = 16
_ENOUGH_PROGRAMS = 2048
"""Of decode attention, at two warps each: about what an H200's 132 multiprocessors hold at once."""
_LOG2_E = 1.4426950408889634


class CudaKernels:
    def __init__(self, weights: Weights, limits: Limits) -> None:
        self._shape = shape = weights.shape
        if shape.head_dim < _MIN_DOT or shape.head_dim & (shape.head_dim - 1):
            raise UserError(
                f"model: its head dimension is {shape.head_dim}; on CUDA it must be a power of 2 from 16 on"
            )
        self._block_size = limits.block_size
        self._rotary = rotary_table(weights, limits.max_context_tokens)
        cache_shape = (len(weights.layers), 2, limits.num_blocks, shape.num_kv_heads, limits.block_size, shape.head_dim)
        self._cache = torch.zeros(cache_shape, dtype=weights.dtype, device=weights.device)
        self._group_size = shape.num_heads // shape.num_kv_heads
        self._score_scale = shape.head_dim**-0.5 * _LOG2_E

    def add_norm(self, hidden_TH: Tensor, residual_TH: Tensor | None, weight_H: Tensor) -> tuple[Tensor, Tensor]:
        """The sum is left in `residual_TH`."""
        num_tokens, width = hidden_TH.shape
        normed_TH = torch.empty_like(hidden_TH)
        sum_TH = hidden_TH if residual_TH is None else residual_TH
        _add_norm_kernel[(num_tokens,)](
            hidden_TH,
            sum_TH,
            weight_H,
            normed_TH,
            width,
            self._shape.norm_eps,
            HAS_RESIDUAL=residual_TH is not None,
            WIDTH=triton.next_power_of_2(width),
        )
        return normed_TH, sum_TH

    def gate(self, gate_up_TX: Tensor) -> Tensor:
        num_tokens, width = gate_up_TX.shape
        out_TX = gate_up_TX.new_empty((num_tokens, width // 2))
        _gate_kernel[(num_tokens, triton.cdiv(width // 2, 1024))](gate_up_TX, out_TX, width // 2, WIDTH=1024)
        return out_TX

    def attend(self, qkv_TX: Tensor, layer: LayerWeights, layer_index: int, batch: Batch) -> Tensor:
        shape, num_tokens = self._shape, len(qkv_TX)
        keys, values = self._cache[layer_index]
        sizes: dict[str, Any] = {"K": shape.num_kv_heads, "D": shape.head_dim, "S": self._block_size}
        has_norms = layer.q_norm is not None
        _rotate_and_store_kernel[(num_tokens,)](
            qkv_TX,
            batch.positions_T,
            batch.slots_T,
            self._rotary,
            layer.q_norm if has_norms else qkv_TX,
            layer.k_norm if has_norms else qkv_TX,
            keys,
            values,
            qkv_TX.stride(0),
            shape.norm_eps,
            N=shape.num_heads,
            HEAD_TILE=triton.next_power_of_2(shape.num_heads + shape.num_kv_heads),
            HAS_NORMS=has_norms,
            **sizes,
            num_warps=2,
        )
        out_TX = qkv_TX.new_empty((num_tokens, shape.num_heads * shape.head_dim))
        if batch.tiles is None:
            self._attend_rows(qkv_TX, out_TX, keys, values, batch, sizes)
        else:
            _attend_tiles_kernel[(len(batch.tiles), shape.num_heads)](
                qkv_TX,
                out_TX,
                keys,
                values,
                batch.table_RP,
                batch.positions_T,
                batch.tiles,
                qkv_TX.stride(0),
                batch.table_RP.stride(0),
                self._score_scale,
                G=self._group_size,
                Q_TILE=PREFILL_TILE,
                L_TILE=_CONTEXT_TILE,
                **sizes,
                num_warps=4,
                num_stages=2,
            )
        return out_TX

    def _attend_rows(
        self, qkv_BX: Tensor, out_BX: Tensor, keys: Tensor, values: Tensor, batch: Batch, sizes: dict[str, Any]
    ) -> None:
        shape, num_rows = self._shape, len(qkv_BX)
        num_splits = _num_splits(num_rows * shape.num_kv_heads)
        partial_shape = (num_rows, shape.num_heads, num_splits, shape.head_dim + 2)
        target = out_BX if num_splits == 1 else out_BX.new_empty(partial_shape, dtype=torch.float32)
        _attend_rows_kernel[(num_rows, shape.num_kv_heads, num_splits)](
            qkv_BX,
            target,
            keys,
            values,
            batch.table_RP,
            batch.positions_T,
            qkv_BX.stride(0),
            batch.table_RP.stride(0),
            self._score_scale,
            G=self._group_size,
            G_TILE=max(_MIN_DOT, triton.next_power_of_2(self._group_size)),
            L_TILE=_CONTEXT_TILE,
            NUM_SPLITS=num_splits,
            **sizes,
            num_warps=2,
            num_stages=4,
        )
        if num_splits > 1:
            _combine_kernel[(num_rows * shape.num_heads,)](
                target, out_BX, NUM_SPLITS=num_splits, D=shape.head_dim, num_warps=1
            )

    def draw(
        self, logits_BV: Tensor, uniform_B: Tensor, inverse_temperature_B: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        num_rows, vocab_size = logits_BV.shape
        token_B = torch.empty(num_rows, dtype=torch.int64, device=logits_BV.device)
        log_prob_B, entropy_B = (torch.empty(num_rows, device=logits_BV.device) for _ in range(2))
        _draw_kernel[(num_rows,)](
            logits_BV,
            uniform_B.float(),
            inverse_temperature_B,
            token_B,
            log_prob_B,
            entropy_B,
            vocab_size,
            V_TILE=_VOCABULARY_TILE,
            num_warps=8,
        )
        return token_B, log_prob_B, entropy_B


def _num_splits(num_programs: int) -> int:
    """Into how many parts each row's context is cut, so that few rows still fill the GPU."""
    num_splits = 1
    while num_splits < _MAX_SPLITS and 2 * num_splits * num_programs <= _ENOUGH_PROGRAMS:
        num_splits *= 2
    return num_splits


@triton.jit
def _add_norm_kernel(hidden, total, weight, normed, width, eps, HAS_RESIDUAL: tl.constexpr, WIDTH: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * width
    column = tl.arange(0, WIDTH)
    mask = column < width
    x = tl.load(hidden + row + column, mask, other=0.0)
    if HAS_RESIDUAL:
        residual = tl.load(total + row + column, mask, other=0.0)
        x = (x.to(tl.float32) + residual.to(tl.float32)).to(residual.dtype)
        tl.store(total + row + column, x, mask)
    x32 = x.to(tl.float32)
    scale = tl.rsqrt(tl.sum(x32 * x32, 0) / width + eps)
    rounded = (x32 * scale).to(x.dtype)
    tl.store(normed + row + column, rounded * tl.load(weight + column, mask, other=0.0), mask)


@triton.jit
def _gate_kernel(gate_up, out, width, WIDTH: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    mask = column < width
    gate = tl.load(gate_up + row * 2 * width + column, mask, other=0.0)
    up = tl.load(gate_up + row * 2 * width + width + column, mask, other=0.0)
    gate32 = gate.to(tl.float32)
    activated = (gate32 / (1.0 + tl.exp(-gate32))).to(gate.dtype)
    tl.store(out + row * width + column, activated * up, mask)


@triton.jit
def _rotate_and_store_kernel(
    qkv,
    positions,
    slots,
    rotary,
    q_norm,
    k_norm,
    keys,
    values,
    qkv_stride,
    eps,
    N: tl.constexpr,
    HEAD_TILE: tl.constexpr,
    HAS_NORMS: tl.constexpr,
    K: tl.constexpr,
    D: tl.constexpr,
    S: tl.constexpr,
):
    """One token, all heads: queries are rotated in place; keys are rotated into the cache, values beside them."""
    token = tl.program_id(0).to(tl.int64)
    position = tl.load(positions + token)
    if position >= 0:
        head = tl.arange(0, HEAD_TILE)[:, None]
        half = tl.arange(0, D // 2)[None, :]
        is_head = head < N + K
        is_query = head < N
        is_key = is_head & (head >= N)
        source = qkv + token * qkv_stride + head * D + half
        first = tl.load(source, is_head, other=0.0)
        second = tl.load(source + D // 2, is_head, other=0.0)
        if HAS_NORMS:
            first32, second32 = first.to(tl.float32), second.to(tl.float32)
            mean = (tl.sum(first32 * first32, 1) + tl.sum(second32 * second32, 1)) / D
            scale = tl.rsqrt(mean + eps)[:, None]
            first_norm = tl.where(is_query, tl.load(q_norm + half), tl.load(k_norm + half))
            second_norm = tl.where(is_query, tl.load(q_norm + D // 2 + half), tl.load(k_norm + D // 2 + half))
            first = (first32 * scale).to(first.dtype) * first_norm
            second = (second32 * scale).to(second.dtype) * second_norm
        cos = tl.load(rotary + position * D + half).to(tl.float32)
        sin = tl.load(rotary + position * D + D // 2 + half).to(tl.float32)
        first32, second32 = first.to(tl.float32), second.to(tl.float32)
        rotated_first = (first32 * cos - second32 * sin).to(first.dtype)
        rotated_second = (second32 * cos + first32 * sin).to(first.dtype)
        tl.store(source, rotated_first, is_query)
        tl.store(source + D // 2, rotated_second, is_query)
        slot = tl.load(slots + token)
        place = (((slot // S) * K + head - N) * S + slot % S) * D + half
        tl.store(keys + place, rotated_first, is_key)
        tl.store(keys + place + D // 2, rotated_second, is_key)
        tl.store(values + place, tl.load(source + K * D, is_key), is_key)
        tl.store(values + place + D // 2, tl.load(source + K * D + D // 2, is_key), is_key)


@triton.jit
def _attend_rows_kernel(
    qkv,
    out,
    keys,
    values,
    table,
    positions,
    qkv_stride,
    table_stride,
    score_scale,
    G: tl.constexpr,
    G_TILE: tl.constexpr,
    L_TILE: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    K: tl.constexpr,
    D: tl.constexpr,
    S: tl.constexpr,
):
    """One row's one query token, for all the query heads that share a key-value head, over one part of its context.
    With several parts `out` takes each part's unnormalized sum, its total and its highest score."""
    row = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    position = tl.load(positions + row).to(tl.int32)
    if position >= 0:
        group = tl.arange(0, G_TILE)
        column = tl.arange(0, D)
        query_place = (kv_head * G + group)[:, None] * D + column[None, :]
        q_GD = tl.load(qkv + row * qkv_stride + query_place, group[:, None] < G, other=0.0)
        highest_G = tl.full((G_TILE,), -1e30, tl.float32)
        total_G = tl.zeros((G_TILE,), tl.float32)
        out_GD = tl.zeros((G_TILE, D), tl.float32)
        part = tl.cdiv(tl.cdiv(position + 1, L_TILE), NUM_SPLITS) * L_TILE
        for start in range(split * part, tl.minimum(split * part + part, position + 1), L_TILE):
            context = start + tl.arange(0, L_TILE)
            is_past = context <= position
            block = tl.load(table + row * table_stride + context // S, is_past, other=0).to(tl.int64)
            place = ((block * K + kv_head) * S + context % S) * D
            k_DL = tl.load(keys + place[None, :] + column[:, None], is_past[None, :], other=0.0)
            scores_GL = tl.dot(q_GD, k_DL, input_precision="ieee") * score_scale
            scores_GL = tl.where(is_past[None, :], scores_GL, -1e30)
            new_highest_G = tl.maximum(highest_G, tl.max(scores_GL, 1))
            shrink_G = tl.exp2(highest_G - new_highest_G)
            weights_GL = tl.exp2(scores_GL - new_highest_G[:, None])
            total_G = total_G * shrink_G + tl.sum(weights_GL, 1)
            v_LD = tl.load(values + place[:, None] + column[None, :], is_past[:, None], other=0.0)
            out_GD = out_GD * shrink_G[:, None] + tl.dot(weights_GL.to(v_LD.dtype), v_LD, input_precision="ieee")
            highest_G = new_highest_G
        if NUM_SPLITS == 1:
            out_GD = (out_GD / total_G[:, None]).to(q_GD.dtype)
            tl.store(out + row * (K * G * D) + query_place, out_GD, group[:, None] < G)
        else:
            partial = out + ((row * (K * G) + kv_head * G + group) * NUM_SPLITS + split) * (D + 2)
            tl.store(partial[:, None] + column[None, :], out_GD, group[:, None] < G)
            tl.store(partial + D, total_G, group < G)
            tl.store(partial + D + 1, highest_G, group < G)


@triton.jit
def _combine_kernel(partials, out, NUM_SPLITS: tl.constexpr, D: tl.constexpr):
    """One row's one query head: its parts brought to the same highest score and added up."""
    row_head = tl.program_id(0).to(tl.int64)
    split = tl.arange(0, NUM_SPLITS)
    column = tl.arange(0, D)
    partial = partials + (row_head * NUM_SPLITS + split) * (D + 2)
    highest = tl.load(partial + D + 1)
    scale = tl.exp2(highest - tl.max(highest, 0))
    total = tl.sum(tl.load(partial + D) * scale, 0)
    summed = tl.sum(tl.load(partial[:, None] + column[None, :]) * scale[:, None], 0)
    tl.store(out + row_head * D + column, (summed / total).to(out.dtype.element_ty))


@triton.jit
def _attend_tiles_kernel(
    qkv,
    out,
    keys,
    values,
    table,
    positions,
    tiles,
    qkv_stride,
    table_stride,
    score_scale,
    G: tl.constexpr,
    Q_TILE: tl.constexpr,
    L_TILE: tl.constexpr,
    K: tl.constexpr,
    D: tl.constexpr,
    S: tl.constexpr,
):
    """A tile of one sequence's query tokens, for one head, over all of the sequence's context that is computed."""
    tile = tl.program_id(0)
    head = tl.program_id(1)
    kv_head = head // G
    row = tl.load(tiles + tile * 3).to(tl.int64)
    token = tl.load(tiles + tile * 3 + 1).to(tl.int64) + tl.arange(0, Q_TILE)
    is_token = token < tl.load(tiles + tile * 3 + 2)
    position = tl.load(positions + token, is_token, other=-1).to(tl.int32)
    last_position = tl.max(position, 0)
    column = tl.arange(0, D)
    q_QD = tl.load(qkv + token[:, None] * qkv_stride + head * D + column[None, :], is_token[:, None], other=0.0)
    highest_Q = tl.full((Q_TILE,), -1e30, tl.float32)
    total_Q = tl.zeros((Q_TILE,), tl.float32)
    out_QD = tl.zeros((Q_TILE, D), tl.float32)
    for start in range(0, last_position + 1, L_TILE):
        context = start + tl.arange(0, L_TILE)
        is_known = context <= last_position
        block = tl.load(table + row * table_stride + context // S, is_known, other=0).to(tl.int64)
        place = ((block * K + kv_head) * S + context % S) * D
        k_DL = tl.load(keys + place[None, :] + column[:, None], is_known[None, :], other=0.0)
        scores_QL = tl.dot(q_QD, k_DL, input_precision="ieee") * score_scale
        scores_QL = tl.where(context[None, :] <= position[:, None], scores_QL, -1e30)
        new_highest_Q = tl.maximum(highest_Q, tl.max(scores_QL, 1))
        shrink_Q = tl.exp2(highest_Q - new_highest_Q)
        weights_QL = tl.exp2(scores_QL - new_highest_Q[:, None])
        total_Q = total_Q * shrink_Q + tl.sum(weights_QL, 1)
        v_LD = tl.load(values + place[:, None] + column[None, :], is_known[:, None], other=0.0)
        out_QD = out_QD * shrink_Q[:, None] + tl.dot(weights_QL.to(v_LD.dtype), v_LD, input_precision="ieee")
        highest_Q = new_highest_Q
    out_QD = (out_QD / total_Q[:, None]).to(q_QD.dtype)
    tl.store(out + token[:, None] * (K * G * D) + head * D + column[None, :], out_QD, is_token[:, None])


@triton.jit
def _draw_kernel(
    logits, uniforms, inverse_temperatures, tokens, log_probs, entropies, vocab_size, V_TILE: tl.constexpr
):
    """As `sampler.draw`: one pass for the normalizer, the entropy and the likeliest token, one to invert."""
    row = tl.program_id(0).to(tl.int64)
    inverse_temperature = tl.load(inverse_temperatures + row)
    is_greedy = inverse_temperature == 0.0
    scale = tl.where(is_greedy, 1.0, inverse_temperature)
    source = logits + row * vocab_size
    highest = -float("inf")
    likeliest = 0
    total = 0.0
    weighted = 0.0
    for start in range(0, vocab_size, V_TILE):
        column = start + tl.arange(0, V_TILE)
        x = tl.load(source + column, column < vocab_size, other=-float("inf")).to(tl.float32) * scale
        tile_highest = tl.max(x, 0)
        likeliest = tl.where(tile_highest > highest, tl.argmax(x, 0) + start, likeliest)
        new_highest = tl.maximum(highest, tile_highest)
        anchor = tl.where(new_highest == -float("inf"), 0.0, new_highest)
        shrink = tl.exp(highest - anchor)
        weight = tl.exp(x - anchor)
        total = total * shrink + tl.sum(weight, 0)
        weighted = weighted * shrink + tl.sum(tl.where(weight > 0, x * weight, 0.0), 0)
        highest = new_highest
    log_total = highest + tl.log(total)
    tl.store(entropies + row, log_total - weighted / total)
    uniform = tl.load(uniforms + row)
    drawn = vocab_size
    mass = 0.0
    for start in range(0, vocab_size, V_TILE):
        column = start + tl.arange(0, V_TILE)
        x = tl.load(source + column, column < vocab_size, other=-float("inf")).to(tl.float32) * scale
        prob = tl.exp(x - log_total)
        # A sum by halves may dip by a rounding; asking for a probability of its own keeps cut tokens out.
        is_passed = (mass + tl.cumsum(prob, 0) > uniform) & (prob > 0)
        drawn = tl.minimum(drawn, tl.min(tl.where(is_passed, column, vocab_size), 0))
        mass += tl.sum(prob, 0)
    token = tl.where(is_greedy | (drawn >= vocab_size), likeliest, drawn)
    tl.store(tokens + row, token)
    tl.store(log_probs + row, tl.load(source + token).to(tl.float32) * scale - log_total)
