"""What a plan rests on: each assumption and each thing left out, a line each, with the option that sets it."""

from collections.abc import Iterator

from rstar2.plan.layout import Sharing
from rstar2.plan.plan import Plan
from rstar2.plan.rollouts import REPORT_EVAL_SHARE, mean_conversation_tokens, mean_prompt_tokens


def notes(plan: Plan) -> Iterator[str]:
    yield from _memory(plan)
    if plan.run_time is not None:
        yield from _lengths(plan)
        yield from _speed(plan)
        yield from plan.run_time.left_out


def _memory(plan: Plan) -> Iterator[str]:
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
        yield "one process: the engine reads the trainer's weights, and its cache stays while training"
    if plan.recipe.engine.kind == "embedded" and plan.recipe.engine.kv_cache_tokens is None:
        share = f"{plan.recipe.engine.gpu_memory_share:.0%} of the device, as far as it is free"
        size = f"{share} (engine.gpu_memory_share)" if plan.device.is_gpu else "1 GiB (engine.kv_cache_tokens)"
        yield f"the embedded engine's cache is {size}"


def _lengths(plan: Plan) -> Iterator[str]:
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


def _speed(plan: Plan) -> Iterator[str]:
    hardware, assumptions = plan.device.hardware, plan.assumptions
    yield (
        f"engines: {plan.recipe.rollout.scheduler} in the simulator, roofline at "
        f"{hardware.bandwidth_efficiency:.0%} of the bandwidth and {hardware.flops_efficiency:.0%} of the FLOPs of the "
        "data sheet; what was measured can be given instead (--measured)"
    )
    yield (
        f"training reaches {assumptions.mfu:.0%} of {hardware.flops_per_s / 1e12:.4g} TFLOP/s, recomputation counted "
        "(--mfu)"
    )
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
