# mypy: ignore-errors
# Triton comes only with a CUDA build of PyTorch, and its kernels cannot be type-checked.
"""The kernels of `invariant`: one reduction order, whatever is in the batch. Each docstring says what one program does.

Rows of a tile never mix, so it does not matter which rows share a tile, or whether any do. The shape of a tile could
matter, because the compiler chooses instructions by it: every caller uses the same.
"""

import triton
import triton.language as tl


@triton.jit
def linear_kernel(
    x,
    weight,
    bias,
    out,
    num_rows,
    num_outputs,
    num_inputs,
    HAS_BIAS: tl.constexpr,
    IS_EVEN: tl.constexpr,
    ROW_TILE: tl.constexpr,
    OUT_TILE: tl.constexpr,
    IN_TILE: tl.constexpr,
    SWIZZLE: tl.constexpr,
):
    """One tile of `x @ weight.T + bias`. Neighbouring programs share rows and weights, which the GPU's cache holds."""
    program = tl.program_id(0)
    num_row_tiles, num_out_tiles = tl.cdiv(num_rows, ROW_TILE), tl.cdiv(num_outputs, OUT_TILE)
    in_group = SWIZZLE * num_out_tiles
    first_row_tile = (program // in_group) * SWIZZLE
    group_size = tl.minimum(num_row_tiles - first_row_tile, SWIZZLE)
    row_tile = first_row_tile + (program % in_group) % group_size
    out_tile = (program % in_group) // group_size
    row = row_tile * ROW_TILE + tl.arange(0, ROW_TILE)
    column = out_tile * OUT_TILE + tl.arange(0, OUT_TILE)
    place = tl.arange(0, IN_TILE)
    # Beyond the last row another row is computed in its place, and not stored.
    x_place = x + (row % num_rows).to(tl.int64)[:, None] * num_inputs + place[None, :]
    weight_place = weight + (column % num_outputs).to(tl.int64)[None, :] * num_inputs + place[:, None]
    total = tl.zeros((ROW_TILE, OUT_TILE), tl.float32)
    for start in range(0, num_inputs, IN_TILE):
        if IS_EVEN:
            x_tile, weight_tile = tl.load(x_place), tl.load(weight_place)
        else:
            is_input = place < num_inputs - start
            x_tile = tl.load(x_place, is_input[None, :], other=0.0)
            weight_tile = tl.load(weight_place, is_input[:, None], other=0.0)
        total = tl.dot(x_tile, weight_tile, total)
        x_place += IN_TILE
        weight_place += IN_TILE
    if HAS_BIAS:
        total += tl.load(bias + column, column < num_outputs, other=0.0).to(tl.float32)[None, :]
    is_inside = (row < num_rows)[:, None] & (column < num_outputs)[None, :]
    out_place = out + row.to(tl.int64)[:, None] * num_outputs + column[None, :]
    tl.store(out_place, total.to(out.dtype.element_ty), is_inside)


@triton.jit
def attend_kernel(
    qkv,
    out,
    normalizers,
    keys,
    values,
    table,
    positions,
    tiles,
    qkv_stride,
    table_stride,
    num_tokens,
    score_scale,
    G: tl.constexpr,
    G_TILE: tl.constexpr,
    ROW_TILE: tl.constexpr,
    L_TILE: tl.constexpr,
    K: tl.constexpr,
    D: tl.constexpr,
    S: tl.constexpr,
):
    """A few query tokens of one sequence, for all the query heads that share a key-value head, over the sequence's
    context from its beginning. Beside the result it stores the logarithm of the sum of the weights."""
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    row = tl.load(tiles + tile * 3).to(tl.int64)
    lane = tl.arange(0, ROW_TILE)
    token = tl.load(tiles + tile * 3 + 1).to(tl.int64) + lane // G_TILE
    is_query = (token < tl.load(tiles + tile * 3 + 2)) & (lane % G_TILE < G)
    head = kv_head * G + lane % G_TILE
    position = tl.load(positions + token, is_query, other=-1).to(tl.int32)
    last_position = tl.max(position, 0)
    column = tl.arange(0, D)
    q_place = token[:, None] * qkv_stride + head[:, None] * D + column[None, :]
    q_QD = tl.load(qkv + q_place, is_query[:, None], other=0.0)
    highest_Q = tl.full((ROW_TILE,), -1e30, tl.float32)
    total_Q = tl.zeros((ROW_TILE,), tl.float32)
    out_QD = tl.zeros((ROW_TILE, D), tl.float32)
    for start in range(0, last_position + 1, L_TILE):
        context = start + tl.arange(0, L_TILE)
        is_known = context <= last_position
        block = tl.load(table + row * table_stride + context // S, is_known, other=0).to(tl.int64)
        place = ((block * K + kv_head) * S + context % S) * D
        k_DL = tl.load(keys + place[None, :] + column[:, None], is_known[None, :], other=0.0)
        scores_QL = tl.dot(q_QD, k_DL) * score_scale
        # Beyond a query's own position nothing counts, and what is computed there changes no bit.
        scores_QL = tl.where(context[None, :] <= position[:, None], scores_QL, -1e30)
        new_highest_Q = tl.maximum(highest_Q, tl.max(scores_QL, 1))
        shrink_Q = tl.exp2(highest_Q - new_highest_Q)
        weights_QL = tl.exp2(scores_QL - new_highest_Q[:, None])
        total_Q = total_Q * shrink_Q + tl.sum(weights_QL, 1)
        v_LD = tl.load(values + place[:, None] + column[None, :], is_known[:, None], other=0.0)
        out_QD = out_QD * shrink_Q[:, None] + tl.dot(weights_QL.to(v_LD.dtype), v_LD)
        highest_Q = new_highest_Q
    total_Q = tl.where(total_Q > 0, total_Q, 1.0)  # of a row without a query
    out_QD = (out_QD / total_Q[:, None]).to(q_QD.dtype)
    tl.store(out + token[:, None] * (K * G * D) + head[:, None] * D + column[None, :], out_QD, is_query[:, None])
    tl.store(normalizers + head * num_tokens + token, (highest_Q + tl.log2(total_Q)) / 1.4426950408889634, is_query)
