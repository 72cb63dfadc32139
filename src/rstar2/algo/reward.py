"""The reward: 1 for a right final answer, 0 for any other, nothing for format, tools, steps or length.

Invariant: a rollout that could not be judged has no reward: None, never a silent 0.
"""

from rstar2.errors import UserError
from rstar2.records import Outcome, Verdict


def rollout_reward(outcome: Outcome, verdict: Verdict | None) -> float | None:
    """The reward of a rollout. None if it was lost or not sampled, or its verdict is undecided; 0 if it was truncated,
    graded or not."""
    if not outcome.is_scored:
        return None
    if outcome is Outcome.TRUNCATED:
        return 0.0
    if verdict is None:
        raise UserError(f"verdict is missing: a rollout that ended as {outcome} must be graded before it is rewarded")
    if verdict is Verdict.UNDECIDED:
        return None
    return float(verdict is Verdict.RIGHT)
