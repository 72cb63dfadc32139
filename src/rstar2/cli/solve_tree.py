"""`rstar2 solve --tree N`: N attempts at one problem as a tree, and the answer that most of them give."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rstar2.cli.agent_setup import ReadyAgent
    from rstar2.environments import Environment
    from rstar2.evals.votes import Same
    from rstar2.records import Problem, Trace
    from rstar2.rollout.trees import TreeSettings


@dataclass(frozen=True, slots=True)
class Vote:
    trace: "Trace"
    """The first leaf with the chosen answer; the first leaf, if none has an answer."""
    num_votes: int
    num_leaves: int
    num_generated: int
    num_shared: int
    """Tokens of leaves that were generated for another one."""


async def vote(leaves: "Sequence[Trace]", same: "Same | None") -> Vote:
    """The most frequent answer; of equally frequent ones the first. `same` says which answers are one; without it,
    those that are written alike."""
    from rstar2.evals.votes import pooled

    counts = Counter(leaf.answer for leaf in leaves if leaf.answer is not None)
    sizes = counts if same is None else await pooled(counts, same)
    assert sizes is not None
    chosen = max(sizes, key=sizes.__getitem__, default=None)
    num_generated = sum(leaf.num_generated_tokens for leaf in leaves)
    return Vote(
        next(leaf for leaf in leaves if leaf.answer == chosen),
        0 if chosen is None else sizes[chosen],
        len(leaves),
        num_generated,
        sum(leaf.num_sampled_tokens for leaf in leaves) - num_generated,
    )


async def solve_tree(
    ready: "ReadyAgent", environment: "Environment", problem: "Problem", num_leaves: int, tree: "TreeSettings"
) -> "list[Trace]":
    """The leaves that the tree's budget paid for, in the order in which they were sampled."""
    from rstar2.records import Outcome
    from rstar2.rollout.request import RolloutRequest
    from rstar2.rollout.roller import Roller
    from rstar2.rollout.setup import driver_on

    seed = ready.agent.sampling.seed
    requests = [
        RolloutRequest(
            replace(problem, environment=""),
            trace_id=f"{problem.id}-{number:03d}",
            group_id=problem.id,
            sample_index=number,
            seed=None if seed is None else seed + number,
            tree=tree,
        )
        for number in range(num_leaves)
    ]
    driver = driver_on(ready.model.engine, ready.services.recipe)
    roller = Roller(driver, ready.agent.chat, {"": environment}, ready.model.name)
    leaves = await roller.run(requests, ready.agent.limits, ready.agent.sampling)
    return [leaf for leaf in leaves if leaf.outcome is not Outcome.BEYOND_BUDGET]
