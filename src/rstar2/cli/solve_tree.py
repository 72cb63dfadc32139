"""`rstar2 solve --tree N`: N attempts at one problem as a tree, and the answer that most of them give."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rstar2.cli.agent_setup import ReadyAgent
    from rstar2.environments import Environment
    from rstar2.records import Problem, Trace

ROOT_SHARE = 4
"""One leaf in so many begins at the prompt."""


@dataclass(frozen=True, slots=True)
class Vote:
    trace: "Trace"
    """The first leaf with the chosen answer; the first leaf, if none has an answer."""
    num_votes: int
    num_generated: int
    num_shared: int
    """Tokens of leaves that were generated for another one."""


def vote(leaves: "Sequence[Trace]") -> Vote:
    """The most frequent answer; of equally frequent ones the first."""
    counts = Counter(leaf.answer for leaf in leaves if leaf.answer is not None)
    chosen, num_votes = counts.most_common(1)[0] if counts else (None, 0)
    num_generated = sum(len(turn.token_ids) for leaf in leaves for turn in leaf.own_turns)
    return Vote(
        next(leaf for leaf in leaves if leaf.answer == chosen),
        num_votes,
        num_generated,
        sum(leaf.num_sampled_tokens for leaf in leaves) - num_generated,
    )


async def solve_tree(
    ready: "ReadyAgent", environment: "Environment", problem: "Problem", num_leaves: int
) -> "list[Trace]":
    """The leaves, in the order in which they were sampled."""
    from rstar2.rollout.request import RolloutRequest
    from rstar2.rollout.roller import Roller
    from rstar2.rollout.setup import driver_on
    from rstar2.rollout.trees import TreeSettings

    tree = TreeSettings(num_roots=max(1, num_leaves // ROOT_SHARE))
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
    return await roller.run(requests, ready.agent.limits, ready.agent.sampling)
