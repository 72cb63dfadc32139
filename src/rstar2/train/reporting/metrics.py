"""The metrics that are watched while a policy learns, and when it is called collapsed. Pure."""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, pstdev
from typing import TypeVar

from rstar2.algo import is_trainable
from rstar2.grading import count_answer_blocks
from rstar2.records import Group, Outcome, Selection, StepRecord, StopReason, Trace, Verdict

Item = TypeVar("Item")

WINDOW = 10
"""How many steps a mean reward is taken over, because single steps are noisy."""
COLLAPSED_SHARE = 0.4
"""A mean reward below this share of the stage's best is a collapse, not a fluctuation."""
LEAST_BEST_REWARD = 0.15
"""With a best reward below this, a policy has not learnt enough to collapse."""
MAX_STEPS_WITHOUT_SIGNAL = 5


def watch_rollouts(traces: Sequence[Trace], groups: Sequence[Group]) -> dict[str, float]:
    """The metrics of one step over all its rollouts, also those that were not kept. Names are those of
    metrics.jsonl."""
    scored = [trace for trace in traces if trace.reward is not None]
    right = [trace for trace in scored if trace.is_right]
    wrong = [trace for trace in scored if not trace.is_right]
    kept = [group for group in groups if is_trainable(group)]
    rewards = [trace.reward or 0.0 for trace in scored]
    spreads = [
        pstdev(values) for group in groups if (values := [value for value in group.rewards if value is not None])
    ]
    return {
        "reward_mean": _mean(rewards),
        "reward_std": _mean(spreads),
        "accuracy": _share(scored, lambda trace: bool(trace.is_right)),
        "tool_error_share_right": _tool_error_share(right),
        "tool_error_share_wrong": _tool_error_share(wrong),
        "tool_error_share_kept_right": _tool_error_share(_kept(right, kept)),
        "calls_per_rollout": _mean([trace.num_tool_calls for trace in scored]),
        "turns_mean": _mean([len(trace.turns) for trace in scored]),
        "void_turn_share": _void_turn_share(scored),
        "answers_per_rollout": _mean([count_answer_blocks(*trace.turn_texts) for trace in scored]),
        "no_tool_share": _share(scored, lambda trace: trace.num_tool_calls == 0),
        "truncated_share": _share(scored, lambda trace: trace.outcome is Outcome.TRUNCATED),
        "response_tokens_mean": _mean([trace.num_response_tokens for trace in scored]),
        "response_tokens_right": _mean([trace.num_response_tokens for trace in right]),
        "engine_entropy": _mean([value for trace in scored for value in _own_entropies(trace)]),
        "generated_tokens": sum(trace.num_generated_tokens for trace in traces),
        "num_rollouts": sum(trace.outcome is not Outcome.BEYOND_BUDGET for trace in traces),
        "num_faults": sum(trace.outcome is Outcome.INFRASTRUCTURE_FAULT for trace in traces),
        "num_undecided": sum(trace.verdict is Verdict.UNDECIDED for trace in traces),
        "groups_kept": len(kept),
        "groups_dropped": len(groups) - len(kept),
        **_part_means(scored),
        **_by_environment(scored),
    }


def _own_entropies(trace: Trace) -> list[float]:
    """The entropies of a rollout's own tokens, without those that it shares with its parent in a tree."""
    return [value for turn in trace.own_turns for value in turn.entropies][trace.num_shared_tokens :]


def _part_means(scored: Sequence[Trace]) -> dict[str, float]:
    """The mean of each named part of the reward, over the rollouts that have it."""
    values: dict[str, list[float]] = {}
    for trace in scored:
        for name, value in trace.score_parts.items():
            values.setdefault(f"reward/{name}", []).append(value)
    return {name: fmean(parts) for name, parts in sorted(values.items())}


def _by_environment(scored: Sequence[Trace]) -> dict[str, float]:
    """The metrics of each environment of a mix; none if there is only one."""
    names = sorted({trace.environment for trace in scored})
    if len(names) < 2:
        return {}
    found: dict[str, float] = {}
    for name in names:
        own = [trace for trace in scored if trace.environment == name]
        label = name or "default"
        found[f"{label}/reward_mean"] = _mean([trace.reward or 0.0 for trace in own])
        found[f"{label}/accuracy"] = _share(own, lambda trace: bool(trace.is_right))
        found[f"{label}/num_rollouts"] = len(own)
        found[f"{label}/tool_error_share"] = _tool_error_share(own)
    return found


def watch_schedule(record: StepRecord | None) -> dict[str, float]:
    """Where the rollouts' time went, in seconds of the mean rollout, and how long engines had nothing to do."""
    if record is None or not record.num_rollouts:
        return {}
    lived_s = sum(use.left_s - use.joined_s for use in record.engines)
    return {
        "rollout_queued_s": record.queued_s / record.num_rollouts,
        "rollout_generating_s": record.generating_s / record.num_rollouts,
        "rollout_tool_s": record.tool_s / record.num_rollouts,
        "engine_idle_share": sum(use.idle_s for use in record.engines) / lived_s if lived_s else 0.0,
    }


def window_mean(rewards: Sequence[float]) -> float | None:
    """The mean of the last rewards; None until there are enough of them."""
    return fmean(rewards[-WINDOW:]) if len(rewards) >= WINDOW else None


def no_signal(metrics: Mapping[str, float]) -> str:
    """Says why a step left no group to train on, and what to change."""
    seen = f"in none of its {metrics['groups_dropped']:.0f} groups rewards differ, and "
    if metrics["accuracy"] == 0:
        return (
            f"{seen}no rollout is right. Use easier problems, a warm-up ([sft]) on conversations that fit them, or a "
            "pretrained model (model.name)"
        )
    if metrics["accuracy"] == 1:
        return f"{seen}every rollout is right. Use harder problems, or a difficulty filter that leaves some"
    return f"{seen}{metrics['accuracy']:.0%} of the rollouts are right. Use more samples (algo.group_size)"


def collapse(metrics: dict[str, float], recent_rewards: Sequence[float], best_reward: float) -> str | None:
    """Why the policy is called collapsed after a step, with the metrics that show it; None if it is not."""
    for name in ("loss", "grad_norm", "entropy"):
        if name in metrics and not math.isfinite(metrics[name]):
            return f"{name} is {metrics[name]}"
    mean = window_mean(recent_rewards)
    if mean is not None and best_reward >= LEAST_BEST_REWARD and mean < COLLAPSED_SHARE * best_reward:
        seen = {
            name: metrics[name]
            for name in ("entropy", "grad_norm", "truncated_share", "no_tool_share", "void_turn_share")
            if name in metrics
        }
        beside = ", ".join(f"{name} {value:.3g}" for name, value in seen.items())
        return (
            f"the mean reward of the last {WINDOW} steps is {mean:.3f}, after a best of {best_reward:.3f} in this "
            f"stage; at the last step {beside}"
        )
    return None


def _kept(traces: Sequence[Trace], groups: Sequence[Group]) -> list[Trace]:
    ids = {
        trace_id
        for group in groups
        for trace_id, selection in zip(group.trace_ids, group.selections, strict=True)
        if selection is Selection.KEPT
    }
    return [trace for trace in traces if trace.id in ids]


def _tool_error_share(traces: Sequence[Trace]) -> float:
    """The share of tool calls that failed through the policy's fault."""
    counts = [trace.own_calls for trace in traces]
    num_calls, num_failed = (sum(count[place] for count in counts) for place in (0, 1))
    return num_failed / num_calls if num_calls else 0.0


def _void_turn_share(traces: Sequence[Trace]) -> float:
    """The share of finished turns that neither called a tool nor gave an answer."""
    turns = [turn for trace in traces for turn in trace.turns if turn.stop_reason is StopReason.END_OF_TURN]
    return _share(turns, lambda turn: not turn.calls and not count_answer_blocks(turn.text))


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0


def _share(items: Sequence[Item], holds: Callable[[Item], bool]) -> float:
    return sum(map(holds, items)) / len(items) if items else 0.0
