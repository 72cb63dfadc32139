# mypy: ignore-errors
# Triton comes only with a CUDA build of PyTorch, and its kernels cannot be type-checked.
"""The update's GPU kernels, which `operations` launches besides those of the embedded engine. Each docstring says what
one program does.

Values are rounded to the model's dtype where the embedded engine rounds them. Sizes in capitals are compile-time
constants: N query heads, K key-value heads, D width of a head.
"""

import triton
import triton.language as tl


@triton.jit
def log_prob_gradient_kernel(
    logits, targets, normalizers, gradients, out, vocab_size, inverse_temperature, TILE: tl.constexpr
):
    """The gradient of one tile of the row's logits."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    mask = column < vocab_size
    x = tl.load(logits + row * vocab_size + column, mask, other=0.0).to(tl.float32) * inverse_temperature
    probability = tl.exp(x - tl.load(normalizers + row))
    is_target = tl.where(column == tl.load(targets + row), 1.0, 0.0)
    gradient = tl.load(gradients + row) * inverse_temperature * (is_target - probability)
    tl.store(out + row * vocab_size + column, gradient.to(out.dtype.element_ty), mask)


@triton.jit
def add_norm_gradient_kernel(
    total,
    weight,
    normed_gradient,
    total_gradient,
    out,
    weight_gradients,
    num_rows,
    width,
    eps,
    HAS_TOTAL_GRADIENT: tl.constexpr,
    HAS_WEIGHT_GRADIENT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Each program takes every N-th token. The gradient of the weight is left as one row a program, to be summed."""
    column = tl.arange(0, WIDTH)
    mask = column < width
    w = tl.load(weight + column, mask, other=0.0).to(tl.float32)
    weight_gradient = tl.zeros((WIDTH,), tl.float32)
    for row in range(tl.program_id(0), num_rows, tl.num_programs(0)):
        place = row.to(tl.int64) * width + column
        x = tl.load(total + place, mask, other=0.0).to(tl.float32)
        dy = tl.load(normed_gradient + place, mask, other=0.0).to(tl.float32)
        scale = tl.rsqrt(tl.sum(x * x, 0) / width + eps)
        x_hat = x * scale
        if HAS_WEIGHT_GRADIENT:
            weight_gradient += dy * x_hat
        d_hat = dy * w
        dx = scale * (d_hat - x_hat * (tl.sum(d_hat * x_hat, 0) / width))
        if HAS_TOTAL_GRADIENT:
            dx += tl.load(total_gradient + place, mask, other=0.0).to(tl.float32)
        tl.store(out + place, dx.to(out.dtype.element_ty), mask)
    if HAS_WEIGHT_GRADIENT:
        tl.store(weight_gradients + tl.program_id(0) * width + column, weight_gradient, mask)


@triton.jit
def gate_gradient_kernel(gate_up, gradient, out, width, TILE: tl.constexpr):
    """One tile of one token: the gradients of gate and up. Forward: the embedded engine's `gate_kernel`."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    mask = column < width
    place = row * 2 * width + column
    gate = tl.load(gate_up + place, mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up + place + width, mask, other=0.0).to(tl.float32)
    dy = tl.load(gradient + row * width + column, mask, other=0.0).to(tl.float32)
    sigmoid = 1.0 / (1.0 + tl.exp(-gate))
    silu = gate * sigmoid
    tl.store(out + place, (dy * up * (sigmoid + silu * (1.0 - sigmoid))).to(out.dtype.element_ty), mask)
    tl.store(out + place + width, (dy * silu).to(out.dtype.element_ty), mask)


@triton.jit
def rotate_kernel(
    qkv,
    positions,
    rotary,
    q_norm,
    k_norm,
    out,
    eps,
    HAS_NORMS: tl.constexpr,
    HEAD_TILE: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    D: tl.constexpr,
):
    """One token, all heads: queries and keys normed where the model norms them, and rotated; values copied."""
    token = tl.program_id(0).to(tl.int64)
    position = tl.load(positions + token)
    head = tl.arange(0, HEAD_TILE)[:, None]
    half = tl.arange(0, D // 2)[None, :]
    is_head = head < N + 2 * K
    is_value = head >= N + K
    place = token * (N + 2 * K) * D + head * D + half
    first = tl.load(qkv + place, is_head, other=0.0)
    second = tl.load(qkv + place + D // 2, is_head, other=0.0)
    raw_first, raw_second = first, second
    if HAS_NORMS:
        first32, second32 = first.to(tl.float32), second.to(tl.float32)
        mean = (tl.sum(first32 * first32, 1) + tl.sum(second32 * second32, 1)) / D
        scale = tl.rsqrt(mean + eps)[:, None]
        first_norm = tl.where(head < N, tl.load(q_norm + half), tl.load(k_norm + half))
        second_norm = tl.where(head < N, tl.load(q_norm + D // 2 + half), tl.load(k_norm + D // 2 + half))
        first = (first32 * scale).to(first.dtype) * first_norm
        second = (second32 * scale).to(second.dtype) * second_norm
    cos = tl.load(rotary + position * D + half).to(tl.float32)
    sin = tl.load(rotary + position * D + D // 2 + half).to(tl.float32)
    first32, second32 = first.to(tl.float32), second.to(tl.float32)
    rotated_first = (first32 * cos - second32 * sin).to(first.dtype)
    rotated_second = (second32 * cos + first32 * sin).to(first.dtype)
    tl.store(out + place, tl.where(is_value, raw_first, rotated_first), is_head)
    tl.store(out + place + D // 2, tl.where(is_value, raw_second, rotated_second), is_head)


@triton.jit
def rotate_gradient_kernel(
    qkv,
    positions,
    rotary,
    q_norm,
    k_norm,
    dq,
    dk,
    dv,
    out,
    norm_gradients,
    num_tokens,
    eps,
    HAS_NORMS: tl.constexpr,
    HAS_NORM_GRADIENTS: tl.constexpr,
    HEAD_TILE: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    D: tl.constexpr,
):
    """Each program takes every N-th token, all heads: gradients of what `rotate_kernel` read. Those of the norms'
    weights are left as one row a program, those of queries before those of keys, to be summed."""
    head = tl.arange(0, HEAD_TILE)[:, None]
    half = tl.arange(0, D // 2)[None, :]
    is_head = head < N + 2 * K
    is_query = head < N
    is_key = (head >= N) & (head < N + K)
    is_value = (head >= N + K) & is_head
    if HAS_NORMS:
        first_norm = tl.where(is_query, tl.load(q_norm + half), tl.load(k_norm + half)).to(tl.float32)
        second_norm = tl.where(is_query, tl.load(q_norm + D // 2 + half), tl.load(k_norm + D // 2 + half)).to(
            tl.float32
        )
        first_sum = tl.zeros((HEAD_TILE, D // 2), tl.float32)
        second_sum = tl.zeros((HEAD_TILE, D // 2), tl.float32)
    for row in range(tl.program_id(0), num_tokens, tl.num_programs(0)):
        token = row.to(tl.int64)
        position = tl.load(positions + token)
        place_q = token * N * D + head * D + half
        place_k = token * K * D + (head - N) * D + half
        place_v = place_k - K * D
        dy_first = tl.load(dq + place_q, is_query, other=0.0).to(tl.float32)
        dy_second = tl.load(dq + place_q + D // 2, is_query, other=0.0).to(tl.float32)
        dy_first += tl.load(dk + place_k, is_key, other=0.0).to(tl.float32)
        dy_second += tl.load(dk + place_k + D // 2, is_key, other=0.0).to(tl.float32)
        cos = tl.load(rotary + position * D + half).to(tl.float32)
        sin = tl.load(rotary + position * D + D // 2 + half).to(tl.float32)
        d_first = dy_first * cos + dy_second * sin
        d_second = dy_second * cos - dy_first * sin
        place = token * (N + 2 * K) * D + head * D + half
        if HAS_NORMS:
            x_first = tl.load(qkv + place, is_query | is_key, other=0.0).to(tl.float32)
            x_second = tl.load(qkv + place + D // 2, is_query | is_key, other=0.0).to(tl.float32)
            scale = tl.rsqrt((tl.sum(x_first * x_first, 1) + tl.sum(x_second * x_second, 1)) / D + eps)[:, None]
            x_first, x_second = x_first * scale, x_second * scale
            first_sum += d_first * x_first
            second_sum += d_second * x_second
            d_first, d_second = d_first * first_norm, d_second * second_norm
            mean = ((tl.sum(d_first * x_first, 1) + tl.sum(d_second * x_second, 1)) / D)[:, None]
            d_first = scale * (d_first - x_first * mean)
            d_second = scale * (d_second - x_second * mean)
        d_first += tl.load(dv + place_v, is_value, other=0.0).to(tl.float32)
        d_second += tl.load(dv + place_v + D // 2, is_value, other=0.0).to(tl.float32)
        tl.store(out + place, d_first.to(out.dtype.element_ty), is_head)
        tl.store(out + place + D // 2, d_second.to(out.dtype.element_ty), is_head)
    if HAS_NORM_GRADIENTS:
        own = norm_gradients + tl.program_id(0) * 2 * D + tl.arange(0, D // 2)
        tl.store(own, tl.sum(tl.where(is_query, first_sum, 0.0), 0))
        tl.store(own + D // 2, tl.sum(tl.where(is_query, second_sum, 0.0), 0))
        tl.store(own + D, tl.sum(tl.where(is_key, first_sum, 0.0), 0))
        tl.store(own + D + D // 2, tl.sum(tl.where(is_key, second_sum, 0.0), 0))


@triton.jit
def merge_kernel(
    own, own_normalizer, shared, shared_normalizer, own_stride, shared_stride, N: tl.constexpr, D: tl.constexpr
):
    """One token, one head: attention to its own sequence and to a shared prefix become attention to both, in place."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    first = tl.load(own_normalizer + head * own_stride + token)
    second = tl.load(shared_normalizer + head * shared_stride + token)
    largest = tl.maximum(first, second)
    normalizer = largest + tl.log(tl.exp(first - largest) + tl.exp(second - largest))
    place = (token * N + head) * D + tl.arange(0, D)
    merged = tl.load(own + place).to(tl.float32) * tl.exp(first - normalizer)
    merged += tl.load(shared + place).to(tl.float32) * tl.exp(second - normalizer)
    tl.store(own + place, merged.to(own.dtype.element_ty))
    tl.store(own_normalizer + head * own_stride + token, normalizer)
