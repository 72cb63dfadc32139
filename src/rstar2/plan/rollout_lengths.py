"""Draws the rollouts of a stage, as far as time depends on them, around a mean length and cut at the stage's limit.

Lengths scatter as in the scheduler's `default` workload, log-normal between and within problems. The report gives the
mean at the first and the last step of each of its stages; other recipes are assumed to use the same share of their
limit.
"""

import math
from collections.abc import Mapping
from statistics import NormalDist

import numpy as np

from rstar2.config import Recipe, SftSection, StageSection
from rstar2.errors import UserError
from rstar2.plan.assumptions import Assumptions, MeanLength
from rstar2.rollout.simulator import SHAPES, PlannedRollout, Workload
from rstar2.rollout.simulator.workload import WorkloadShape, draw_problem

REPORT_SHARES = (MeanLength(1 / 8, 1 / 2), MeanLength(1 / 3, 1 / 2), MeanLength(1 / 2, 2 / 3))
"""Mean response over limit in the report's stages: 1K to 4K of 8K, 4K to 6K of 12K, 6K to 8K of 12K."""
REPORT_EVAL_SHARE = 9_340 / 30_720
"""The mean response over the limit in the report's AIME24 evaluation."""
_MEAN_PROMPT_TOKENS = 550.0
_MEAN_CONVERSATION_TOKENS = 1000.0
_MAX_SHARE = 0.98
"""The largest share of its limit that a mean may have: beyond it nearly all lengths would be cut."""


def mean_length(stage: StageSection, index: int, given: Mapping[str, MeanLength]) -> MeanLength:
    found = given.get(stage.name) or given.get("")
    limit = stage.max_response_tokens
    if found is None:
        share = REPORT_SHARES[min(index, len(REPORT_SHARES) - 1)]
        return MeanLength(share.first * limit, share.last * limit)
    if not all(0 < mean <= limit * _MAX_SHARE for mean in (found.first, found.last)):
        raise UserError(
            f"--mean-response-tokens: a mean must be above 0 and below {_MAX_SHARE:.0%} of the limit of stage "
            f"{stage.name}, which is {limit}"
        )
    return found


def mean_prompt_tokens(recipe: Recipe, assumptions: Assumptions) -> float:
    return assumptions.mean_prompt_tokens or min(_MEAN_PROMPT_TOKENS, recipe.rollout.max_prompt_tokens / 2)


def mean_conversation_tokens(sft: SftSection, assumptions: Assumptions) -> float:
    return assumptions.mean_conversation_tokens or min(_MEAN_CONVERSATION_TOKENS, sft.max_tokens / 2)


def workload_shape(
    recipe: Recipe, assumptions: Assumptions, mean_tokens: float, max_response_tokens: int, max_turns: int
) -> WorkloadShape:
    like = SHAPES["default"]
    return WorkloadShape(
        median_response_tokens=median_of_mean(
            mean_tokens, max_response_tokens, math.hypot(like.spread_between, like.spread_within)
        ),
        spread_between=like.spread_between,
        spread_within=like.spread_within,
        max_response_tokens=max_response_tokens,
        mean_tool_s=assumptions.tool_s,
        tool_timeout_s=recipe.sandbox.limits.wall_s,
        mean_tool_calls=assumptions.calls_per_rollout,
        max_turns=max_turns,
        mean_appended_tokens=min(like.mean_appended_tokens, recipe.agent.max_tool_output_tokens / 4),
        mean_prompt_tokens=mean_prompt_tokens(recipe, assumptions),
    )


def draw(shape: WorkloadShape, num_problems: int, num_samples: int, seed: int) -> Workload:
    """Draws a workload. Difficulties are spread evenly over their distribution, so that a few problems have the mean of
    many."""
    rng = np.random.default_rng([seed, num_problems, num_samples])
    normal = NormalDist()
    rollouts: list[PlannedRollout] = []
    for problem, place in enumerate(rng.permutation(num_problems)):
        deviation = normal.inv_cdf((float(place) + 0.5) / num_problems)
        rollouts += draw_problem(shape, f"{problem:05d}", deviation, num_samples, rng)
    return Workload("plan", tuple(rollouts))


def median_of_mean(mean: float, limit: float, spread: float) -> float:
    """The median of a log-normal whose values, cut at `limit`, have that mean."""
    assert 0 < mean < limit
    low, high = mean / 100, limit * 1000.0
    for _ in range(100):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if cut_mean(middle, limit, spread) < mean else (low, middle)
    return low


def cut_mean(median: float, limit: float, spread: float) -> float:
    """The mean of min(length, limit) for log-normal lengths."""
    distance = math.log(limit / median) / spread
    normal = NormalDist()
    return median * math.exp(spread**2 / 2) * normal.cdf(distance - spread) + limit * (1 - normal.cdf(distance))
