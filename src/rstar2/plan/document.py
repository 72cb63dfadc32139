"""A plan as one JSON document. Bytes are in GiB, times in seconds, as the names say."""

from typing import Any

from rstar2.plan.memory import RankMemory
from rstar2.plan.notes import notes
from rstar2.plan.plan import Plan
from rstar2.plan.rollouts import mean_prompt_tokens
from rstar2.plan.timing import StageTime, StepTime

GIB = 1 << 30


def plan_document(plan: Plan) -> dict[str, Any]:
    run = plan.run_time
    return {
        "recipe": plan.recipe.name,
        "model": {
            "name": plan.recipe.model.name,
            "num_params": plan.num_params,
            "config": plan.config_origin,
        },
        "device": {"name": plan.device.name, "memory_gib": _gib(plan.device.memory_bytes)},
        "layout": {
            "num_devices": plan.layout.num_devices,
            "num_trainer_ranks": plan.layout.num_ranks,
            "ranks_per_shard": plan.layout.ranks_per_shard,
            "num_engines": plan.layout.num_engines,
            "sharing": str(plan.layout.sharing),
        },
        "memory": [_rank(rank) for rank in plan.ranks],
        "micro_batch_tokens": {
            "recipe": plan.micro_batch.num_tokens,
            "longest_sequence": plan.micro_batch.num_longest_tokens,
            "largest_that_fits": plan.micro_batch.num_largest_tokens,
            "largest_checkpointed": plan.micro_batch.num_largest_checkpointed_tokens,
        },
        "kv_cache": _cache(plan),
        "warm_up_s": None if run is None else round(run.warm_up_s, 1),
        "stages": [] if run is None else [_stage(stage) for stage in run.stages],
        "total": None
        if run is None
        else {"days": round(run.total_s / 86_400, 4), "device_hours": round(plan.device_hours, 3)},
        "report": None
        if plan.week is None
        else {
            "planned_days": round(plan.week.planned_days, 3),
            "report_days": plan.week.report_days,
            "ratio": round(plan.week.ratio, 3),
        },
        "fits": plan.fits,
        "problems": list(plan.problems),
        "notes": list(notes(plan)),
    }


def _rank(rank: RankMemory) -> dict[str, Any]:
    return {
        "name": rank.name,
        "phases": {
            phase.name: {
                "parts_gib": {part: _gib(num_bytes) for part, num_bytes in phase.parts.items()},
                "total_gib": _gib(phase.total_bytes),
            }
            for phase in rank.phases
        },
        "usable_gib": _gib(rank.capacity_bytes),
        "host_gib": _gib(rank.host_bytes),
        "fits": rank.fits,
    }


def _cache(plan: Plan) -> dict[str, Any]:
    num_tokens, num_engines = plan.engine.num_cache_tokens, plan.layout.num_engines
    recipe = plan.recipe
    return {
        "tokens_per_engine": num_tokens,
        "tokens_in_all": num_tokens * num_engines,
        "rollouts_per_engine": {
            stage.name: {
                "of_mean_length": int(num_tokens / mean_context(plan, stage)),
                "of_longest": num_tokens // (recipe.rollout.max_prompt_tokens + stage.max_response_tokens),
            }
            for stage in (plan.run_time.stages if plan.run_time is not None else ())
        },
    }


def mean_context(plan: Plan, stage: StageTime) -> float:
    """Of a rollout that ends, at the stage's last step: prompt and response."""
    return mean_prompt_tokens(plan.recipe, plan.assumptions) + stage.mean_response.last


def _stage(stage: StageTime) -> dict[str, Any]:
    return {
        "name": stage.name,
        "steps": stage.num_steps,
        "mean_response_tokens": {"first": stage.mean_response.first, "last": stage.mean_response.last},
        "rollouts_per_step": stage.num_rollouts,
        "tool_calls_per_step": round(stage.num_calls),
        "step": {"first": _step(stage.first), "last": _step(stage.last), "mean": _step(stage.mean)},
        "filter_s": round(stage.filter_s, 1),
        "evaluation_s": round(stage.evaluation_s, 1),
        "total_s": round(stage.total_s, 1),
        "simulated_rollouts": stage.num_simulated,
    }


def _step(step: StepTime) -> dict[str, float]:
    return {
        "generate_s": round(step.generate_s, 3),
        "tools_s": round(step.tools_s, 3),
        "train_s": round(step.train_s, 3),
        "sync_s": round(step.sync_s, 3),
        "overlap_s": round(step.overlap_s, 3),
        "total_s": round(step.total_s, 3),
    }


def _gib(num_bytes: int) -> float:
    return round(num_bytes / GIB, 4)
