"""Batch-invariant operations on a GPU: each bit of a token's results depends on its own sequence alone.

The libraries choose the reduction order of a product by its number of rows, and that of attention by how many sequences
there are. So an engine, which decodes tokens one by one beside other sequences, and a trainer, which computes a
sequence at once, round differently. With the operations here both get the same bits, and the log-probabilities of a
rollout are exactly those that the trainer computes before its first step.

It covers products and attention. The other operations work on one row at a time, and are the same kernels in both.
Suffixes are those of `architecture`; I inputs and O outputs of a projection.
"""

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from rstar2.engine.embedded.weights import LayerWeights, Linear, Projection, Shape, Weights

_ROW_TILE, _OUT_TILE, _IN_TILE = 128, 128, 64
_SWIZZLE = 8
_MIN_ROWS = 16
"""Rows of an attention tile: the fewest that Triton multiplies, because a decode step has one token a sequence."""
_CONTEXT_TILE = 64
_LOG2_E = 1.4426950408889634


def linear(x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
    from rstar2.engine.embedded.invariant_kernels import linear_kernel

    x_TI = x_TI.contiguous()
    (num_rows, num_inputs), num_outputs = x_TI.shape, len(weight_OI)
    out_TO = x_TI.new_empty((num_rows, num_outputs))
    num_programs = -(-num_rows // _ROW_TILE) * -(-num_outputs // _OUT_TILE)
    if num_programs:
        linear_kernel[(num_programs,)](
            x_TI,
            weight_OI,
            bias_O,
            out_TO,
            num_rows,
            num_outputs,
            num_inputs,
            HAS_BIAS=bias_O is not None,
            IS_EVEN=num_inputs % _IN_TILE == 0,
            ROW_TILE=_ROW_TILE,
            OUT_TILE=_OUT_TILE,
            IN_TILE=_IN_TILE,
            SWIZZLE=_SWIZZLE,
            num_warps=8,
            num_stages=4,
        )
    return out_TO


def with_invariant_products(weights: Weights) -> Weights:
    """The same parameters, multiplied by `linear`."""

    def invariant(projection: Projection) -> Projection:
        assert isinstance(projection, Linear)
        return partial(linear, weight_OI=projection.weight, bias_O=projection.bias)

    def layer(each: LayerWeights) -> LayerWeights:
        return replace(
            each,
            qkv=invariant(each.qkv),
            attention_out=invariant(each.attention_out),
            gate_up=invariant(each.gate_up),
            down=invariant(each.down),
        )

    return replace(weights, layers=tuple(map(layer, weights.layers)), head=invariant(weights.head))


def attend(
    qkv_TX: Tensor,
    keys: Tensor,
    values: Tensor,
    block_size: int,
    table_RP: Tensor,
    positions_T: Tensor,
    tiles: Tensor,
    shape: Shape,
) -> tuple[Tensor, Tensor]:
    """The attention output of each token, T x (N D), and the logarithm of the sum of its weights, N x T. Queries and
    keys are rotated already; a tile is a row of the table, its first token, and its last token + 1."""
    from rstar2.engine.embedded.invariant_kernels import attend_kernel

    num_tokens = len(qkv_TX)
    out_TX = qkv_TX.new_empty((num_tokens, shape.num_heads * shape.head_dim))
    normalizer_NT = qkv_TX.new_empty((shape.num_heads, num_tokens), dtype=torch.float32)
    group_tile = _group_tile(shape)
    attend_kernel[(len(tiles), shape.num_kv_heads)](
        qkv_TX,
        out_TX,
        normalizer_NT,
        keys,
        values,
        table_RP,
        positions_T,
        tiles,
        qkv_TX.stride(0),
        table_RP.stride(0),
        num_tokens,
        shape.head_dim**-0.5 * _LOG2_E,
        G=shape.num_heads // shape.num_kv_heads,
        G_TILE=group_tile,
        ROW_TILE=max(_MIN_ROWS, group_tile),
        L_TILE=_CONTEXT_TILE,
        K=shape.num_kv_heads,
        D=shape.head_dim,
        S=block_size,
        num_warps=2,
        num_stages=4,
    )
    return out_TX, normalizer_NT


def queries_per_tile(shape: Shape) -> int:
    return max(1, _MIN_ROWS // _group_tile(shape))


def _group_tile(shape: Shape) -> int:
    return 1 << (shape.num_heads // shape.num_kv_heads - 1).bit_length()
