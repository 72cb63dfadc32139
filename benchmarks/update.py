"""One update of the policy, alone on its device: how long, how much of the hardware's rate, how much memory.

    python benchmarks/update.py [--shapes qwen2.5-1.5b] [--device cuda|cpu] [--lora-rank 16 | --full]
        [--forms ours unshared transformers] [--micro-batch-tokens 16384] [--profile] [--json]

Random weights in the shapes of a real model, `--prompts` problems with `--samples` rollouts each, all of them trained
on in one optimizer step. The forms, each in a separate process:

    ours          as `rstar2 train` runs it; on a GPU prompts are computed once for all rollouts of a problem
    unshared      the same, with every prompt computed for every rollout
    transformers  the layers of `transformers` with peft's adapters beside them, as other trainers run them

FLOP are those of the tokens that are computed, two for each weight of a token's pass, twice that for the gradient of
activations, and as much again where weights themselves have gradients; what is recomputed is not counted. The rate
that the share is of is that of one large bfloat16 product, measured in the same process.
"""

import argparse
import json
import subprocess
import sys
import time
from dataclasses import replace
from typing import Any

import torch
from model_shapes import SHAPES

from rstar2.algo import LossSettings
from rstar2.config import Recipe
from rstar2.train.learning.forward import token_log_probs, use_packed_attention
from rstar2.train.learning.optimizer import Optimizer
from rstar2.train.learning.update import Rollout, UpdateSettings, token_work, update_policy
from rstar2.train.learning.work import attention_flop, product_flop
from rstar2.train.memory.need import GpuNeed
from rstar2.train.memory.sizes import ModelSizes
from rstar2.train.policy.policy import Policy, make_policy
from rstar2.train.reporting.gpu_use import product_rate

FORMS = ("ours", "unshared", "transformers")


def main() -> None:
    options = parse_options()
    if options.form is not None:
        print(json.dumps(measure(options)))
        return
    results = []
    for form in options.forms:
        command = [sys.executable, __file__, *sys.argv[1:], "--form", form]
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=options.deadline_s, check=True)
            result = json.loads(done.stdout.splitlines()[-1])
        except subprocess.TimeoutExpired:
            result = {"failed": f"not done after {options.deadline_s:.0f} s"}
        except subprocess.CalledProcessError as error:
            result = {"failed": f"exit code {error.returncode}"}
        results.append({"form": form, **result})
        print(f"{form}: {json.dumps(result)}", file=sys.stderr, flush=True)
    print(json.dumps({"options": vars(options), "results": results}) if options.json else table(results))


def table(results: list[dict[str, Any]]) -> str:
    lines = [
        "| form | update s | tokens trained/s | TFLOP/s | share of the GPU's rate | peak memory GiB | planned GiB |",
        "|---" * 7 + "|",
    ]
    for row in results:
        if "failed" in row:
            lines.append(f"| {row['form']} | failed ({row['failed']}) | | | | | |")
        else:
            lines.append(
                f"| {row['form']} | {row['update_s']:.2f} | {row['tokens_per_s']:,.0f} | {row['tflops']:.0f} | "
                f"{row['share']:.0%} | {row['peak_gib']:.1f} | {row['planned_gib']:.1f} |"
            )
    return "\n".join(lines)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    device = torch.device(options.device)
    policy = build_policy(options, device)
    groups = draw_groups(options)
    settings = UpdateSettings(
        LossSettings(),
        temperature=1.0,
        micro_batch_tokens=options.micro_batch_tokens,
        optimizer_steps_per_batch=1,
        max_grad_norm=1.0,
    )
    optimizer = Optimizer(policy.parameters(), weight_decay=0.0)
    update_policy(policy, optimizer, groups[: max(1, options.prompts // 16)], settings, lr=1e-6)
    peak_tflops = product_rate(device, policy.dtype) / 1e12 if device.type == "cuda" else 0.0
    seconds = []
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    for _ in range(options.repeats):
        synchronize(device)
        started_s = time.perf_counter()
        values = update_policy(policy, optimizer, groups, settings, lr=1e-6)
        synchronize(device)
        seconds.append(time.perf_counter() - started_s)
    if options.profile:
        profile(policy, optimizer, groups[: max(1, options.prompts // 8)], settings)
    update_s = min(seconds)
    work, sizes = token_work(policy, groups, settings), ModelSizes.of(policy.network.config)
    flop = product_flop(work, sizes, is_full=options.full) + attention_flop(work, sizes)
    return {
        "update_s": update_s,
        "seconds": seconds,
        "num_tokens": work.num_trained,
        "num_computed_tokens": work.num_computed,
        "tokens_per_s": work.num_trained / update_s,
        "tflops": flop / update_s / 1e12,
        "peak_tflops": peak_tflops,
        "share": flop / update_s / 1e12 / peak_tflops if peak_tflops else 0.0,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else 0.0,
        "planned_gib": planned_gib(options, policy),
        "grad_norm": values["grad_norm"],
        "loss": values["loss"],
    }


def planned_gib(options: argparse.Namespace, policy: Policy) -> float:
    """What the division of a GPU's memory counts for the same update, in the trainer's process."""
    need = GpuNeed.of(make_recipe(options, policy.device.type), policy.network.config, policy.dtype.itemsize)
    held = need.weights + need.engine_weights + need.optimizer
    return (held + need.update(options.micro_batch_tokens, is_checkpointed=options.checkpointing)) / 2**30


def make_recipe(options: argparse.Namespace, device: str) -> Recipe:
    lora = {} if options.full else {"lora": {"rank": options.lora_rank, "alpha": 2.0 * options.lora_rank}}
    return Recipe.model_validate(
        {
            "name": "update",
            "model": {"name": options.shapes, "device": device, "context_tokens": 4096, **lora},
            "train": {"gradient_checkpointing": options.checkpointing},
        }
    )


def build_policy(options: argparse.Namespace, device: torch.device) -> Policy:
    from transformers import AutoConfig, AutoModelForCausalLM

    shapes = dict(SHAPES[options.shapes])
    config = AutoConfig.for_model(
        shapes.pop("model_type"),
        **shapes,
        vocab_size=options.vocab_size,
        max_position_embeddings=max(4096, 2 * (options.prompt_tokens + options.response_tokens)),
        tie_word_embeddings=True,
    )
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    torch.manual_seed(0)
    with torch.device(device):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=dtype)
    policy = make_policy(model.eval(), make_recipe(options, device.type), device, dtype)
    if options.form == "ours":
        return policy
    if options.form == "unshared":
        return replace(policy, shares_prefixes=False)
    use_packed_attention(policy.network)
    if options.checkpointing:
        policy.network.gradient_checkpointing_enable({"use_reentrant": False})
        policy.network.train()
    return replace(policy, shares_prefixes=False, _forward=token_log_probs)


def draw_groups(options: argparse.Namespace) -> list[list[Rollout]]:
    generator = torch.Generator().manual_seed(1)

    def draw(number: int) -> tuple[int, ...]:
        return tuple(torch.randint(options.vocab_size, (number,), generator=generator).tolist())

    def about(number: int) -> int:
        return int(number * (0.8 + 0.4 * float(torch.rand((), generator=generator))))

    groups = []
    for _ in range(options.prompts):
        prompt = draw(about(options.prompt_tokens))
        group = []
        for number in range(options.samples):
            response = draw(about(options.response_tokens))
            mask = (*[False] * len(prompt), *[True] * len(response))
            group.append(Rollout(prompt + response, mask, (-1.0,) * len(response), 1.0 if number % 2 else -1.0))
        groups.append(group)
    return groups


def profile(policy: Policy, optimizer: Optimizer, groups: list[list[Rollout]], settings: UpdateSettings) -> None:
    from torch.profiler import ProfilerActivity

    with torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        update_policy(policy, optimizer, groups, settings, lr=1e-6)
        synchronize(policy.device)
    print(profiler.key_averages().table(sort_by="self_cuda_time_total", row_limit=28, max_name_column_width=70),
          file=sys.stderr)  # fmt: skip


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--shapes", choices=SHAPES, default="qwen2.5-1.5b")
    parser.add_argument("--vocab-size", type=int, default=49_152)
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=FORMS)
    parser.add_argument("--form", choices=FORMS, help=argparse.SUPPRESS)
    parser.add_argument("--lora-rank", type=int, default=16)
    parser.add_argument("--full", action="store_true", help="train all weights, not adapters")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--prompt-tokens", type=int, default=430, help="in the mean")
    parser.add_argument("--response-tokens", type=int, default=509, help="in the mean")
    parser.add_argument("--micro-batch-tokens", type=int, default=16_384)
    parser.add_argument("--checkpointing", action="store_true", help="recompute activations layer by layer")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--deadline-s", type=float, default=400)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
