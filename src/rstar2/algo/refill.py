"""Counts what a batch still lacks, so that the caller can sample until it is full. Groups are never split."""

from collections.abc import Iterable, Sequence

from rstar2.records import Group, Selection


def is_trainable(group: Group) -> bool:
    """True if a rollout of the group is trained on: not all were lost, and it was not dropped for equal rewards."""
    return Selection.KEPT in group.selections


def num_missing_rollouts(rewards: Sequence[float | None], num_sampled: int) -> int:
    """Rollouts of one problem to sample again: those that have no reward because of a fault or an undecided verdict."""
    return max(0, num_sampled - sum(reward is not None for reward in rewards))


def num_missing_groups(groups: Iterable[Group], num_wanted: int) -> int:
    """Further problems to sample so that the batch has `num_wanted` groups to train on."""
    return max(0, num_wanted - sum(map(is_trainable, groups)))
