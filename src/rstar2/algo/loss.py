"""The policy loss: PPO's clipped objective, with a higher bound above than below, as one mean over all kept tokens of
an optimizer step.

Invariant: the loss of a micro-batch is a sum over its own tokens divided by the number of tokens of the complete step,
which the caller passes in. So the losses of all micro-batches and ranks add up to the same mean, and their gradients to
the same gradient, however the tokens were cut, packed or padded. Each metric adds up in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from rstar2.errors import UserError
from rstar2.extensions import LOSS_TERMS
from rstar2.settings import pick

if TYPE_CHECKING:
    from torch import Tensor

    from rstar2.config import Recipe

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to this magnitude: e^20 is far beyond any clip, and e^89 would overflow float32 into a NaN
gradient."""


@dataclass(frozen=True, slots=True)
class LossSettings:
    clip_low: float = 0.2
    clip_high: float = 0.28
    kl_coef: float = 0.0
    """Weight of the KL term against the reference policy; 0 means no such term."""
    tis_cap: float | None = None
    """Cap of the importance weight that corrects the mismatch between engine and trainer (TIS). None: no correction."""
    clip_dual: float | None = None
    """The ratio beyond which a token of negative advantage loses its gradient too. None: it never does."""

    @classmethod
    def of(cls, recipe: Recipe) -> Self:
        return pick(cls, recipe.algo)


@dataclass(frozen=True, slots=True)
class Tokens:
    """The values that a loss term may read: one for each kept token, in float32 or better."""

    ratio: Tensor
    """New probability over old, with gradient."""
    advantage: Tensor
    new: Tensor
    """Log-probability now, with gradient; the others have none."""
    old: Tensor
    engine: Tensor | None
    """Log-probability that the engine reported."""
    reference: Tensor | None
    """Log-probability of the reference policy."""


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    loss: Tensor
    """This micro-batch's share of the step's loss, times `num_averaged_ranks`; call `backward` on it."""
    metrics: dict[str, Tensor]
    """Scalars without gradient. Summed over micro-batches and ranks, each is a mean over the step's tokens."""


def policy_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor | None,
    *,
    num_tokens: int,
    settings: LossSettings | None = None,
    engine_log_probs: Tensor | None = None,
    reference_log_probs: Tensor | None = None,
    entropies: Tensor | None = None,
    num_averaged_ranks: int = 1,
) -> PolicyLoss:
    """The share of one micro-batch in the loss of an optimizer step.

    Tensors have one entry a token, all in the same layout: packed `(tokens,)` or padded `(rows, columns)`. Advantages
    may be one a row, as `(rows, 1)`. `log_probs` carry the gradient. `old_log_probs` are the trainer's own, from before
    the first optimizer step on these rollouts; `engine_log_probs` are those that the engine sampled with. `mask` is
    True on the tokens that the model sampled in kept rollouts; other values, NaN included, are never read. Without a
    mask every token counts, and no call waits for the GPU.

    `num_tokens` is the number of such tokens in the step, over all micro-batches and ranks. `num_averaged_ranks` is the
    number of ranks whose gradients are averaged, as DDP and FSDP do; 1 where gradients are summed.
    """
    import torch

    settings = settings or LossSettings()
    _check(settings, num_tokens, engine_log_probs, reference_log_probs)
    kept = None if mask is None else mask.bool()
    new, old, advantage = _select(log_probs, kept), _select(old_log_probs, kept), _select(advantages, kept)
    old, advantage = old.detach(), advantage.detach()

    log_ratio = _bounded(new - old)
    ratio = log_ratio.exp()
    clipped_ratio = ratio.clamp(1 - settings.clip_low, 1 + settings.clip_high)
    losses = -torch.minimum(ratio * advantage, clipped_ratio * advantage)
    seen = {
        "clip_low_share": (ratio < 1 - settings.clip_low) & (advantage < 0),
        "clip_high_share": (ratio > 1 + settings.clip_high) & (advantage > 0),
        "ratio": ratio,
        "ratio_deviation": (ratio - 1).abs(),
        "old_policy_kl": _k3(log_ratio),
    }
    tokens = Tokens(
        ratio=ratio,
        advantage=advantage,
        new=new,
        old=old,
        engine=None if engine_log_probs is None else _select(engine_log_probs, kept).detach(),
        reference=None if reference_log_probs is None else _select(reference_log_probs, kept).detach(),
    )
    for name in LOSS_TERMS:
        losses = LOSS_TERMS.load(name)(losses, tokens, settings, seen)
    if entropies is not None:
        seen["entropy"] = _select(entropies, kept)

    loss = losses.sum() / num_tokens
    metrics = {name: values.detach().sum() / num_tokens for name, values in seen.items()}
    return PolicyLoss(loss * num_averaged_ranks, {"loss": loss.detach(), **metrics})


# The loss terms. Each takes the losses of all tokens and returns them with its own part added. The values that it puts
# into `seen`, one for each token, become metrics.


def dual_clip(losses: Tensor, tokens: Tokens, settings: LossSettings, seen: dict[str, Tensor]) -> Tensor:
    if settings.clip_dual is None:
        return losses
    is_beyond = (tokens.ratio > settings.clip_dual) & (tokens.advantage < 0)
    seen["clip_dual_share"] = is_beyond
    return losses.where(~is_beyond, -settings.clip_dual * tokens.advantage)


def truncated_importance(losses: Tensor, tokens: Tokens, settings: LossSettings, seen: dict[str, Tensor]) -> Tensor:
    """Truncated importance sampling (TIS). It reports the mismatch of engine and trainer even if nothing is
    corrected."""
    if tokens.engine is None:
        return losses
    log_mismatch = _bounded(tokens.old - tokens.engine)
    seen |= {"mismatch": log_mismatch.abs(), "mismatch_kl": _k3(log_mismatch)}
    if settings.tis_cap is None:
        return losses
    weight = log_mismatch.exp()
    seen["tis_capped_share"] = weight > settings.tis_cap
    return losses * weight.clamp(max=settings.tis_cap)


def reference_kl(losses: Tensor, tokens: Tokens, settings: LossSettings, seen: dict[str, Tensor]) -> Tensor:
    if tokens.reference is None:
        return losses
    seen["reference_kl"] = _k3(_bounded(tokens.reference - tokens.new))
    return losses + settings.kl_coef * seen["reference_kl"]


def _select(values: Tensor, kept: Tensor | None) -> Tensor:
    """The kept tokens' values, in float32 or better."""
    import torch

    dtype = torch.promote_types(values.dtype, torch.float32)
    if kept is None:
        return values.to(dtype)
    if values.ndim != kept.ndim:
        raise UserError(
            f"a tensor has {values.ndim} dimensions and the mask {kept.ndim}: give one value a token, or (rows, 1)"
        )
    return values.expand_as(kept)[kept].to(dtype)


def _bounded(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def _k3(log_ratio: Tensor) -> Tensor:
    """An estimate of KL(p || q) from a token drawn from p, given log q/p of it: unbiased, never below 0."""
    return log_ratio.exp() - 1 - log_ratio


def _check(
    settings: LossSettings, num_tokens: int, engine_log_probs: Tensor | None, reference_log_probs: Tensor | None
) -> None:
    if num_tokens < 1:
        raise UserError(f"num_tokens is {num_tokens}: pass the number of kept tokens of the complete optimizer step")
    if settings.tis_cap is not None and engine_log_probs is None:
        raise UserError("tis_cap is set without engine_log_probs: pass what the engine reported, or leave tis_cap out")
    if settings.kl_coef and reference_log_probs is None:
        raise UserError(
            "kl_coef is set without reference_log_probs: pass those of the reference policy, or set it to 0"
        )
