"""Many sequences laid end to end through one forward pass, each blind to the others; log-probabilities come out.

The model is a plain `transformers` one. Its attention is replaced by one that stays within each sequence, so nothing is
padded and no mask of tokens times tokens is made; its head is applied only where a token is to be learnt, in pieces,
so the logits of a whole batch never stand in memory.

Suffixes: T tokens of the pack, S selected tokens, V vocabulary, H hidden size, N heads, K key-value heads, D width.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from inspect import signature
from itertools import accumulate, chain, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

from rstar2.train.head_cuda import LogProbs

ApplyHead = Callable[[Any, Tensor, Tensor, float], tuple[Tensor, Tensor]]
"""From the head, hidden states, targets and the temperature: each target's log-probability, with gradient, and the
entropy of its distribution, without."""
ATTENTION_NAME = "rstar2_packed"
HEAD_PIECE_TOKENS = 4096
"""Tokens whose logits stand in memory at one time: 0.8 GB of float32 for a vocabulary of 50,000."""


@dataclass(frozen=True, slots=True)
class Spans:
    """Where each sequence of a pack starts, and where the last ends; on the host and where attention computes. Each
    layer needs it, and a copy to a GPU would wait for all that was asked of it before."""

    bounds: tuple[int, ...]
    bounds_on_device: Tensor
    longest: int

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device) -> "Spans":
        bounds = (0, *accumulate(lengths))
        return cls(bounds, torch.tensor(bounds, dtype=torch.int32, device=device), max(lengths))


@dataclass(frozen=True, slots=True)
class Pack:
    """Sequences end to end. `targets_S` are the tokens to learn, `places_S` where each is predicted from."""

    token_ids_T: Tensor
    positions_T: Tensor
    spans: Spans
    places_S: Tensor
    targets_S: Tensor

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int]], masks: Sequence[Sequence[bool]], device: torch.device) -> "Pack":
        assert not any(mask[0] for mask in masks), "the first token of a sequence is predicted from nothing"
        lengths = [len(sequence) for sequence in sequences]
        ids = np.fromiter(chain.from_iterable(sequences), np.int64, sum(lengths))
        is_learnt = np.fromiter(chain.from_iterable(masks), np.bool_, sum(lengths))
        starts = np.cumsum(lengths) - lengths
        positions = np.arange(len(ids)) - np.repeat(starts, lengths)
        targets = np.flatnonzero(is_learnt)
        token_ids_T, positions_T, places_S, targets_S = (
            torch.from_numpy(values).to(device) for values in (ids, positions, targets - 1, ids[targets])
        )
        return cls(token_ids_T, positions_T, Spans.of(lengths, device), places_S, targets_S)

    @classmethod
    def blank(cls, device: torch.device) -> "Pack":
        """One token, from which nothing is learnt: all its gradients are 0."""
        return cls.of([[0]], [[False]], device)


def use_packed_attention(model: Any) -> None:
    """Make the model's attention ours: from now on it reads whole sequences, and no cache."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION_NAME, _packed_attention)
    model.set_attn_implementation(ATTENTION_NAME)


def use_fused_norms(model: Any) -> None:
    """One kernel for each norm. As `transformers` writes it, it is six passes over the activations, and nine back: of a
    small model's update on a GPU a third. It rounds once where they round twice."""
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = partial(_norm, module)


def _norm(module: Any, hidden: Tensor) -> Tensor:
    return F.rms_norm(hidden, module.weight.shape, module.weight, module.variance_epsilon)


def token_log_probs(model: Any, pack: Pack, *, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Of each target its log-probability, with gradient, and the entropy of its distribution, without."""
    hidden_TH = model.model(
        input_ids=pack.token_ids_T[None],
        position_ids=pack.positions_T[None],
        use_cache=False,
        spans=pack.spans,
    ).last_hidden_state[0]
    hidden_SH = hidden_TH[pack.places_S]
    apply_head = kernel_head if hidden_SH.is_cuda and len(hidden_SH) else plain_head
    return in_pieces(apply_head, model.lm_head, hidden_SH, pack.targets_S, temperature)


def in_pieces(
    apply_head: ApplyHead, head: Any, hidden_SH: Tensor, targets_S: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """What `apply_head` gives, without the logits of more than `HEAD_PIECE_TOKENS` at a time."""
    log_probs, entropies = [], []
    several = len(hidden_SH) > HEAD_PIECE_TOKENS and torch.is_grad_enabled()
    pieces = zip(torch.split(hidden_SH, HEAD_PIECE_TOKENS), torch.split(targets_S, HEAD_PIECE_TOKENS), strict=True)
    for hidden, targets in pieces:
        arguments = (head, hidden, targets, temperature)
        piece = checkpoint(apply_head, *arguments, use_reentrant=False) if several else apply_head(*arguments)
        log_probs.append(piece[0])
        entropies.append(piece[1])
    return torch.cat(log_probs), torch.cat(entropies)


def kernel_head(head: Any, hidden_SH: Tensor, targets_S: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """On a GPU: a quarter of the time of `plain_head` (benchmarks/update_head.py)."""
    log_prob_S, entropy_S = LogProbs.apply(head(hidden_SH), targets_S, temperature)  # type: ignore[no-untyped-call]
    return log_prob_S, entropy_S


def plain_head(head: Any, hidden_SH: Tensor, targets_S: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    log_probs_SV = _scaled(head(hidden_SH).float(), temperature).log_softmax(-1)
    with torch.no_grad():
        entropy_S = torch.special.entr(log_probs_SV.exp()).sum(-1)
    return log_probs_SV.gather(-1, targets_S[:, None])[:, 0], entropy_S


def _scaled(logits_SV: Tensor, temperature: float) -> Tensor:
    """Dividing by 1 would be a pass over all of them for nothing."""
    return logits_SV if temperature == 1 else logits_SV / temperature


def _packed_attention(
    _module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    _attention_mask: Tensor | None,
    scaling: float,
    spans: Spans | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Tensors are 1 x heads x tokens x width, as `transformers` passes them; the result has tokens before heads."""
    spans = spans or Spans.of([query.shape[2]], query.device)
    if query.is_cuda and query.dtype in (torch.bfloat16, torch.float16):
        return _varlen(query, key, value, spans, scaling), None
    pieces = [
        F.scaled_dot_product_attention(
            query[:, :, start:end],
            key[:, :, start:end],
            value[:, :, start:end],
            is_causal=True,
            scale=scaling,
            enable_gqa=True,
        )
        for start, end in pairwise(spans.bounds)
    ]
    return torch.cat(pieces, dim=2).transpose(1, 2), None


def _varlen(query: Tensor, key: Tensor, value: Tensor, spans: Spans, scaling: float) -> Tensor:
    q_TND, k_TKD, v_TKD = (tensor[0].transpose(0, 1).contiguous() for tensor in (query, key, value))
    bounds, longest, is_causal = spans.bounds_on_device, spans.longest, (-1, 0)
    out_TND: Tensor = _varlen_attention()(
        q_TND, k_TKD, v_TKD, bounds, bounds, longest, longest, scale=scaling, window_size=is_causal
    )
    return out_TND[None]


@cache
def _varlen_attention() -> Any:
    from torch.nn.attention.varlen import varlen_attn

    # Before PyTorch 2.12 it took grouped queries without being told.
    is_told = "enable_gqa" in signature(varlen_attn).parameters
    return partial(varlen_attn, enable_gqa=True) if is_told else varlen_attn
