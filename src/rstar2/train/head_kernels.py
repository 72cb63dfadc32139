# mypy: ignore-errors
# Triton is there only with a CUDA build of PyTorch, and what it compiles is not Python's to type.
"""The GPU's kernels of `head_cuda`, which launches them. One program reads one row of logits, in tiles."""

import triton
import triton.language as tl


@triton.jit
def log_prob_kernel(
    logits, targets, log_probs, entropies, normalizers, vocab_size, inverse_temperature, TILE: tl.constexpr
):
    """Of the row's target; the running sums are rescaled whenever a larger logit is met."""
    row = tl.program_id(0).to(tl.int64)
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


@triton.jit
def log_prob_gradient_kernel(
    logits, targets, normalizers, gradients, out, vocab_size, inverse_temperature, TILE: tl.constexpr
):
    """Of one tile of the row's logits."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    mask = column < vocab_size
    x = tl.load(logits + row * vocab_size + column, mask, other=0.0).to(tl.float32) * inverse_temperature
    probability = tl.exp(x - tl.load(normalizers + row))
    is_target = tl.where(column == tl.load(targets + row), 1.0, 0.0)
    gradient = tl.load(gradients + row) * inverse_temperature * (is_target - probability)
    tl.store(out + row * vocab_size + column, gradient.to(out.dtype.element_ty), mask)
