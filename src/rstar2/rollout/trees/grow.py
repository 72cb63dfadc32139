"""Grows a tree of rollouts round by round: each leaf begins at the prompt or at a point of an earlier leaf.

Invariant: the first requests have a trace each, in their order; the others were beyond the tree's budget of tokens, if
it has one. Where leaves fork depends on the results of earlier rounds, never on timing. A parent has ended before a
branch of it begins. Every copy of an episode that was kept is closed when the tree is complete, or given up.
"""

import contextlib
import warnings
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rstar2.agent import Transcript
from rstar2.agent.incremental import BegunTurn
from rstar2.algo.tree import Path, paths_of
from rstar2.environments import Episode
from rstar2.environments.protocol import fork_of
from rstar2.errors import InfrastructureError
from rstar2.extensions import FORK_POLICIES
from rstar2.records import Trace
from rstar2.rollout.request import RolloutRequest
from rstar2.rollout.scheduler import PromptPart
from rstar2.rollout.trees.points import PointRule, has_failed
from rstar2.rollout.trees.policies import ForkFacts, Leaf, Point, num_affordable
from rstar2.rollout.trees.settings import TreeSettings


@dataclass(frozen=True, slots=True)
class ForkPoint:
    """A moment of a rollout that can be returned to: the conversation up to there, and the episode then. Inside a turn,
    the episode is as it was before the turn: nothing of it was carried out yet."""

    rollout: str
    transcript: Transcript
    """The conversation up to the point; if the point is inside a turn, `begun` holds the first tokens of that turn."""
    episode: Episode
    """A copy that nobody changes: each branch gets a copy of it."""
    parts: tuple[PromptPart, ...] = ()
    """Everything before this point, cut at the earlier points."""

    @property
    def turn(self) -> int:
        """The number of the turn that branches sample, or whose rest they sample."""
        return len(self.transcript.turns)

    @property
    def num_tokens(self) -> int:
        """How many tokens of that turn branches keep."""
        return len(self.transcript.begun.token_ids)


@dataclass(frozen=True, slots=True)
class StateKeeper:
    """Copies the states of one rollout that its branches can begin with, while it runs."""

    rollout: str
    episode: Episode
    rule: PointRule
    states: list[ForkPoint]
    """One state for the start of each turn. Where in the turn branches begin is decided when the rollout has ended."""
    num_shared_turns: int | None
    """How many turns a branch began with. None: the rollout began at the prompt."""

    async def __call__(self, transcript: Transcript) -> None:
        is_parents = len(transcript.turns) == self.num_shared_turns  # the parent has a point with this state
        if not self.rule.copies(transcript.turns) or (is_parents and not self.rule.is_inside):
            return
        try:
            episode = await fork_of(self.episode)
        except InfrastructureError as error:
            warnings.warn(f"a rollout cannot be forked: {error}", RuntimeWarning, stacklevel=1)  # shown once
            return  # the rollout goes on
        if episode is not None:
            self.states.append(ForkPoint(self.rollout, transcript, episode))


@dataclass(frozen=True, slots=True)
class LeafRequest:
    """A rollout of a tree: where it begins, and where the states that branches of it can begin with are put."""

    request: RolloutRequest
    start: ForkPoint | None
    """Where the leaf begins; None: at the prompt."""
    states: list[ForkPoint] | None = field(default_factory=list)
    """None in the last round, which nothing continues."""


RollRound = Callable[[Sequence[LeafRequest]], Awaitable[Sequence[Trace]]]
"""Rolls out the leaves of one round, and returns their traces in the same order."""


async def grow(requests: Sequence[RolloutRequest], settings: TreeSettings, roll_round: RollRound) -> list[Trace]:
    traces, points = list[Trace](), list[ForkPoint]()
    sizes = iter(settings.rounds(len(requests)))
    async with contextlib.AsyncExitStack() as copies:  # closes all of them, also when it is cancelled meanwhile
        while len(traces) < len(requests):
            # A budget of tokens may cut a round short; what it leaves unspent pays for further rounds.
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
                for state in (state for leaf in leaves for state in leaf.states or ()):
                    copies.push_async_callback(_close, state.episode)
            for leaf, trace in zip(leaves, traces[-len(leaves) :], strict=True):
                points += _points_of(leaf, trace, settings.rule)
    return traces


async def _close(episode: Episode) -> None:
    with contextlib.suppress(InfrastructureError):  # a copy that cannot be closed changes nothing
        await episode.close()


def _points_of(leaf: LeafRequest, trace: Trace, rule: PointRule) -> Iterator[ForkPoint]:
    """Where an ended leaf can be forked, in the order of its turns."""
    parts: tuple[PromptPart, ...] = ()
    if leaf.start is not None:
        parts = leaf.start.parts
    elif leaf.states:
        parts = (PromptPart(leaf.request.problem.id, len(leaf.states[0].transcript.prompt_ids)),)
    for state in leaf.states or ():
        if state.turn >= len(trace.turns):
            continue  # nothing was sampled after it
        turn = trace.turns[state.turn]
        first = 0 if state.turn else 1  # a branch that keeps nothing of the first turn is a root
        if leaf.start is not None and leaf.start.turn == state.turn:
            first = leaf.start.num_tokens + 1  # after the parent's own point
        num_tokens = rule.cut(turn, first, _generator(leaf.request, state.turn))
        if num_tokens is not None:
            transcript = replace(state.transcript, begun=BegunTurn.of(turn, num_tokens))
            num_new = len(transcript.token_ids) - sum(part.num_tokens for part in parts)
            parts = (*parts, PromptPart(f"{state.rollout}/{state.turn}/{num_tokens}", num_new))
            yield replace(state, transcript=transcript, parts=parts)


def _generator(request: RolloutRequest, turn: int) -> np.random.Generator:
    return np.random.default_rng(None if request.seed is None else [request.seed, turn])


def _choose(
    traces: Sequence[Trace], points: Sequence[ForkPoint], settings: TreeSettings, asked: Sequence[RolloutRequest]
) -> list[ForkPoint | None]:
    """Where each of the requests begins; fewer than there are, if the budget of tokens does not pay for all."""
    numbers = {trace.id: number for number, trace in enumerate(traces)}
    paths = paths_of(traces)
    facts = ForkFacts(
        tuple(_leaf(trace, path, settings) for trace, path in zip(traces, paths, strict=True)),
        tuple(_point(numbers[point.rollout], point, traces) for point in points),
    )
    chosen: Sequence[int | None] = [None] * len(asked)
    if points:
        chosen = FORK_POLICIES.load(settings.policy)(facts, len(asked), np.random.default_rng(asked[0].seed))
    if settings.max_generated_tokens is not None:
        num_left = settings.max_generated_tokens - sum(trace.num_generated_tokens for trace in traces)
        starts = [None if index is None else facts.points[index] for index in chosen]
        chosen = chosen[: num_affordable(facts, starts, num_left)]
    return [None if index is None else points[index] for index in chosen]


def _leaf(trace: Trace, path: Path, settings: TreeSettings) -> Leaf:
    if not settings.knows_rewards:
        return Leaf(None, False, path)
    return Leaf(trace.reward, bool(trace.is_right), path)


def _point(number: int, point: ForkPoint, traces: Sequence[Trace]) -> Point:
    """The token before the point is the leaf's own: points of shared turns are its parent's."""
    turns = traces[number].turns
    num_tokens, turn = point.num_tokens, point.turn
    failed = point.turn > 0 and has_failed(turns[point.turn - 1])
    entropies = turns[point.turn].entropies[num_tokens:]
    if not num_tokens:
        turn, num_tokens = turn - 1, len(turns[turn - 1].token_ids)
    return Point(number, turn, num_tokens, failed, entropies)
