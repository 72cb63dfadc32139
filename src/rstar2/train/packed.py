"""Many sequences laid end to end through one forward pass, each blind to the others; log-probabilities come out.

The model is a plain `transformers` one. Its attention is replaced by one that stays within each sequence, so nothing is
padded and no mask of tokens times tokens is made; its head is applied only where a token is to be learnt, in pieces,
so the logits of a whole batch never stand in memory.

Suffixes: T tokens of the pack, S selected tokens, V vocabulary, H hidden size, N heads, K key-value heads, D width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from inspect import signature
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

ATTENTION_NAME = "rstar2_packed"
HEAD_PIECE_TOKENS = 4096
"""Tokens whose logits stand in memory at one time: 0.8 GB of float32 for a vocabulary of 50,000."""


@dataclass(frozen=True, slots=True)
class Pack:
    """Sequences end to end. `targets_S` are the tokens to learn, `places_S` where each is predicted from."""

    token_ids_T: Tensor
    positions_T: Tensor
    bounds: tuple[int, ...]
    """Where each sequence starts, and where the last ends."""
    places_S: Tensor
    targets_S: Tensor

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int]], masks: Sequence[Sequence[bool]], device: torch.device) -> "Pack":
        bounds, ids, positions, places = [0], [], [], []
        for sequence, mask in zip(sequences, masks, strict=True):
            start = bounds[-1]
            places += [start + index - 1 for index, is_learnt in enumerate(mask) if is_learnt]
            ids += list(sequence)
            positions += list(range(len(sequence)))
            bounds.append(start + len(sequence))
            assert not mask[0], "the first token of a sequence is predicted from nothing"
        token_ids_T = torch.tensor(ids, device=device)
        places_S = torch.tensor(places, dtype=torch.long, device=device)
        positions_T = torch.tensor(positions, device=device)
        return cls(token_ids_T, positions_T, tuple(bounds), places_S, token_ids_T[places_S + 1])

    @classmethod
    def blank(cls, device: torch.device) -> "Pack":
        """One token, from which nothing is learnt: all its gradients are 0."""
        return cls.of([[0]], [[False]], device)


def use_packed_attention(model: Any) -> None:
    """Make the model's attention ours: from now on it reads whole sequences, and no cache."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION_NAME, _packed_attention)
    model.set_attn_implementation(ATTENTION_NAME)


def token_log_probs(model: Any, pack: Pack, *, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Of each target its log-probability, with gradient, and the entropy of its distribution, without."""
    hidden_TH = model.model(
        input_ids=pack.token_ids_T[None],
        position_ids=pack.positions_T[None],
        use_cache=False,
        sequence_bounds=pack.bounds,
    ).last_hidden_state[0]
    hidden_SH = hidden_TH[pack.places_S]
    log_probs, entropies = [], []
    pieces = zip(torch.split(hidden_SH, HEAD_PIECE_TOKENS), torch.split(pack.targets_S, HEAD_PIECE_TOKENS), strict=True)
    for hidden, targets in pieces:
        several = len(hidden_SH) > HEAD_PIECE_TOKENS and torch.is_grad_enabled()
        arguments = (model.lm_head, hidden, targets, temperature)
        piece = checkpoint(_head, *arguments, use_reentrant=False) if several else _head(*arguments)
        log_probs.append(piece[0])
        entropies.append(piece[1])
    return torch.cat(log_probs), torch.cat(entropies)


def _head(head: Any, hidden_SH: Tensor, targets_S: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    log_probs_SV = (head(hidden_SH).float() / temperature).log_softmax(-1)
    with torch.no_grad():
        entropy_S = torch.special.entr(log_probs_SV.exp()).sum(-1)
    return log_probs_SV.gather(-1, targets_S[:, None])[:, 0], entropy_S


def _packed_attention(
    _module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    _attention_mask: Tensor | None,
    scaling: float,
    sequence_bounds: tuple[int, ...] | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Tensors are 1 x heads x tokens x width, as `transformers` passes them; the result has tokens before heads."""
    bounds = sequence_bounds or (0, query.shape[2])
    if query.is_cuda and query.dtype in (torch.bfloat16, torch.float16):
        return _varlen(query, key, value, bounds, scaling), None
    pieces = [
        F.scaled_dot_product_attention(
            query[:, :, start:end],
            key[:, :, start:end],
            value[:, :, start:end],
            is_causal=True,
            scale=scaling,
            enable_gqa=True,
        )
        for start, end in pairwise(bounds)
    ]
    return torch.cat(pieces, dim=2).transpose(1, 2), None


def _varlen(query: Tensor, key: Tensor, value: Tensor, bounds: tuple[int, ...], scaling: float) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    q_TND, k_TKD, v_TKD = (tensor[0].transpose(0, 1).contiguous() for tensor in (query, key, value))
    ends = torch.tensor(bounds, dtype=torch.int32, device=query.device)
    longest = max(end - start for start, end in pairwise(bounds))
    is_causal = (-1, 0)
    # Before PyTorch 2.12 it took grouped queries without being told.
    told: Any = {"enable_gqa": True} if "enable_gqa" in signature(varlen_attn).parameters else {}
    out_TND: Any = varlen_attn(
        q_TND, k_TKD, v_TKD, ends, ends, longest, longest, scale=scaling, window_size=is_causal, **told
    )
    found: Tensor = out_TND[None]
    return found
