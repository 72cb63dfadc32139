"""Policies that decide where a tree is forked next: facts in, decisions out, as for the scheduler. Pure.

A policy gets the leaves that have ended and the points where they can be forked, and returns one point for each leaf
that is to be sampled; a point may be returned several times. It is not called if there is no point.

A budget in tokens is spent on these choices, in their order, as long as they are expected to fit.

Invariant: points are in the order of their leaves and turns, and random choices draw from the generator that is passed
in, so the same leaves are continued in the same way whatever the timing was.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TypeAlias

import numpy as np

from rstar2.algo.tree import Segment


@dataclass(frozen=True, slots=True)
class Leaf:
    """A rollout that has ended."""

    reward: float | None
    is_right: bool
    path: tuple[Segment, ...]
    """The sampled segments of the rollout, including those that it shares."""


@dataclass(frozen=True, slots=True)
class Point:
    """A place from which a leaf went on, and may be continued in another way: a tool result, or a token."""

    leaf: int
    turn: int
    """The leaf's turn that holds the last sampled token before the point."""
    num_tokens: int
    """How many tokens of that turn are before the point: all, if it is a tool result."""
    has_failed: bool
    """Whether a call of the last turn that ended before the point failed through the model's fault."""
    next_entropies: tuple[float, ...] = ()
    """The entropies of the tokens that the leaf continued with; empty if the engine reports none."""

    def is_on(self, path: Sequence[Segment]) -> bool:
        """Whether a leaf of this path has the last token before the point."""
        return any(self._holds(segment) for segment in path)

    def num_tokens_after(self, path: Sequence[Segment]) -> int:
        """The sampled tokens that follow the point on a path that has it."""
        place = next(place for place, segment in enumerate(path) if self._holds(segment))
        return path[place].end - self.num_tokens + sum(segment.num_tokens for segment in path[place + 1 :])

    def _holds(self, segment: Segment) -> bool:
        is_same_turn = (segment.leaf, segment.turn) == (self.leaf, self.turn)
        return is_same_turn and segment.start < self.num_tokens <= segment.end


@dataclass(frozen=True, slots=True)
class ForkFacts:
    leaves: tuple[Leaf, ...]
    points: tuple[Point, ...]

    def below(self, point: Point) -> list[Leaf]:
        """The leaves that have the point on their paths."""
        return [leaf for leaf in self.leaves if point.is_on(leaf.path)]


ForkPolicy: TypeAlias = Callable[[ForkFacts, int, np.random.Generator], Sequence[int]]
"""Takes the facts, the number of leaves to place and a generator; returns the index of a point for each of these
leaves."""


def num_affordable(facts: ForkFacts, starts: Sequence[Point | None], num_tokens: int) -> int:
    """How many of the leaves that would begin at `starts` (None: the prompt) are expected to fit into `num_tokens`. A
    leaf is expected to cost what the leaves below its point have sampled after it, on average."""
    num_left = float(num_tokens)
    for number, start in enumerate(starts):
        num_left -= max(1.0, _expected_tokens(facts, start))
        if num_left < 0:
            return number
    return len(starts)


def _expected_tokens(facts: ForkFacts, start: Point | None) -> float:
    if start is None:
        return fmean(sum(segment.num_tokens for segment in leaf.path) for leaf in facts.leaves)
    return fmean(start.num_tokens_after(leaf.path) for leaf in facts.below(start))


FIRST_TOKENS = 8
"""Tokens after a point whose mean entropy says how open the continuation is."""


def uniform(facts: ForkFacts, num_leaves: int, _rng: np.random.Generator) -> list[int]:
    return _lowest(num_leaves, [float(len(facts.below(point))) for point in facts.points], 1.0)


def at_random(facts: ForkFacts, num_leaves: int, rng: np.random.Generator) -> list[int]:
    return [int(index) for index in rng.integers(len(facts.points), size=num_leaves)]


def by_uncertainty(facts: ForkFacts, num_leaves: int, _rng: np.random.Generator) -> list[int]:
    """The variance of the chance that a leaf from here is right, as Beta(1, 1) and the leaves below it say: it is
    highest where few leaves are known, and where they disagree. Each leaf that is placed counts as half right."""
    counts = []
    for point in facts.points:
        scored = [leaf for leaf in facts.below(point) if leaf.reward is not None]
        counts.append([1.0 + sum(leaf.is_right for leaf in scored), 1.0 + sum(not leaf.is_right for leaf in scored)])
    chosen = []
    for _ in range(num_leaves):
        index = max(range(len(counts)), key=lambda number: (_variance(*counts[number]), -number))
        chosen.append(index)
        counts[index] = [count + 0.5 for count in counts[index]]
    return chosen


def by_entropy(facts: ForkFacts, num_leaves: int, _rng: np.random.Generator) -> list[int]:
    """Chooses the points whose next tokens have the highest entropy. Each leaf placed at a point halves its value, so
    that others get leaves too."""
    openness = [fmean(point.next_entropies[:FIRST_TOKENS] or (0.0,)) for point in facts.points]
    chosen = []
    for _ in range(num_leaves):
        index = max(range(len(openness)), key=lambda number: (openness[number], -number))
        chosen.append(index)
        openness[index] /= 2
    return chosen


def _lowest(num_leaves: int, costs: list[float], step: float) -> list[int]:
    """Chooses the cheapest point each time; each choice raises the cost of its point by `step`."""
    chosen = []
    for _ in range(num_leaves):
        index = min(range(len(costs)), key=lambda number: (costs[number], number))
        chosen.append(index)
        costs[index] += step
    return chosen


def _variance(right: float, wrong: float) -> float:
    total = right + wrong
    return right * wrong / (total * total * (total + 1))
