"""A tree of rollouts as it grows: round by round, each leaf from the prompt or from a tool result of an earlier leaf.

Invariant: the first requests have a trace each, in their order; the rest were beyond the tree's budget of tokens, and
without one there is no rest. Where leaves fork follows from what the earlier rounds
came to, never from timing. A parent has ended before a branch of it begins. Every copy of an episode that was kept is
closed when the tree is complete, or given up.
"""

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from rstar2.agent import Transcript
from rstar2.algo.tree import Path, paths_of
from rstar2.environments import Episode
from rstar2.environments.protocol import fork_of
from rstar2.errors import InfrastructureError
from rstar2.extensions import FORK_POLICIES
from rstar2.records import Fault, Trace, Turn
from rstar2.rollout.request import RolloutRequest
from rstar2.rollout.trees.policies import ForkFacts, Leaf, Point, num_affordable
from rstar2.rollout.trees.settings import TreeSettings


@dataclass(frozen=True, slots=True)
class ForkPoint:
    """A moment of a rollout that can be returned to: the conversation up to a tool result, and the episode then."""

    rollout: str
    transcript: Transcript
    episode: Episode
    """A copy that nobody changes: each branch gets a copy of it."""

    @property
    def turn(self) -> int:
        return len(self.transcript.turns) - 1


@dataclass(frozen=True, slots=True)
class PointKeeper:
    """Keeps the points at which one rollout can be forked, while it runs."""

    rollout: str
    episode: Episode
    settings: TreeSettings
    points: list[ForkPoint]

    async def __call__(self, transcript: Transcript) -> None:
        *earlier, last = transcript.turns
        num_earlier = sum(bool(turn.results) for turn in earlier)
        if not self.settings.admits(num_earlier, has_failed=has_failed(last)):
            return
        try:
            episode = await fork_of(self.episode)
        except InfrastructureError:
            return  # the rollout goes on; it only cannot be forked here
        if episode is not None:
            self.points.append(ForkPoint(self.rollout, transcript, episode))


@dataclass(frozen=True, slots=True)
class LeafRequest:
    """A rollout of a tree: where it begins, and where the points at which it can be forked are put."""

    request: RolloutRequest
    start: ForkPoint | None
    """None: the prompt."""
    points: list[ForkPoint] | None = field(default_factory=list)
    """None in the last round, which nothing continues."""


RollRound = Callable[[Sequence[LeafRequest]], Awaitable[Sequence[Trace]]]
"""Rolls out the leaves of one round, and returns their traces in the same order."""


async def grow(requests: Sequence[RolloutRequest], settings: TreeSettings, roll_round: RollRound) -> list[Trace]:
    traces = list[Trace]()
    points = list[ForkPoint]()
    sizes = iter(settings.rounds(len(requests)))
    try:
        while len(traces) < len(requests):
            # A budget of tokens cuts rounds short; what they leave of it is spent in further ones.
            num_leaves = next(sizes, len(requests) - len(traces))
            asked = requests[len(traces) : len(traces) + num_leaves]
            starts = _choose(traces, points, settings, asked) if traces else [None] * num_leaves
            if not starts:
                break
            is_last = len(traces) + len(starts) == len(requests)
            leaves = [
                LeafRequest(request, start, None if is_last else [])
                for request, start in zip(asked, starts, strict=False)
            ]
            try:
                traces += await roll_round(leaves)
            finally:
                points += [point for leaf in leaves for point in leaf.points or ()]
    finally:
        for point in points:
            with contextlib.suppress(InfrastructureError):  # a copy that cannot be closed changes nothing
                await point.episode.close()
    return traces


def _choose(
    traces: Sequence[Trace], points: Sequence[ForkPoint], settings: TreeSettings, asked: Sequence[RolloutRequest]
) -> list[ForkPoint | None]:
    """Where each of the requests begins; fewer than there are, if the budget of tokens does not pay for all."""
    numbers = {trace.id: number for number, trace in enumerate(traces)}
    usable = [point for point in points if point.turn + 1 < len(traces[numbers[point.rollout]].turns)]
    paths = paths_of(traces)
    facts = ForkFacts(
        tuple(_leaf(trace, path, settings) for trace, path in zip(traces, paths, strict=True)),
        tuple(_point(numbers[point.rollout], point, traces, paths) for point in usable),
    )
    chosen: Sequence[int | None] = [None] * len(asked)
    if usable:
        chosen = FORK_POLICIES.load(settings.policy)(facts, len(asked), np.random.default_rng(asked[0].seed))
    if settings.max_generated_tokens is not None:
        num_left = settings.max_generated_tokens - sum(trace.num_generated_tokens for trace in traces)
        starts = [None if index is None else facts.points[index] for index in chosen]
        chosen = chosen[: num_affordable(facts, starts, num_left)]
    return [None if index is None else usable[index] for index in chosen]


def _leaf(trace: Trace, path: Path, settings: TreeSettings) -> Leaf:
    turn_tokens = tuple(len(turn.token_ids) for turn in trace.turns)
    if not settings.knows_rewards:
        return Leaf(None, False, path, turn_tokens)
    return Leaf(trace.reward, bool(trace.is_right), path, turn_tokens)


def _point(number: int, point: ForkPoint, traces: Sequence[Trace], paths: Sequence[Path]) -> Point:
    turns = traces[number].turns
    leaf, turn = paths[number][point.turn]
    return Point(leaf, turn, has_failed(turns[point.turn]), turns[point.turn + 1].entropies)


def has_failed(turn: Turn) -> bool:
    """Whether one of the turn's calls failed through the model's fault."""
    return any(result.fault is Fault.POLICY for result in turn.results)
