"""Advantages on trees: rollouts of one problem that share their first turns. Pure.

A leaf is a rollout, from the prompt to its end. A segment is one turn of the model, or a part of a turn that was forked
inside: the leaves that came from a fork share the segments before it. A leaf's path is its segments in order. An
estimator gives each segment on the path of a kept leaf one advantage.

Invariant: every segment on the path of a kept leaf is trained exactly once, in the first kept leaf that has it. Where
no two leaves share a segment, both estimators give each segment the advantage of its leaf, bit for bit.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rstar2.algo.advantage import rewards_are_equal
from rstar2.records import Trace


class Segment(NamedTuple):
    """Consecutive sampled tokens of a turn. A leaf that has one of them has all of them."""

    leaf: int
    """The index of the rollout that sampled it."""
    turn: int
    start: int
    """The segment's first token in the turn: 0, except after a fork inside the turn."""
    end: int

    @property
    def num_tokens(self) -> int:
        return self.end - self.start


Path: TypeAlias = tuple[Segment, ...]
Estimate: TypeAlias = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""An entry of `ADVANTAGES`: it returns the advantage of each value among all."""


def paths_of(traces: Sequence[Trace]) -> list[Path]:
    """The path of each rollout. A parent that is not among the rollouts counts as none."""
    index_of = {trace.id: index for index, trace in enumerate(traces)}
    paths: dict[int, Path] = {}

    def path(index: int) -> Path:
        if index not in paths:
            trace = traces[index]
            parent = index_of.get(trace.parent)
            num_turns, num_tokens = (0, 0) if parent is None else (trace.num_shared_turns, trace.num_shared_tokens)
            shared = () if parent is None else _before(path(parent), num_turns, num_tokens)
            own = (
                Segment(index, turn, num_tokens if turn == num_turns else 0, len(trace.turns[turn].token_ids))
                for turn in range(num_turns, len(trace.turns))
            )
            paths[index] = (*shared, *own)
        return paths[index]

    return _cut_at_forks([path(index) for index in range(len(traces))])


def _before(path: Path, num_turns: int, num_tokens: int) -> Path:
    """The shared path of a branch that begins after `num_turns` turns and `num_tokens` tokens of the next."""
    whole = [segment for segment in path if segment.turn < num_turns]
    of_turn = [segment for segment in path if segment.turn == num_turns and segment.start < num_tokens]
    return (*whole, *(segment._replace(end=min(segment.end, num_tokens)) for segment in of_turn))


def _cut_at_forks(paths: Sequence[Path]) -> list[Path]:
    """The paths, with each turn split into segments at the forks inside it."""
    edges = defaultdict[tuple[int, int], set[int]](set)
    for path in paths:
        for leaf, turn, start, end in path:
            edges[leaf, turn] |= {start, end}
    return [tuple(piece for segment in path for piece in _pieces(segment, edges)) for path in paths]


def _pieces(segment: Segment, edges: Mapping[tuple[int, int], set[int]]) -> Iterator[Segment]:
    leaf, turn, start, end = segment
    inside = sorted(edge for edge in edges[leaf, turn] if start < edge < end)
    for first, last in pairwise((start, *inside, end)):
        yield Segment(leaf, turn, first, last)


def over_leaves(paths: Sequence[Path], rewards: NDArray[np.float64], estimate: Estimate) -> dict[Segment, float]:
    """Compares each leaf with all leaves of the problem; a segment gets the mean advantage of the leaves below it."""
    below = defaultdict[Segment, list[float]](list)
    for path, advantage in zip(paths, _among(rewards, estimate), strict=True):
        for segment in path:
            below[segment].append(float(advantage))
    return {segment: fmean(advantages) for segment, advantages in below.items()}


def among_siblings(paths: Sequence[Path], rewards: NDArray[np.float64], estimate: Estimate) -> dict[Segment, float]:
    """Compares each branch with the other branches of its fork, by the mean rewards of the leaves below them; up to the
    next fork all segments have the advantage of their branch. Rollouts that begin at the prompt are branches of one
    fork."""
    found: dict[Segment, float] = {}
    open_forks = [(list(range(len(paths))), 0, 0.0)]
    while open_forks:
        leaves, depth, inherited = open_forks.pop()
        branches = defaultdict[Segment, list[int]](list)
        for leaf in leaves:
            if depth < len(paths[leaf]):
                branches[paths[leaf][depth]].append(leaf)
        values = np.array([fmean(rewards[below]) for below in branches.values()])
        advantages = _among(values, estimate) if len(branches) > 1 else [inherited]
        for (segment, below), advantage in zip(branches.items(), advantages, strict=False):
            found[segment] = float(advantage)
            open_forks.append((below, depth + 1, float(advantage)))
    return found


def _among(values: NDArray[np.float64], estimate: Estimate) -> NDArray[np.float64]:
    return np.zeros_like(values) if rewards_are_equal(values) else np.asarray(estimate(values), dtype=np.float64)


def token_advantages(
    paths: Sequence[Path], is_trained: Sequence[bool], of_segment: Mapping[Segment, float]
) -> tuple[tuple[tuple[int, float | None], ...], ...]:
    """For each rollout the number of tokens and the advantage of each of its segments; None where the segment is not
    trained, or in another rollout that shares it."""
    trained = set[Segment]()
    rows = []
    for path, is_kept in zip(paths, is_trained, strict=True):
        row = tuple(
            (segment.num_tokens, of_segment[segment] if is_kept and segment not in trained else None)
            for segment in path
        )
        trained.update(path if is_kept else ())
        rows.append(row)
    return tuple(rows)
