"""Updates the weights from kept rollouts.

Invariant: the gradient of an optimizer step is that of one mean over all its tokens, however they were packed and on
however many ranks. In the first optimizer step of a batch the old log-probabilities are the new ones, without gradient;
those of later steps are computed before it.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Self

import numpy as np
import torch
from torch import Tensor

from rstar2.algo import LossSettings, policy_loss
from rstar2.config import Recipe
from rstar2.errors import UserError
from rstar2.records import Group, Selection, Trace
from rstar2.settings import pick
from rstar2.train.learning.forward import Family, Pack, on_device
from rstar2.train.learning.optimizer import Optimizer
from rstar2.train.learning.packing import cut_family, num_shared_tokens, pack
from rstar2.train.learning.reference import Reference
from rstar2.train.learning.work import TokenWork
from rstar2.train.policy.policy import Policy
from rstar2.train.sharding.ranks import ALONE, Ranks


@dataclass(frozen=True, slots=True)
class Rollout:
    """What the gradient needs of one segment of a kept rollout; a rollout has mostly one segment."""

    token_ids: tuple[int, ...]
    mask: tuple[bool, ...]
    engine_log_probs: tuple[float, ...]
    """The log-probabilities of the sampled tokens alone, in order."""
    advantage: float
    by_segment: tuple[tuple[int, float], ...] = ()
    """In a tree, pairs of a number of sampled tokens, in order, and their advantage; they replace `advantage`."""

    @property
    def num_learnt(self) -> int:
        return len(self.engine_log_probs)


@dataclass(frozen=True, slots=True)
class UpdateSettings:
    loss: LossSettings
    temperature: float
    micro_batch_tokens: int
    optimizer_steps_per_batch: int
    max_grad_norm: float

    @classmethod
    def of(cls, recipe: Recipe, micro_batch_tokens: int) -> Self:
        loss = LossSettings.of(recipe)
        return pick(cls, recipe.train, recipe.rollout, loss=loss, micro_batch_tokens=micro_batch_tokens)


def kept_rollouts(group: Group, traces: Mapping[str, Trace]) -> list[Rollout]:
    if group.token_advantages:
        return _kept_of_tree(group, traces)
    rollouts = []
    for trace_id, selection, advantage in zip(group.trace_ids, group.selections, group.advantages, strict=True):
        if selection is not Selection.KEPT or advantage is None:
            continue
        for segment in traces[trace_id].segments:
            log_probs = tuple(value for turn in segment.turns for value in turn.log_probs)
            _require_log_probs(trace_id, len(log_probs), segment.num_sampled_tokens)
            rollouts.append(Rollout(segment.token_ids, segment.loss_mask, log_probs, advantage))
    return rollouts


def _kept_of_tree(group: Group, traces: Mapping[str, Trace]) -> list[Rollout]:
    """A tree's rollouts. Each segment is learnt in one of the leaves that share it; a leaf without such a segment is
    left out."""
    rollouts = []
    for trace_id, leaf_advantage, segments in zip(
        group.trace_ids, group.advantages, group.token_advantages, strict=True
    ):
        trace = traces[trace_id]
        by_segment = tuple((num_tokens, value) for num_tokens, value in segments if value is not None)
        if leaf_advantage is None or not by_segment:
            continue
        sampled = [value for turn in trace.turns for value in turn.log_probs]
        _require_log_probs(trace_id, len(sampled), trace.num_sampled_tokens)
        is_learnt = [value is not None for num_tokens, value in segments for _ in range(num_tokens)]
        log_probs = tuple(value for value, learnt in zip(sampled, is_learnt, strict=True) if learnt)
        learnt_in_order = iter(is_learnt)
        mask = tuple(is_sampled and next(learnt_in_order) for is_sampled in trace.loss_mask)
        rollouts.append(Rollout(trace.token_ids, mask, log_probs, leaf_advantage, by_segment))
    return rollouts


def _require_log_probs(trace_id: str, num_log_probs: int, num_sampled: int) -> None:
    if num_log_probs != num_sampled:
        raise UserError(f"the engine gave no log-probabilities for {trace_id}: train with embedded or vllm")


def update_policy(
    policy: Policy,
    optimizer: Optimizer,
    groups: Sequence[Sequence[Rollout]],
    settings: UpdateSettings,
    lr: float,
    reference: Reference | None = None,
    ranks: Ranks = ALONE,
) -> dict[str, float]:
    """All optimizer steps on one batch of groups; the metrics are means over the steps, except `mismatch_max`."""
    num_steps = min(settings.optimizer_steps_per_batch, len(groups))
    parts = [_Part.of(groups[number::num_steps], settings, ranks, policy) for number in range(num_steps)]
    olds = [None if part is parts[0] else _log_probs(policy, part, settings) for part in parts]
    totals: defaultdict[str, float] = defaultdict(float)
    largest_mismatch = 0.0
    for part, old in zip(parts, olds, strict=True):
        values, part_mismatch = _backward(policy, part, old, settings, reference)
        largest_mismatch = max(largest_mismatch, part_mismatch)
        grad_norm = optimizer.step(lr, settings.max_grad_norm)
        for name, value in {**ranks.total(values), "grad_norm": grad_norm}.items():
            totals[name] += value / num_steps
    return {**totals, "mismatch_max": ranks.largest(largest_mismatch)}


def token_work(policy: Policy, groups: Sequence[Sequence[Rollout]], settings: UpdateSettings) -> TokenWork:
    """The tokens that `update_policy` computes, over all ranks."""
    families = (family for group in groups for family in _families(group, settings, is_shared=policy.shares_prefixes))
    return TokenWork.total(
        TokenWork.of_family(
            [len(rollout.token_ids) for rollout in family.rollouts],
            sum(rollout.num_learnt for rollout in family.rollouts),
            family.num_shared,
        )
        for family in families
    )


@dataclass(frozen=True, slots=True)
class _Part:
    """This rank's part of what one optimizer step learns from."""

    micro_batches: list["_MicroBatch"]
    """This rank's micro-batches. Empty ones run through the model too, because the other ranks run theirs at the same
    time."""
    num_tokens: int
    """Tokens to learn from, over all ranks."""

    @classmethod
    def of(cls, groups: Sequence[Sequence[Rollout]], settings: UpdateSettings, ranks: Ranks, policy: Policy) -> "_Part":
        families = [
            family for group in groups for family in _families(group, settings, is_shared=policy.shares_prefixes)
        ]
        shares = ranks.share(pack([family.num_tokens for family in families], settings.micro_batch_tokens, ranks.size))
        return cls(
            [_MicroBatch([families[index] for index in indices], policy.device) for indices in shares],
            sum(rollout.num_learnt for group in groups for rollout in group),
        )


@dataclass(frozen=True, slots=True)
class _Family:
    """Rollouts that begin with the same `num_shared` tokens, which are computed once."""

    rollouts: list[Rollout]
    num_shared: int

    @property
    def num_tokens(self) -> int:
        return self.num_shared + sum(len(rollout.token_ids) - self.num_shared for rollout in self.rollouts)


def _families(group: Sequence[Rollout], settings: UpdateSettings, *, is_shared: bool) -> list[_Family]:
    """The families of one problem's rollouts, which all begin with its prompt: where prefixes are shared, the rollouts
    stay together as far as they fit into a micro-batch."""
    if not is_shared:
        return [_Family([rollout], 0) for rollout in group]
    num_shared = num_shared_tokens([rollout.token_ids for rollout in group])
    lengths = [len(rollout.token_ids) for rollout in group]
    return [
        _Family([group[index] for index in part], num_shared if len(part) > 1 else 0)
        for part in cut_family(lengths, num_shared, settings.micro_batch_tokens)
    ]


@dataclass
class _MicroBatch:
    """A micro-batch. Its tensors are made when they are first read: while a GPU computes one micro-batch, the next is
    laid out."""

    families: list[_Family]
    device: torch.device

    @cached_property
    def pack(self) -> Pack:
        if not self.families:
            return Pack.blank(self.device)
        return Pack.of_families(
            [
                Family(
                    [rollout.token_ids for rollout in family.rollouts],
                    [rollout.mask for rollout in family.rollouts],
                    family.num_shared,
                )
                for family in self.families
            ],
            self.device,
        )

    @cached_property
    def engine_log_probs(self) -> Tensor:
        log_probs = chain.from_iterable(rollout.engine_log_probs for rollout in self._rollouts)
        return on_device(np.fromiter(log_probs, np.float32), self.device)

    @cached_property
    def advantages(self) -> Tensor:
        """The advantage of each learnt token: its rollout's, or in a tree its segment's."""
        spans = [
            span
            for rollout in self._rollouts
            for span in rollout.by_segment or ((rollout.num_learnt, rollout.advantage),)
        ]
        advantages = np.array([advantage for _, advantage in spans], np.float32)
        return on_device(np.repeat(advantages, [num_tokens for num_tokens, _ in spans]), self.device)

    @property
    def _rollouts(self) -> list[Rollout]:
        return [rollout for family in self.families for rollout in family.rollouts]


def _backward(
    policy: Policy,
    part: _Part,
    old: Sequence[Tensor] | None,
    settings: UpdateSettings,
    reference: Reference | None,
) -> tuple[dict[str, float], float]:
    """Adds the part's gradients. Returns this rank's share of the metrics, and the largest difference between trainer
    and engine in a token's log-probability."""
    reference_log_probs: Sequence[Tensor] | None = None
    if reference is not None:
        with reference.in_place():
            reference_log_probs = _log_probs(policy, part, settings)
    metrics: list[dict[str, Tensor]] = []
    mismatches: list[Tensor] = []
    for number, batch in enumerate(part.micro_batches):
        log_probs, entropies = policy.token_log_probs(batch.pack, temperature=settings.temperature)
        old_log_probs = log_probs.detach() if old is None else old[number]
        result = policy_loss(
            log_probs,
            old_log_probs,
            batch.advantages,
            None,
            num_tokens=part.num_tokens,
            settings=settings.loss,
            engine_log_probs=batch.engine_log_probs,
            reference_log_probs=None if reference_log_probs is None else reference_log_probs[number],
            entropies=entropies,
        )
        result.loss.backward()  # type: ignore[no-untyped-call]
        metrics.append(result.metrics)
        if len(old_log_probs):
            mismatches.append((old_log_probs - batch.engine_log_probs).abs().max())
    # Metrics are read only now: reading each micro-batch's at once would make the GPU wait before it gets the next.
    totals: defaultdict[str, float] = defaultdict(float)
    for values in metrics:
        for name, value in zip(values, torch.stack(list(values.values())).tolist(), strict=True):
            totals[name] += value
    return dict(totals), float(torch.stack(mismatches).max()) if mismatches else 0.0


def _log_probs(policy: Policy, part: _Part, settings: UpdateSettings) -> list[Tensor]:
    """The log-probabilities of the sampled tokens of each micro-batch, without gradient."""
    with torch.no_grad():
        return [policy.token_log_probs(batch.pack, temperature=settings.temperature)[0] for batch in part.micro_batches]
