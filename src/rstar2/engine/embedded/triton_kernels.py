# mypy: ignore-errors
# Triton comes only with a CUDA build of PyTorch, and its kernels cannot be type-checked.
"""The GPU's kernels themselves. Each docstring says what one program does; `kernels_cuda` launches them.

Values are rounded to the model's dtype where `transformers` rounds them, so that both sample from nearly the same
distribution in bfloat16. Sizes in capitals are compile-time constants, named as in `architecture`; a suffix gives the
shape of a tile.
"""

import triton
import triton.language as tl


@triton.jit
def add_norm_kernel(hidden, residual, weight, total, normed, width, eps, IS_SUM: tl.constexpr, WIDTH: tl.constexpr):
    """One token: hidden state plus residual, and that sum normed. The trainer launches it, too."""
    row = tl.program_id(0).to(tl.int64) * width
    column = tl.arange(0, WIDTH)
    mask = column < width
    x = tl.load(hidden + row + column, mask, other=0.0)
    if IS_SUM:
        x = (x.to(tl.float32) + tl.load(residual + row + column, mask, other=0.0).to(tl.float32)).to(x.dtype)
        tl.store(total + row + column, x, mask)
    x32 = x.to(tl.float32)
    scale = tl.rsqrt(tl.sum(x32 * x32, 0) / width + eps)
    rounded = (x32 * scale).to(x.dtype)
    tl.store(normed + row + column, rounded * tl.load(weight + column, mask, other=0.0), mask)


@triton.jit
def gate_kernel(gate_up, out, width, TILE: tl.constexpr):
    """One tile of one token: silu(gate) * up. The trainer launches it, too."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    mask = column < width
    gate = tl.load(gate_up + row * 2 * width + column, mask, other=0.0)
    up = tl.load(gate_up + row * 2 * width + width + column, mask, other=0.0)
    gate32 = gate.to(tl.float32)
    activated = (gate32 / (1.0 + tl.exp(-gate32))).to(gate.dtype)
    tl.store(out + row * width + column, activated * up, mask)


@triton.jit
def rotate_and_store_kernel(
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
def attend_rows_kernel(
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
def combine_kernel(partials, out, NUM_SPLITS: tl.constexpr, D: tl.constexpr):
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
def attend_tiles_kernel(
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
def draw_kernel(logits, uniforms, inverse_temperatures, tokens, log_probs, entropies, vocab_size, V_TILE: tl.constexpr):
    """One row, as `sampler.draw`: a pass for the normalizer, the entropy and the likeliest token, which each lane keeps
    for itself until the end; then a second one, up to the tile in which the cumulated probability passes the number."""
    row = tl.program_id(0).to(tl.int64)
    inverse_temperature = tl.load(inverse_temperatures + row)
    is_greedy = inverse_temperature == 0.0
    scale = tl.where(is_greedy, 1.0, inverse_temperature)
    source = logits + row * vocab_size
    lane = tl.arange(0, V_TILE)
    highest_V = tl.full((V_TILE,), -float("inf"), tl.float32)
    total_V = tl.zeros((V_TILE,), tl.float32)
    weighted_V = tl.zeros((V_TILE,), tl.float32)
    likeliest_V = lane
    for start in range(0, vocab_size, V_TILE):
        column = start + lane
        x_V = tl.load(source + column, column < vocab_size, other=-float("inf")).to(tl.float32) * scale
        likeliest_V = tl.where(x_V > highest_V, column, likeliest_V)
        new_highest_V = tl.maximum(highest_V, x_V)
        anchor_V = tl.where(new_highest_V == -float("inf"), 0.0, new_highest_V)
        shrink_V = tl.exp(highest_V - anchor_V)
        weight_V = tl.exp(x_V - anchor_V)
        total_V = total_V * shrink_V + weight_V
        weighted_V = weighted_V * shrink_V + tl.where(weight_V > 0, x_V * weight_V, 0.0)
        highest_V = new_highest_V
    highest = tl.max(highest_V, 0)
    share_V = tl.exp(highest_V - highest)
    total = tl.sum(total_V * share_V, 0)
    weighted = tl.sum(weighted_V * share_V, 0)
    likeliest = tl.min(tl.where(highest_V == highest, likeliest_V, vocab_size), 0)
    log_total = highest + tl.log(total)
    tl.store(entropies + row, log_total - weighted / total)
    uniform = tl.load(uniforms + row)
    start = 0
    mass = 0.0
    tile_mass = 0.0
    while (start < vocab_size) & (mass + tile_mass <= uniform) & (is_greedy == 0):
        mass += tile_mass
        column = start + lane
        x_V = tl.load(source + column, column < vocab_size, other=-float("inf")).to(tl.float32) * scale
        tile_mass = tl.sum(tl.exp(x_V - log_total), 0)
        start += V_TILE
    column = tl.maximum(start - V_TILE, 0) + lane
    x_V = tl.load(source + column, column < vocab_size, other=-float("inf")).to(tl.float32) * scale
    prob_V = tl.exp(x_V - log_total)
    # A sum by halves may dip by a rounding; requiring a probability above 0 keeps cut tokens out.
    is_passed_V = (mass + tl.cumsum(prob_V, 0) > uniform) & (prob_V > 0)
    drawn = tl.min(tl.where(is_passed_V, column, vocab_size), 0)
    token = tl.where(is_greedy | (drawn >= vocab_size), likeliest, drawn)
    tl.store(tokens + row, token)
    tl.store(log_probs + row, tl.load(source + token).to(tl.float32) * scale - log_total)


@triton.jit
def log_prob_kernel(
    logits,
    targets,
    inverse_temperatures,
    log_probs,
    entropies,
    normalizers,
    vocab_size,
    temperature_stride,
    TILE: tl.constexpr,
):
    """The log-probability of the row's target, and the entropy; the running sums are rescaled whenever a larger logit
    is met. The trainer launches it, and a batch-invariant engine."""
    row = tl.program_id(0).to(tl.int64)
    inverse_temperature = tl.load(inverse_temperatures + row * temperature_stride)
    largest = float("-inf")
    total = 0.0
    weighted = 0.0
    for start in range(0, vocab_size, TILE):
        column = start + tl.arange(0, TILE)
        mask = column < vocab_size
        x = tl.load(logits + row * vocab_size + column, mask, other=float("-inf")).to(tl.float32) * inverse_temperature
        larger = tl.maximum(largest, tl.max(x, 0))
        shrinks_by = tl.exp(largest - larger)
        weight = tl.exp(x - larger)
        total = total * shrinks_by + tl.sum(weight, 0)
        weighted = weighted * shrinks_by + tl.sum(weight * tl.where(weight > 0, x, 0.0), 0)
        largest = larger
    normalizer = largest + tl.log(total)
    target = tl.load(targets + row)
    chosen = tl.load(logits + row * vocab_size + target).to(tl.float32) * inverse_temperature
    tl.store(log_probs + row, chosen - normalizer)
    tl.store(entropies + row, normalizer - weighted / total)
    tl.store(normalizers + row, normalizer)
