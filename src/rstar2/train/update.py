"""From kept rollouts to new weights.

Invariant: the gradient of an optimizer step is that of one mean over all its tokens, however they were packed. With one
optimizer step a batch the old log-probabilities are the new ones, without gradient; with more they are computed before
the first.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rstar2.algo import LossSettings, policy_loss
from rstar2.errors import UserError
from rstar2.records import Group, Selection, Trace
from rstar2.train.optimizer import Optimizer
from rstar2.train.packed import Pack, token_log_probs
from rstar2.train.packing import pack
from rstar2.train.policy import Policy


@dataclass(frozen=True, slots=True)
class Rollout:
    """One kept rollout, as far as the gradient is concerned."""

    token_ids: tuple[int, ...]
    mask: tuple[bool, ...]
    engine_log_probs: tuple[float, ...]
    """Of the sampled tokens alone, in order."""
    advantage: float

    @property
    def num_learnt(self) -> int:
        return len(self.engine_log_probs)


@dataclass(frozen=True, slots=True)
class UpdateSettings:
    loss: LossSettings
    temperature: float
    micro_batch_tokens: int
    num_optimizer_steps: int
    max_grad_norm: float


def kept_rollouts(group: Group, traces: Mapping[str, Trace]) -> list[Rollout]:
    rollouts = []
    for trace_id, selection, advantage in zip(group.trace_ids, group.selections, group.advantages, strict=True):
        if selection is not Selection.KEPT or advantage is None:
            continue
        trace = traces[trace_id]
        log_probs = tuple(value for turn in trace.turns for value in turn.log_probs)
        if len(log_probs) != trace.num_sampled_tokens:
            raise UserError(f"the engine gave no log-probabilities for {trace_id}: train with embedded or vllm")
        rollouts.append(Rollout(trace.token_ids, trace.loss_mask, log_probs, advantage))
    return rollouts


def update_policy(
    policy: Policy,
    optimizer: Optimizer,
    groups: Sequence[Sequence[Rollout]],
    settings: UpdateSettings,
    lr: float,
    reference: Any = None,
) -> dict[str, float]:
    """All optimizer steps on one batch of groups; the metrics are means over the steps."""
    num_steps = min(settings.num_optimizer_steps, len(groups))
    parts = [[rollout for group in groups[number::num_steps] for rollout in group] for number in range(num_steps)]
    olds = [_log_probs(policy.network, part, settings) if num_steps > 1 else None for part in parts]
    totals: defaultdict[str, float] = defaultdict(float)
    for part, old in zip(parts, olds, strict=True):
        for name, value in _optimizer_step(policy, optimizer, part, old, settings, lr, reference).items():
            totals[name] += value / num_steps
    return dict(totals)


def _optimizer_step(
    policy: Policy,
    optimizer: Optimizer,
    rollouts: Sequence[Rollout],
    old: Mapping[int, Tensor] | None,
    settings: UpdateSettings,
    lr: float,
    reference: Any,
) -> dict[str, float]:
    num_tokens = sum(rollout.num_learnt for rollout in rollouts)
    kept_log_probs = None if reference is None else _log_probs(reference, rollouts, settings)
    totals: defaultdict[str, float] = defaultdict(float)
    for indices in pack([len(rollout.token_ids) for rollout in rollouts], settings.micro_batch_tokens):
        chosen = [rollouts[index] for index in indices]
        log_probs, entropies = token_log_probs(
            policy.network, _packed(chosen, policy.device), temperature=settings.temperature
        )
        result = policy_loss(
            log_probs,
            log_probs.detach() if old is None else torch.cat([old[index] for index in indices]),
            _spread(chosen, policy.device),
            torch.ones_like(log_probs, dtype=torch.bool),
            num_tokens=num_tokens,
            settings=settings.loss,
            engine_log_probs=torch.tensor(
                [value for rollout in chosen for value in rollout.engine_log_probs], device=policy.device
            ),
            reference_log_probs=None
            if kept_log_probs is None
            else torch.cat([kept_log_probs[index] for index in indices]),
            entropies=entropies,
        )
        result.loss.backward()  # type: ignore[no-untyped-call]
        for name, value in result.metrics.items():
            totals[name] += float(value)
    totals["grad_norm"] = optimizer.step(lr, settings.max_grad_norm)
    return dict(totals)


def _log_probs(network: Any, rollouts: Sequence[Rollout], settings: UpdateSettings) -> dict[int, Tensor]:
    """Of each rollout's sampled tokens, without gradient, by its index."""
    found: dict[int, Tensor] = {}
    device = next(network.parameters()).device
    with torch.no_grad():
        for indices in pack([len(rollout.token_ids) for rollout in rollouts], settings.micro_batch_tokens):
            chosen = [rollouts[index] for index in indices]
            log_probs, _ = token_log_probs(network, _packed(chosen, device), temperature=settings.temperature)
            sizes = [rollout.num_learnt for rollout in chosen]
            found |= dict(zip(indices, torch.split(log_probs, sizes), strict=True))
    return found


def _packed(rollouts: Sequence[Rollout], device: torch.device) -> Pack:
    return Pack.of([rollout.token_ids for rollout in rollouts], [rollout.mask for rollout in rollouts], device)


def _spread(rollouts: Sequence[Rollout], device: torch.device) -> Tensor:
    """Each rollout's advantage, once for each of its tokens."""
    advantages = torch.tensor([rollout.advantage for rollout in rollouts], device=device)
    return advantages.repeat_interleave(torch.tensor([rollout.num_learnt for rollout in rollouts], device=device))
