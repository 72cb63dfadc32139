"""Samples a token from logits, with its log-probability and the entropy of the distribution it was drawn from.

Invariant: a draw depends on its row alone. The uniform number is a hash of the sequence's seed and the position, so the
same seed gives the same tokens whatever else is in the batch, on a CPU as on a GPU, up to rounding of the logits.

Suffixes: B rows, V vocabulary.
"""

import torch
from torch import Tensor

_MASK_53 = (1 << 53) - 1
_LEAST = -1e30


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


_GOLDEN, _MIX_1, _MIX_2 = (_signed(c) for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def uniform(seed_B: Tensor, position_B: Tensor) -> Tensor:
    """A uniform number in [0, 1), by SplitMix64 of seed and position; integer overflow wraps around, as intended."""
    z_B = seed_B + (position_B + 1) * _GOLDEN
    z_B = (z_B ^ ((z_B >> 30) & ((1 << 34) - 1))) * _MIX_1
    z_B = (z_B ^ ((z_B >> 27) & ((1 << 37) - 1))) * _MIX_2
    z_B = z_B ^ ((z_B >> 31) & ((1 << 33) - 1))
    return ((z_B >> 11) & _MASK_53).double() * 2.0**-53


def draw(
    logits_BV: Tensor, uniform_B: Tensor, inverse_temperature_B: Tensor, *, room_BV: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Draws tokens by inversion: the first at which the cumulated probability passes the uniform number. The logits are
    overwritten. With `room_BV`, of their size and dtype, no memory is allocated, which would cost as much as the
    rest."""
    is_greedy_B = inverse_temperature_B == 0
    scale_B = torch.where(is_greedy_B, 1.0, inverse_temperature_B)
    scaled_BV = logits_BV.float().mul_(scale_B[:, None])
    # Logits that were cut are minus infinity, and their share of the entropy would be NaN.
    shifted_BV = scaled_BV.sub_(scaled_BV.amax(-1, keepdim=True)).clamp_(min=_LEAST)
    greedy_B = shifted_BV.argmax(-1)
    probs_BV = torch.softmax(shifted_BV, -1, out=room_BV)
    surprise_B = -probs_BV.amax(-1).log()
    entropy_B = surprise_B - shifted_BV.mul_(probs_BV).sum(-1)
    cumulated_BV = torch.cumsum(probs_BV, -1, out=shifted_BV)
    drawn_B = torch.searchsorted(cumulated_BV, uniform_B.float()[:, None], right=True)[:, 0]
    # Rounding may leave the cumulated probabilities below the number: then take the likeliest token.
    is_lost_B = drawn_B >= logits_BV.shape[-1]
    token_B = torch.where(is_greedy_B | is_lost_B, greedy_B, drawn_B)
    return token_B, probs_BV.gather(-1, token_B[:, None])[:, 0].log(), entropy_B


def cut(logits_BV: Tensor, inverse_temperature_B: Tensor, top_k_B: Tensor, top_p_B: Tensor) -> Tensor:
    """The logits with minus infinity for all but the `top_k` likeliest tokens and, of those, all but the first that
    together have `top_p`; `top_k` 0 cuts nothing, and the likeliest token always stays."""
    sorted_BV, order_BV = logits_BV.float().sort(dim=-1, descending=True, stable=True)
    rank_V = torch.arange(logits_BV.shape[-1], device=logits_BV.device)
    top_k_B = torch.where(top_k_B > 0, top_k_B, logits_BV.shape[-1])
    sorted_BV = sorted_BV.masked_fill(rank_V >= top_k_B[:, None], -torch.inf)
    scale_B = torch.where(inverse_temperature_B == 0, 1.0, inverse_temperature_B)
    probs_BV = (sorted_BV * scale_B[:, None]).softmax(-1)
    mass_before_BV = probs_BV.cumsum(-1) - probs_BV
    sorted_BV = sorted_BV.masked_fill((mass_before_BV >= top_p_B[:, None]) & (rank_V > 0), -torch.inf)
    return torch.empty_like(sorted_BV).scatter_(-1, order_BV, sorted_BV)
