"""GRPO-RoC, group relative policy optimization with resampling on correct, as pure functions.

Promise: arrays in, arrays out, no trainer object; each random choice draws from a generator that the caller passes in;
numpy alone, except that `policy_loss` takes torch tensors and imports torch when it is called.
May import: records, config.

Data flows through `rollout_reward`, the penalties, `resample` and `group_advantages`, which `choose_rollouts` combines
for arrays and `decide_group` for traces; `num_missing_groups` says what a batch still lacks; `policy_loss` gets the
kept tokens.
"""

from rstar2.algo.advantage import group_advantages, rewards_are_equal
from rstar2.algo.group import Choice, RocSettings, choose_rollouts, decide_group
from rstar2.algo.loss import LossSettings, PolicyLoss, policy_loss
from rstar2.algo.penalties import (
    TracePenalty,
    error_penalties,
    format_penalties,
    trace_penalty,
)
from rstar2.algo.refill import is_trainable, num_missing_groups, num_missing_rollouts
from rstar2.algo.resample import Candidates, SelectionRule, quotas, resample
from rstar2.algo.reward import rollout_reward
from rstar2.records import count_tool_calls

__all__ = [
    "Candidates",
    "Choice",
    "LossSettings",
    "PolicyLoss",
    "RocSettings",
    "SelectionRule",
    "TracePenalty",
    "choose_rollouts",
    "count_tool_calls",
    "decide_group",
    "error_penalties",
    "format_penalties",
    "group_advantages",
    "is_trainable",
    "num_missing_groups",
    "num_missing_rollouts",
    "policy_loss",
    "quotas",
    "resample",
    "rewards_are_equal",
    "rollout_reward",
    "trace_penalty",
]
