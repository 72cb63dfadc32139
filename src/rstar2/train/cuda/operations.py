"""The operations of a pass that have our own gradient kernels. Each takes one launch forward, and one or two backward.

Suffixes: T tokens, H hidden size, X any width, N query heads, K key-value heads, D width of a head; S and V as in
`train/learning/forward.py`.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rstar2.engine.embedded.invariant import attend, queries_per_tile
from rstar2.engine.embedded.options import VOCABULARY_TILE
from rstar2.engine.embedded.prefill import query_tiles
from rstar2.engine.embedded.weights import Shape
from rstar2.train.learning.forward import Spans, attended_pieces, on_device

_GATE_TILE = 1024
_NUM_PROGRAMS = 1056
"""How many programs a kernel over many tokens launches: eight for each of an H200's 132 multiprocessors."""


class AddNorm(torch.autograd.Function):
    """`apply(hidden_TH, residual_TH or None, weight_H, eps)`: the norm of their sum, and the sum."""

    @staticmethod
    def forward(
        ctx: Any, hidden_TH: Tensor, residual_TH: Tensor | None, weight_H: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        from rstar2.engine.embedded.triton_kernels import add_norm_kernel

        num_tokens, width = hidden_TH.shape
        normed_TH = torch.empty_like(hidden_TH)
        total_TH = hidden_TH.view_as(hidden_TH) if residual_TH is None else torch.empty_like(hidden_TH)
        add_norm_kernel[(num_tokens,)](
            hidden_TH,
            residual_TH,
            weight_H,
            total_TH,
            normed_TH,
            width,
            eps,
            IS_SUM=residual_TH is not None,
            WIDTH=_next_power_of_2(width),
        )
        ctx.save_for_backward(total_TH, weight_H)
        ctx.eps = eps
        ctx.has_residual = residual_TH is not None
        return normed_TH, total_TH

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor | None, None]:
        from rstar2.train.cuda.kernels import add_norm_gradient_kernel

        normed_gradient, total_gradient = gradients
        assert normed_gradient is not None
        total_TH, weight_H = ctx.saved_tensors
        num_tokens, width = total_TH.shape
        num_programs = min(num_tokens, _NUM_PROGRAMS)
        out_TH = torch.empty_like(total_TH)
        needs_weight = ctx.needs_input_grad[2]
        partial = total_TH.new_empty((num_programs, width) if needs_weight else (0,), dtype=torch.float32)
        add_norm_gradient_kernel[(num_programs,)](
            total_TH,
            weight_H,
            normed_gradient.contiguous(),
            None if total_gradient is None else total_gradient.contiguous(),
            out_TH,
            partial,
            num_tokens,
            width,
            ctx.eps,
            HAS_TOTAL_GRADIENT=total_gradient is not None,
            HAS_WEIGHT_GRADIENT=needs_weight,
            WIDTH=_next_power_of_2(width),
        )
        weight_gradient = partial.sum(0).to(weight_H.dtype) if needs_weight else None
        return out_TH, out_TH if ctx.has_residual else None, weight_gradient, None


class Gate(torch.autograd.Function):
    """`apply(gate_up_TX)`: silu(gate) * up, of gate and up side by side."""

    @staticmethod
    def forward(ctx: Any, gate_up_TX: Tensor) -> Tensor:
        from rstar2.engine.embedded.triton_kernels import gate_kernel

        num_tokens, width = len(gate_up_TX), gate_up_TX.shape[1] // 2
        out_TX = gate_up_TX.new_empty((num_tokens, width))
        gate_kernel[(num_tokens, -(-width // _GATE_TILE))](gate_up_TX, out_TX, width, TILE=_GATE_TILE)
        ctx.save_for_backward(gate_up_TX)
        return out_TX

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        from rstar2.train.cuda.kernels import gate_gradient_kernel

        (gate_up_TX,) = ctx.saved_tensors
        num_tokens, width = len(gate_up_TX), gate_up_TX.shape[1] // 2
        out_TX = torch.empty_like(gate_up_TX)
        gate_gradient_kernel[(num_tokens, -(-width // _GATE_TILE))](
            gate_up_TX, gradients[0].contiguous(), out_TX, width, TILE=_GATE_TILE
        )
        return out_TX


@dataclass(frozen=True, slots=True)
class Contexts:
    """The context of each piece of a pack, laid out as a batch-invariant engine reads it from its cache's blocks; here
    a block is one token of the pack."""

    table_RP: Tensor
    tiles: Tensor
    slots_T: Tensor

    @classmethod
    def of(cls, spans: Spans, shape: Shape, device: torch.device) -> "Contexts":
        pieces = list(attended_pieces(spans))
        contexts = [
            np.concatenate([np.arange(span.start, span.stop) for span in (prefix, own) if span is not None])
            for own, prefix in pieces
        ]
        table = np.zeros((len(contexts), max(map(len, contexts))), np.int32)
        for row, context in zip(table, contexts, strict=True):
            row[: len(context)] = context
        tiles = query_tiles([(own.start, own.stop) for own, _ in pieces], queries_per_tile(shape))
        num_tokens = spans.own.values[-1]
        return cls(
            on_device(table, device),
            on_device(tiles, device),
            torch.arange(num_tokens, dtype=torch.int64, device=device),
        )


class Attend(torch.autograd.Function):
    """`apply(qkv_TX, q_norm, k_norm, positions_T, rotary, spans, shape, contexts or None)`: queries and keys are normed
    where the model has weights for it, and rotated; then each token attends to its own sequence up to itself, and to
    the prefix that its sequence shares with others. The result is T x (N D); with contexts it equals, bit for bit, what
    a batch-invariant engine computes."""

    @staticmethod
    def forward(
        ctx: Any,
        qkv_TX: Tensor,
        q_norm: Tensor | None,
        k_norm: Tensor | None,
        positions_T: Tensor,
        rotary: Tensor,
        spans: Spans,
        shape: Shape,
        contexts: Contexts | None,
    ) -> Tensor:
        if contexts is None:
            q_TND, k_TKD, v_TKD = _rotate(qkv_TX, q_norm, k_norm, positions_T, rotary, shape)
            out_TND, normalizer_NT = spans_attention(q_TND, k_TKD, v_TKD, spans, shape.head_dim**-0.5)
        else:
            q_TND, k_TKD, v_TKD, out_TND, normalizer_NT = _attend_as_engine(
                qkv_TX, q_norm, k_norm, positions_T, rotary, contexts, shape
            )
        ctx.save_for_backward(
            qkv_TX if q_norm is not None else None,
            *(q_norm, k_norm, positions_T, rotary, q_TND, k_TKD, v_TKD, out_TND, normalizer_NT),
        )
        ctx.spans, ctx.shape = spans, shape
        return out_TND.flatten(1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        from rstar2.train.cuda.kernels import rotate_gradient_kernel

        qkv_TX, q_norm, k_norm, positions_T, rotary, q_TND, k_TKD, v_TKD, out_TND, normalizer_NT = ctx.saved_tensors
        shape: Shape = ctx.shape
        dq, dk, dv = spans_attention_gradients(
            gradients[0].view_as(out_TND), q_TND, k_TKD, v_TKD, out_TND, normalizer_NT, ctx.spans, shape.head_dim**-0.5
        )
        num_tokens = len(out_TND)
        num_programs = min(num_tokens, 4 * _NUM_PROGRAMS)
        out_TX = out_TND.new_empty((num_tokens, (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim))
        needs_norms = ctx.needs_input_grad[1]
        partial = out_TND.new_empty((num_programs, 2, shape.head_dim) if needs_norms else (0,), dtype=torch.float32)
        rotate_gradient_kernel[(num_programs,)](
            qkv_TX,
            positions_T,
            rotary,
            q_norm,
            k_norm,
            dq,
            dk,
            dv,
            out_TX,
            partial,
            num_tokens,
            shape.norm_eps,
            HAS_NORMS=q_norm is not None,
            HAS_NORM_GRADIENTS=needs_norms,
            **_head_constants(shape),
        )
        norm_gradients = partial.sum(0).to(q_norm.dtype).unbind() if needs_norms else (None, None)
        return out_TX, *norm_gradients, None, None, None, None, None


def _rotate(
    qkv_TX: Tensor, q_norm: Tensor | None, k_norm: Tensor | None, positions_T: Tensor, rotary: Tensor, shape: Shape
) -> tuple[Tensor, Tensor, Tensor]:
    from rstar2.train.cuda.kernels import rotate_kernel

    rotated_TX = torch.empty_like(qkv_TX)
    rotate_kernel[(len(qkv_TX),)](
        qkv_TX,
        positions_T,
        rotary,
        q_norm,
        k_norm,
        rotated_TX,
        shape.norm_eps,
        HAS_NORMS=q_norm is not None,
        **_head_constants(shape),
    )
    sizes = [shape.num_heads, shape.num_kv_heads, shape.num_kv_heads]
    q_TND, k_TKD, v_TKD = torch.split(rotated_TX.view(len(qkv_TX), -1, shape.head_dim), sizes, dim=1)
    return q_TND, k_TKD, v_TKD


def _attend_as_engine(
    qkv_TX: Tensor,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    positions_T: Tensor,
    rotary: Tensor,
    contexts: Contexts,
    shape: Shape,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Rotated queries, keys and values, the attention output, and the normalizers."""
    from rstar2.engine.embedded.kernels_cuda import rotate_and_store

    rotated_TX = qkv_TX.clone()
    k_TKD, v_TKD = (qkv_TX.new_empty((len(qkv_TX), shape.num_kv_heads, shape.head_dim)) for _ in range(2))
    rotate_and_store(rotated_TX, positions_T, contexts.slots_T, rotary, (q_norm, k_norm), k_TKD, v_TKD, 1, shape)
    out_TX, normalizer_NT = attend(rotated_TX, k_TKD, v_TKD, 1, contexts.table_RP, positions_T, contexts.tiles, shape)
    q_TND = rotated_TX.view(len(qkv_TX), -1, shape.head_dim)[:, : shape.num_heads]
    return q_TND, k_TKD, v_TKD, out_TX.view(len(qkv_TX), shape.num_heads, shape.head_dim), normalizer_NT


def _head_constants(shape: Shape) -> dict[str, int]:
    num_heads = shape.num_heads + 2 * shape.num_kv_heads
    return {
        "N": shape.num_heads,
        "K": shape.num_kv_heads,
        "D": shape.head_dim,
        "HEAD_TILE": _next_power_of_2(num_heads),
        "num_warps": max(1, min(8, _next_power_of_2(num_heads) * shape.head_dim // 1024)),
    }


def spans_attention(q_TND: Tensor, k_TKD: Tensor, v_TKD: Tensor, spans: Spans, scaling: float) -> tuple[Tensor, Tensor]:
    """The attention output of each token, and the logarithm of the sum of its weights (N x T)."""
    own = spans.own
    out_TND, normalizer_NT = _flash(
        q_TND, k_TKD, v_TKD, own.on_device, own.on_device, own.longest, own.longest, True, scaling
    )
    if spans.shared is not None:
        from rstar2.train.cuda.kernels import merge_kernel

        rows, suffixes, prefixes = spans.shared.queries, spans.shared.suffixes, spans.shared.repeated
        k_PKD, v_PKD = (tensor[spans.shared.keys].repeat(spans.shared.num_rounds, 1, 1) for tensor in (k_TKD, v_TKD))
        shared_TND, shared_normalizer = _flash(
            q_TND[rows],
            k_PKD,
            v_PKD,
            suffixes.on_device,
            prefixes.on_device,
            suffixes.longest,
            prefixes.longest,
            False,
            scaling,
        )
        own_normalizer = normalizer_NT[:, rows]
        num_rows, num_heads, width = shared_TND.shape
        merge_kernel[(num_rows, num_heads)](
            out_TND[rows],
            own_normalizer,
            shared_TND,
            shared_normalizer,
            own_normalizer.stride(0),
            shared_normalizer.stride(0),
            N=num_heads,
            D=width,
            num_warps=1,
        )
    return out_TND, normalizer_NT


def spans_attention_gradients(
    gradient_TND: Tensor,
    q_TND: Tensor,
    k_TKD: Tensor,
    v_TKD: Tensor,
    out_TND: Tensor,
    normalizer_NT: Tensor,
    spans: Spans,
    scaling: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values. Those of the own piece and of the shared prefix add up, because each part
    is given the normalizer and the output of both together."""
    own = spans.own
    dq, dk, dv = _flash_gradients(
        gradient_TND, q_TND, k_TKD, v_TKD, out_TND, normalizer_NT,
        own.on_device, own.on_device, own.longest, own.longest, True, scaling,
    )  # fmt: skip
    if spans.shared is not None:
        rows, suffixes, prefixes = spans.shared.queries, spans.shared.suffixes, spans.shared.repeated
        keys, num_rounds = spans.shared.keys, spans.shared.num_rounds
        shared_dq, *shared = _flash_gradients(
            gradient_TND[rows], q_TND[rows], k_TKD[keys].repeat(num_rounds, 1, 1), v_TKD[keys].repeat(num_rounds, 1, 1),
            out_TND[rows], normalizer_NT[:, rows].contiguous(), suffixes.on_device, prefixes.on_device,
            suffixes.longest, prefixes.longest, False, scaling,
        )  # fmt: skip
        dq[rows] += shared_dq
        for total, rounds in zip((dk, dv), shared, strict=True):
            total[keys] += rounds.view(num_rounds, -1, *rounds.shape[1:]).sum(0)
    return dq, dk, dv


def _flash(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_bounds: Tensor,
    k_bounds: Tensor,
    longest_q: int,
    longest_k: int,
    is_causal: bool,
    scaling: float,
) -> tuple[Tensor, Tensor]:
    out, normalizer, *_ = torch.ops.aten._flash_attention_forward(
        q, k, v, q_bounds, k_bounds, longest_q, longest_k, 0.0, is_causal, False, scale=scaling
    )
    return out, normalizer


def _flash_gradients(
    gradient: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    normalizer: Tensor,
    q_bounds: Tensor,
    k_bounds: Tensor,
    longest_q: int,
    longest_k: int,
    is_causal: bool,
    scaling: float,
) -> tuple[Tensor, Tensor, Tensor]:
    # Without dropout the random state is not read.
    state = torch.empty(2, dtype=torch.uint64, device=q.device)
    unused = torch.empty(0, dtype=torch.uint64, device=q.device)
    dq, dk, dv = torch.ops.aten._flash_attention_backward(
        gradient, q, k, v, out, normalizer, q_bounds, k_bounds, longest_q, longest_k, 0.0, is_causal, state, unused,
        scale=scaling,
    )  # fmt: skip
    return dq, dk, dv


class LogProbs(torch.autograd.Function):
    """`apply(logits_SV, targets_S, temperature)`, where S is not 0: log-probabilities of the targets, and entropies.

    Logits are read once, and once more for the gradient; sums are taken in float32. PyTorch's own operations would make
    a dozen passes over the largest tensor of an update."""

    @staticmethod
    def forward(ctx: Any, logits_SV: Tensor, targets_S: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        """The log-probabilities, and the entropies, which have no gradient."""
        from rstar2.engine.embedded.triton_kernels import log_prob_kernel

        logits_SV = logits_SV.contiguous()
        num_rows, vocab_size = logits_SV.shape
        log_prob_S, entropy_S, normalizer_S = (
            torch.empty(num_rows, dtype=torch.float32, device=logits_SV.device) for _ in range(3)
        )
        log_prob_kernel[(num_rows,)](
            logits_SV,
            targets_S,
            torch.full((1,), 1 / temperature, dtype=torch.float32, device=logits_SV.device),
            log_prob_S,
            entropy_S,
            normalizer_S,
            vocab_size,
            0,
            TILE=VOCABULARY_TILE,
        )
        ctx.save_for_backward(logits_SV, targets_S, normalizer_S)
        ctx.temperature = temperature
        ctx.mark_non_differentiable(entropy_S)
        return log_prob_S, entropy_S

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        from rstar2.train.cuda.kernels import log_prob_gradient_kernel

        logits_SV, targets_S, normalizer_S = ctx.saved_tensors
        num_rows, vocab_size = logits_SV.shape
        gradient_SV = torch.empty_like(logits_SV)
        log_prob_gradient_kernel[(num_rows, -(-vocab_size // VOCABULARY_TILE))](
            logits_SV,
            targets_S,
            normalizer_S,
            gradients[0].contiguous(),
            gradient_SV,
            vocab_size,
            1 / ctx.temperature,
            TILE=VOCABULARY_TILE,
        )
        return gradient_SV, None, None


def _next_power_of_2(number: int) -> int:
    return 1 << (number - 1).bit_length()
