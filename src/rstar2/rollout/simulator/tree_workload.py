"""Turns a drawn workload into trees, forked by the default policy of live runs. Pure.

For the scheduler a branch is what it is in a live run: a rollout whose prompt is everything before its point, which the
branches of that point share. It is submitted when every root of its problem has ended.
"""

from collections.abc import Sequence

import numpy as np

from rstar2.algo.tree import Segment
from rstar2.rollout.scheduler import PromptPart, branch_spec
from rstar2.rollout.simulator.workload import PlannedRollout, PlannedTurn, Workload
from rstar2.rollout.trees.policies import ForkFacts, Leaf, Point, uniform


def as_trees(workload: Workload, num_roots: int) -> Workload:
    """Keeps the first rollouts of each problem and makes the others branches of them, each with those of its turns that
    come after its fork point. Where no root of a problem calls a tool, nothing is forked."""
    problems: dict[str, list[PlannedRollout]] = {}
    for rollout in workload.rollouts:
        problems.setdefault(rollout.spec.problem, []).append(rollout)
    trees = [_tree(rollouts[:num_roots], rollouts[num_roots:]) for rollouts in problems.values()]
    return Workload(workload.name, tuple(rollout for tree in trees for rollout in tree))


def _tree(roots: Sequence[PlannedRollout], others: Sequence[PlannedRollout]) -> list[PlannedRollout]:
    paths = [
        tuple(Segment(n, turn, 0, planned.num_sampled_tokens) for turn, planned in enumerate(root.turns))
        for n, root in enumerate(roots)
    ]
    leaves = [Leaf(None, False, path) for path in paths]
    points = [Point(leaf, turn, end, has_failed=False) for path in paths for leaf, turn, _, end in path[:-1]]
    if not points:
        return [*roots, *others]
    chosen = uniform(ForkFacts(tuple(leaves), tuple(points)), len(others), np.random.default_rng(0))
    after = tuple(root.spec.rollout for root in roots)
    placed = ((other, points[index]) for other, index in zip(others, chosen, strict=True))
    return [*roots, *(_branch(other, roots[point.leaf], point.turn, after) for other, point in placed)]


def _branch(other: PlannedRollout, root: PlannedRollout, turn: int, after: tuple[str, ...]) -> PlannedRollout:
    shared = [
        PromptPart(f"{root.spec.rollout}/{number + 1}/0", planned.num_sampled_tokens + planned.num_appended_tokens)
        for number, planned in enumerate(root.turns[: turn + 1])
    ]
    num_shared_tokens = sum(part.num_tokens for part in shared)
    spec = branch_spec(other.spec, root.spec.rollout, (*root.spec.prompt_parts, *shared), num_shared_tokens)
    turns = other.turns[turn + 1 :] or other.turns[-1:]
    return PlannedRollout(spec, _within(turns, spec.max_response_tokens), after)


def _within(turns: Sequence[PlannedTurn], num_tokens: int) -> tuple[PlannedTurn, ...]:
    """The turns, cut where the limit is reached."""
    kept: list[PlannedTurn] = []
    for turn in turns:
        num_sampled = min(turn.num_sampled_tokens, num_tokens)
        num_tokens -= turn.num_sampled_tokens + turn.num_appended_tokens
        if num_tokens < 1:
            return *kept, PlannedTurn(num_sampled)
        kept.append(turn)
    return tuple(kept)
