"""Runs many sequences, packed end to end and blind to each other, through one forward pass to log-probabilities.

Sequences with a common prefix, such as the rollouts of one problem, may share it: it is computed once, and gives every
one of them the same numbers.

The model is a plain `transformers` one. Its attention is replaced by one that stays within each sequence, so nothing is
padded and no mask of tokens times tokens is made; its head is applied only where a token is to be learnt, in pieces,
so the logits of a full batch are never in memory.

Suffixes: T tokens of the pack, S selected tokens, V vocabulary, H hidden size, N heads, K key-value heads, D width.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from inspect import signature
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

ApplyHead = Callable[[Any, Tensor, Tensor, float], tuple[Tensor, Tensor]]
"""Takes the head, hidden states, targets and the temperature; returns each target's log-probability, with gradient, and
the entropy of its distribution, without."""
ATTENTION_NAME = "rstar2_packed"
HEAD_PIECE_TOKENS = 4096
"""Tokens whose logits are in memory at one time: 0.8 GB of float32 for a vocabulary of 50,000."""


MAX_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class Bounds:
    """Where each of several consecutive pieces starts and where the last ends, on the host and on the device."""

    values: tuple[int, ...]
    on_device: Tensor
    longest: int

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device) -> "Bounds":
        values = (0, *accumulate(lengths))
        return cls(values, on_device(np.array(values, np.int32), device), max(lengths))


@dataclass(frozen=True, slots=True)
class SharedPrefixes:
    """The shared prefixes at the start of a pack. Their suffixes follow in `num_rounds` rounds: each round has some
    suffixes of the first prefix, then some of the second. A GPU attends to a prefix in `num_rounds` places at a
    time."""

    prefixes: Bounds
    suffixes: Bounds
    """The suffixes of one prefix in one round count as one piece; the first starts where the last prefix ends."""
    repeated: Bounds
    """The bounds of the prefixes, once for each round."""
    num_rounds: int

    @property
    def keys(self) -> slice:
        return slice(0, self.prefixes.values[-1])

    @property
    def queries(self) -> slice:
        start = self.prefixes.values[-1]
        return slice(start, start + self.suffixes.values[-1])


@dataclass(frozen=True, slots=True)
class Spans:
    """What each token of a pack attends to: its own piece up to itself, and the prefix that it continues."""

    own: Bounds
    shared: SharedPrefixes | None = None


@dataclass(frozen=True, slots=True)
class Family:
    """Sequences that begin with the same `num_shared` tokens, which are computed once. Each has more than these."""

    sequences: Sequence[Sequence[int]]
    masks: Sequence[Sequence[bool]]
    num_shared: int = 0


@dataclass(frozen=True, slots=True)
class Pack:
    """Sequences end to end. `targets_S` are the tokens to learn, `places_S` where each is predicted from, in the order
    of families and their sequences. A place that several sequences share may occur there once for each of them."""

    token_ids_T: Tensor
    positions_T: Tensor
    spans: Spans
    places_S: Tensor
    targets_S: Tensor

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int]], masks: Sequence[Sequence[bool]], device: torch.device) -> "Pack":
        """A pack without shared prefixes."""
        alone = [Family([ids], [mask]) for ids, mask in zip(sequences, masks, strict=True)]
        return cls.of_families(alone, device)

    @classmethod
    def of_families(cls, families: Sequence[Family], device: torch.device) -> "Pack":
        """Lays out prefixes first, then their suffixes, then sequences that share nothing."""
        sharing = [family for family in families if family.num_shared]
        num_rounds = min((MAX_ROUNDS, *(len(family.sequences) for family in sharing)))
        rounds = [[_round(family, number, num_rounds) for family in sharing] for number in range(num_rounds)]
        order = [place for members in rounds for several in members for place in several]
        order += [
            (family, number) for family in families if not family.num_shared for number in range(len(family.sequences))
        ]
        pieces = [np.asarray(family.sequences[0][: family.num_shared]) for family in sharing]
        pieces += [np.asarray(family.sequences[number][family.num_shared :]) for family, number in order]
        lengths = [len(piece) for piece in pieces]
        starts = (0, *accumulate(lengths))
        shared = None
        if sharing:
            sizes = [
                sum(len(family.sequences[number]) - family.num_shared for family, number in several)
                for members in rounds
                for several in members
            ]
            prefixes = [family.num_shared for family in sharing]
            shared = SharedPrefixes(
                prefixes=Bounds.of(prefixes, device),
                suffixes=Bounds.of(sizes, device),
                repeated=Bounds.of(prefixes * num_rounds, device),
                num_rounds=num_rounds,
            )
        ids = np.concatenate(pieces).astype(np.int64)
        firsts = [0] * len(sharing) + [family.num_shared for family, _ in order]
        positions = np.arange(len(ids)) + np.repeat(np.array(firsts) - starts[:-1], lengths)
        prefix_starts = dict(zip(map(id, sharing), starts, strict=False))
        names = [(id(family), number) for family, number in order]
        own_starts = dict(zip(names, starts[len(sharing) :], strict=False))
        places, targets = _targets(families, prefix_starts, own_starts)
        return cls(
            on_device(ids, device),
            on_device(positions, device),
            Spans(Bounds.of(lengths, device), shared),
            on_device(places, device),
            on_device(targets, device),
        )

    @classmethod
    def blank(cls, device: torch.device) -> "Pack":
        """A pack of one token, from which nothing is learnt: all its gradients are 0."""
        return cls.of([[0]], [[False]], device)


def _round(family: Family, number: int, num_rounds: int) -> list[tuple[Family, int]]:
    """The sequences of the family that follow in this round, each by its number in the family."""
    num_sequences = len(family.sequences)
    return [(family, member) for member in range(num_sequences) if member * num_rounds // num_sequences == number]


def _targets(
    families: Sequence[Family], prefix_starts: Mapping[int, int], own_starts: Mapping[tuple[int, int], int]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The positions from which the tokens to learn are predicted, and these tokens."""
    places, targets = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for family in families:
        for number, (sequence, mask) in enumerate(zip(family.sequences, family.masks, strict=True)):
            assert not mask[0], "the first token of a sequence is predicted from nothing"
            learnt = np.flatnonzero(np.asarray(mask))
            own_start = own_starts[id(family), number] - family.num_shared
            is_shared = learnt <= family.num_shared
            places.append(np.where(is_shared, prefix_starts.get(id(family), own_start), own_start) + learnt - 1)
            targets.append(np.asarray(sequence)[learnt])
    return np.concatenate(places), np.concatenate(targets).astype(np.int64)


def on_device(values: NDArray[Any], device: torch.device) -> Tensor:
    """The values as a tensor on the device. A copy to a GPU does not wait for the work that it has queued."""
    tensor = torch.from_numpy(values)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def use_packed_attention(model: Any) -> None:
    """Replaces the model's attention by ours, which reads full sequences and no cache."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION_NAME, _packed_attention)
    model.set_attn_implementation(ATTENTION_NAME)


def token_log_probs(model: Any, pack: Pack, *, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Each target's log-probability, with gradient, and the entropy of its distribution, without."""
    hidden_TH = model.model(
        input_ids=pack.token_ids_T[None],
        position_ids=pack.positions_T[None],
        use_cache=False,
        spans=pack.spans,
    ).last_hidden_state[0]
    return head_log_probs(model.lm_head, hidden_TH, pack, temperature)


def head_log_probs(head: Any, hidden_TH: Tensor, pack: Pack, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies of the targets, from the hidden states of the pack."""
    hidden_SH = hidden_TH[pack.places_S]
    apply_head = kernel_head if hidden_SH.is_cuda and len(hidden_SH) else plain_head
    return in_pieces(apply_head, head, hidden_SH, pack.targets_S, temperature)


def in_pieces(
    apply_head: ApplyHead, head: Any, hidden_SH: Tensor, targets_S: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """The results of `apply_head`, with the logits of at most `HEAD_PIECE_TOKENS` tokens in memory at a time."""
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
    """The head on a GPU: a quarter of the time of `plain_head` (benchmarks/update_head.py)."""
    from rstar2.train.cuda.operations import LogProbs

    log_prob_S, entropy_S = LogProbs.apply(head(hidden_SH), targets_S, temperature)  # type: ignore[no-untyped-call]
    return log_prob_S, entropy_S


def plain_head(head: Any, hidden_SH: Tensor, targets_S: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    log_probs_SV = _scaled(head(hidden_SH).float(), temperature).log_softmax(-1)
    with torch.no_grad():
        entropy_S = torch.special.entr(log_probs_SV.exp()).sum(-1)
    return log_probs_SV.gather(-1, targets_S[:, None])[:, 0], entropy_S


def _scaled(logits_SV: Tensor, temperature: float) -> Tensor:
    """The logits over the temperature. Dividing by 1 would be a pass over all of them for nothing."""
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
    """Attention within each sequence. Tensors are 1 x heads x tokens x width, as `transformers` passes them; the result
    has tokens before heads."""
    spans = spans or Spans(Bounds.of([query.shape[2]], query.device))
    if query.is_cuda and query.dtype in (torch.bfloat16, torch.float16):
        assert spans.shared is None, "prefixes are shared in the pass of `rstar2.train.cuda`"
        return _varlen(query, key, value, spans.own, scaling), None
    pieces = []
    for own, prefix in attended_pieces(spans):
        keys, values, mask = key[:, :, own], value[:, :, own], None
        if prefix is not None:
            keys = torch.cat((key[:, :, prefix], keys), dim=2)
            values = torch.cat((value[:, :, prefix], values), dim=2)
            num_queries, num_keys = own.stop - own.start, keys.shape[2]
            mask = torch.ones(num_queries, num_keys, dtype=torch.bool, device=query.device).tril(num_keys - num_queries)
        pieces.append(
            F.scaled_dot_product_attention(
                query[:, :, own], keys, values, mask, is_causal=mask is None, scale=scaling, enable_gqa=True
            )
        )
    return torch.cat(pieces, dim=2).transpose(1, 2), None


def attended_pieces(spans: Spans) -> Iterator[tuple[slice, slice | None]]:
    """Each piece of a pack, and the prefix that it continues."""
    for start, end in pairwise(spans.own.values):
        prefix = None
        if (shared := spans.shared) is not None and shared.queries.start <= start < shared.queries.stop:
            piece = bisect_right(shared.suffixes.values, start - shared.queries.start) - 1
            number = piece % (len(shared.prefixes.values) - 1)
            prefix = slice(shared.prefixes.values[number], shared.prefixes.values[number + 1])
        yield slice(start, end), prefix


def _varlen(query: Tensor, key: Tensor, value: Tensor, own: Bounds, scaling: float) -> Tensor:
    q_TND, k_TKD, v_TKD = (tensor[0].transpose(0, 1).contiguous() for tensor in (query, key, value))
    is_causal = (-1, 0)
    out_TND: Tensor = _varlen_attention()(
        q_TND,
        k_TKD,
        v_TKD,
        own.on_device,
        own.on_device,
        own.longest,
        own.longest,
        scale=scaling,
        window_size=is_causal,
    )
    return out_TND[None]


@cache
def _varlen_attention() -> Any:
    from torch.nn.attention.varlen import varlen_attn

    # Before PyTorch 2.12 it detected grouped queries itself.
    is_told = "enable_gqa" in signature(varlen_attn).parameters
    return partial(varlen_attn, enable_gqa=True) if is_told else varlen_attn
