"""Writes a plan as one JSON document, and its assumptions as one line each.

Bytes are in GiB, times in seconds, as the names say. A note names the option that sets its value.
"""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rstar2.plan.assumptions import FSDP_MFU
from rstar2.plan.generation import engine_hardware
from rstar2.plan.layout import Sharing
from rstar2.plan.memory import RankMemory
from rstar2.plan.plan import RecipePlan
from rstar2.plan.rollout_lengths import REPORT_EVAL_SHARE, mean_conversation_tokens, mean_prompt_tokens
from rstar2.plan.timing import StageTime, StepTime
from rstar2.plan.training_time import ATTENTION_EFFICIENCY, PRODUCT_EFFICIENCY


def notes(plan: RecipePlan) -> Iterator[str]:
    yield from _memory(plan)
    if plan.run_time is not None:
        yield from _lengths(plan)
        yield from _speed(plan)
        yield from plan.run_time.left_out


def _memory(plan: RecipePlan) -> Iterator[str]:
    hardware, assumptions = plan.device.hardware, plan.assumptions
    yield f"the model's sizes are from {plan.config_origin}"
    source = "of this machine" if not plan.device.is_gpu else "by the data sheet"
    yield (
        f"{hardware.memory_bytes / 1e9:.0f} GB of memory {source}; {assumptions.memory_margin:.0%} of it is kept free "
        "(--margin)"
    )
    if plan.layout.sharing is Sharing.TURNS:
        yield (
            "while training the engine sleeps: weights and cache leave the device, "
            f"{plan.engine.workspace_bytes / 1e9:.0f} GB of workspace stay"
        )
    if plan.layout.sharing is Sharing.ONE_MODEL:
        cache = "its cache's memory is free" if plan.engine.gives_cache_back else "its cache stays"
        yield f"one process: the engine reads the trainer's weights, and {cache} while training"
    if plan.division is not None:
        yield (
            "`rstar2 train` divides the GPU in the same way, by what is free on it: a cache for all rollouts of a "
            f"step, at most {plan.recipe.engine.gpu_memory_share:.0%} of the device (engine.gpu_memory_share), and "
            "micro-batches as large as speed needs and memory holds"
        )
    elif plan.recipe.engine.kind == "embedded" and plan.recipe.engine.kv_cache_tokens is None:
        share = f"{plan.recipe.engine.gpu_memory_share:.0%} of the device, as far as it is free"
        size = f"{share} (engine.gpu_memory_share)" if plan.device.is_gpu else "1 GiB (engine.kv_cache_tokens)"
        yield f"the embedded engine's cache is {size}"


def _lengths(plan: RecipePlan) -> Iterator[str]:
    assumptions, recipe = plan.assumptions, plan.recipe
    if not assumptions.mean_response_tokens:
        yield (
            "mean responses grow from step to step as in the report, as a share of the stage's limit: 1/8 to 1/2, 1/3 "
            "to 1/2, 1/2 to 2/3 (--mean-response-tokens)"
        )
    yield (
        f"lengths are log-normal with spread 0.5 between and 0.5 within problems, cut at the limit; prompts of "
        f"{mean_prompt_tokens(recipe, assumptions):.0f} tokens (--mean-prompt-tokens)"
    )
    yield (
        f"{assumptions.calls_per_rollout:g} tool calls a rollout (--tool-calls), {assumptions.tool_s:g} s each "
        "(--tool-seconds), as in the report; the sandbox is never the bottleneck"
    )
    if recipe.eval.benchmarks:
        mean = assumptions.mean_eval_tokens or REPORT_EVAL_SHARE * recipe.eval.max_response_tokens
        yield f"evaluation responses of {mean:.0f} tokens on average (--mean-eval-tokens)"
    if recipe.sft is not None:
        yield (
            f"warm-up conversations of {mean_conversation_tokens(recipe.sft, assumptions):.0f} tokens on average "
            "(--mean-conversation-tokens)"
        )
    yield "every group is trained on: none is dropped for equal rewards, and none sampled in its place"


def _speed(plan: RecipePlan) -> Iterator[str]:
    assumptions = plan.assumptions
    hardware = engine_hardware(plan.recipe, plan.device)
    yield (
        f"engines: {plan.recipe.rollout.scheduler} in the simulator, roofline at "
        f"{hardware.bandwidth_efficiency:.0%} of the bandwidth and {hardware.flops_efficiency:.0%} of the FLOPs of the "
        "data sheet; what was measured can be given instead (--measured)"
    )
    if plan.division is not None and assumptions.mfu is None:
        yield (
            f"an update's products reach {PRODUCT_EFFICIENCY:.0%} and its attention {ATTENTION_EFFICIENCY:.0%} of the "
            "data sheet's FLOPs, as measured on an H200; prompts of a group are computed once (--mfu)"
        )
    else:
        mfu = FSDP_MFU if assumptions.mfu is None else assumptions.mfu
        yield f"training reaches {mfu:.0%} of {hardware.flops_per_s / 1e12:.4g} TFLOP/s, recomputation counted (--mfu)"
    if plan.layout.is_sharded:
        yield (
            f"links of {plan.device.link_bytes_per_s / 1e9:.0f} GB/s within a machine and "
            f"{assumptions.network_bytes_per_s / 1e9:.0f} GB/s of each device between machines (--network-gbit), of "
            f"which collectives reach {assumptions.collective_efficiency:.0%}"
        )
    num_simulated = max((stage.num_simulated for stage in plan.run_time.stages), default=0) if plan.run_time else 0
    num_rollouts = plan.recipe.train.prompts_per_step * plan.recipe.algo.num_sampled
    if 0 < num_simulated < 2 * num_rollouts:
        yield (
            f"a step's {num_rollouts:,} rollouts are simulated as a slice of {num_simulated // 2:,} on their share of "
            "the engines (--simulated-rollouts)"
        )
    if plan.recipe.rollout.max_concurrent is not None:
        yield "rollout.max_concurrent is not simulated"
    if not plan.device.is_gpu:
        yield "speeds of a CPU are a rough guess: `rstar2 simulate --measure` says what an engine really does here"


GIB = 1 << 30


def plan_document(plan: RecipePlan) -> dict[str, Any]:
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


def _cache(plan: RecipePlan) -> dict[str, Any]:
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


def mean_context(plan: RecipePlan, stage: StageTime) -> float:
    """Mean tokens of a finished rollout at the stage's last step: prompt and response."""
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
    return {name: round(value, 3) for name, value in (asdict(step) | {"total_s": step.total_s}).items()}


def _gib(num_bytes: int) -> float:
    return round(num_bytes / GIB, 4)
