"""From kept rollouts to new weights.

Invariant: the gradient of an optimizer step is that of one mean over all its tokens, however they were packed and on
however many ranks. In the first optimizer step of a batch the old log-probabilities are the new ones, without gradient;
those of later steps are computed before it.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rstar2.algo import LossSettings, policy_loss
from rstar2.errors import UserError
from rstar2.records import Group, Selection, Trace
from rstar2.train.optimizer import Optimizer
from rstar2.train.packed import Family, Pack
from rstar2.train.packing import cut_family, num_shared_tokens, pack
from rstar2.train.policy import Policy
from rstar2.train.ranks import ALONE, Ranks
from rstar2.train.reference import Reference


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
    reference: Reference | None = None,
    ranks: Ranks = ALONE,
) -> dict[str, float]:
    """All optimizer steps on one batch of groups; the metrics are means over the steps."""
    num_steps = min(settings.num_optimizer_steps, len(groups))
    parts = [_Part.of(groups[number::num_steps], settings, ranks, policy) for number in range(num_steps)]
    olds = [None if part is parts[0] else _log_probs(policy, part, settings) for part in parts]
    totals: defaultdict[str, float] = defaultdict(float)
    for part, old in zip(parts, olds, strict=True):
        values = _backward(policy, part, old, settings, reference)
        grad_norm = optimizer.step(lr, settings.max_grad_norm)
        for name, value in {**ranks.total(values), "grad_norm": grad_norm}.items():
            totals[name] += value / num_steps
    return dict(totals)


@dataclass(frozen=True, slots=True)
class _Part:
    """What one optimizer step learns from, as far as this rank is concerned."""

    rollouts: list[list[Rollout]]
    """This rank's, pack by pack; an empty pack is run through the model like any other, because the other ranks run
    theirs."""
    packs: list[Pack]
    num_tokens: int
    """Of all ranks."""

    @classmethod
    def of(cls, groups: Sequence[Sequence[Rollout]], settings: UpdateSettings, ranks: Ranks, policy: Policy) -> "_Part":
        families = [
            family for group in groups for family in _families(group, settings, is_shared=policy.shares_prefixes)
        ]
        sizes = [_num_computed(family) for family in families]
        shares = [
            [families[index] for index in indices]
            for indices in ranks.share(pack(sizes, settings.micro_batch_tokens, ranks.size))
        ]
        return cls(
            rollouts=[[rollout for family in share for rollout in family.rollouts] for share in shares],
            packs=[_packed(share, policy.device) for share in shares],
            num_tokens=sum(rollout.num_learnt for group in groups for rollout in group),
        )


@dataclass(frozen=True, slots=True)
class _Family:
    rollouts: list[Rollout]
    num_shared: int


def _families(group: Sequence[Rollout], settings: UpdateSettings, *, is_shared: bool) -> list[_Family]:
    """The rollouts of one problem begin with its prompt: where that is shared they stay together as far as they fit."""
    if not is_shared:
        return [_Family([rollout], 0) for rollout in group]
    num_shared = num_shared_tokens([rollout.token_ids for rollout in group])
    lengths = [len(rollout.token_ids) for rollout in group]
    return [
        _Family([group[index] for index in part], num_shared if len(part) > 1 else 0)
        for part in cut_family(lengths, num_shared, settings.micro_batch_tokens)
    ]


def _num_computed(family: _Family) -> int:
    return family.num_shared + sum(len(rollout.token_ids) - family.num_shared for rollout in family.rollouts)


def _backward(
    policy: Policy,
    part: _Part,
    old: Sequence[Tensor] | None,
    settings: UpdateSettings,
    reference: Reference | None,
) -> dict[str, float]:
    """Add the gradients of the part; this rank's share of its metrics."""
    kept: Sequence[Tensor] | None = None
    if reference is not None:
        with reference.in_place():
            kept = _log_probs(policy, part, settings)
    metrics: list[dict[str, Tensor]] = []
    for number, rollouts in enumerate(part.rollouts):
        log_probs, entropies = policy.token_log_probs(part.packs[number], temperature=settings.temperature)
        result = policy_loss(
            log_probs,
            log_probs.detach() if old is None else old[number],
            _spread(rollouts, policy.device),
            torch.ones_like(log_probs, dtype=torch.bool),
            num_tokens=part.num_tokens,
            settings=settings.loss,
            engine_log_probs=torch.tensor(
                [value for rollout in rollouts for value in rollout.engine_log_probs], device=policy.device
            ),
            reference_log_probs=None if kept is None else kept[number],
            entropies=entropies,
        )
        result.loss.backward()  # type: ignore[no-untyped-call]
        metrics.append(result.metrics)
    # Read only now: a GPU would wait for each micro-batch's before it got the next to compute.
    totals: defaultdict[str, float] = defaultdict(float)
    for values in metrics:
        for name, value in zip(values, torch.stack(list(values.values())).tolist(), strict=True):
            totals[name] += value
    return dict(totals)


def _log_probs(policy: Policy, part: _Part, settings: UpdateSettings) -> list[Tensor]:
    """Of the sampled tokens of each pack, without gradient."""
    with torch.no_grad():
        return [policy.token_log_probs(pack, temperature=settings.temperature)[0] for pack in part.packs]


def _packed(families: Sequence[_Family], device: torch.device) -> Pack:
    if not families:
        return Pack.blank(device)
    return Pack.of_families(
        [
            Family(
                [rollout.token_ids for rollout in family.rollouts],
                [rollout.mask for rollout in family.rollouts],
                family.num_shared,
            )
            for family in families
        ],
        device,
    )


def _spread(rollouts: Sequence[Rollout], device: torch.device) -> Tensor:
    """Each rollout's advantage, once for each of its tokens."""
    advantages = torch.tensor([rollout.advantage for rollout in rollouts], device=device)
    nums_learnt = torch.tensor([rollout.num_learnt for rollout in rollouts], dtype=torch.long, device=device)
    return advantages.repeat_interleave(nums_learnt)
