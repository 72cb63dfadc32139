"""Samples trained a second: rstar2's trainer and TRL's GRPOTrainer with its own tool loop, the same work, one machine.

    python benchmarks/vs_trl.py [--device cuda|cpu] [--model FOLDER] [--trl-python PYTHON] [--json]
        [--contenders rstar2 rstar2-paper rstar2-invariant trl trl-continuous trl-vllm]

A sample is one rollout that was generated, graded and trained on. Both train the same weights on the same prompts, to
the token and in the same order, with the same group size, limits on response tokens and tool turns, Python tool in the
same sandbox, judge, learning rate, clipping, one optimizer step a batch and no KL term; in bfloat16 on a GPU, in
float32 on a CPU; all groups are trained on, those of equal rewards too. rstar2 runs as `rstar2 train` does, once with
`selection = "off"`, which is the same work, and once with `paper`, where twice as many are generated as are trained on;
where asked for, with `engine.batch_invariant` (`rstar2-invariant`).
TRL runs as installed, with the settings of `config_of` in trl_contender.py, which are printed: batched
`transformers.generate`; where asked for, continuous batching (`trl-continuous`) and vLLM in its process (`trl-vllm`).

Wall time of `--steps` steps after `--warm-up-steps` that do not count, checkpoints left out. The two sample their own
rollouts, so the report has their length and number of tool calls as well, and says where the work differs by more than
a fifth. A model that never calls the tool shows little: name one that was taught to. Of rstar2's updates it has the
share of the GPU's rate (`mfu`), and how far the engine's log-probabilities are from the trainer's: the mean over tokens
(`mismatch`) and the largest.

Each contender is a separate process with a deadline: one that fails or hangs is reported as such. TRL is run by
`--trl-python`, whose environment must have rstar2 as well, for its sandbox and its judge; left out, by this Python.
"""

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from trl_contender import CLIP_HIGH, CLIP_LOW, LORA_MODULES, MAX_GRAD_NORM, Outcome

from rstar2.agent import Transcript, load_chat
from rstar2.config import DataSet, Recipe
from rstar2.config.emit import to_toml
from rstar2.data import load_problems
from rstar2.extensions import TOOLS
from rstar2.models import resolve
from rstar2.records import RunView, Selection
from rstar2.train.seeds import Cursor, take

SET, STAGE = "problems", "measured"
PROBLEMS = "procedural:big_product,modular_power,gcd,lcm,range_sum,base_conversion"
MAX_DIFFERENCE = 0.2
"""How far response tokens or tool calls per sample may differ, as a share of rstar2's, before the report says so."""
LEAST_CALLS = 0.05
"""Tool calls a sample below which their ratio says nothing."""
LABELS = {
    "rstar2": "rstar2, selection off",
    "rstar2-paper": "rstar2, selection paper (2G for G)",
    "rstar2-invariant": "rstar2, batch-invariant",
    "trl": "TRL, transformers.generate",
    "trl-continuous": "TRL, continuous batching",
    "trl-vllm": "TRL, vLLM colocated",
}


UPDATE_METRICS = (
    *("train_s", "sync_s", "generate_share", "train_share", "trained_tokens_per_s", "mfu", "mismatch", "mismatch_max"),
    *("gpu_busy_share", "gpu_memory_gib"),
)
LARGEST_METRICS = ("mismatch_max", "gpu_memory_gib")


class ContenderError(Exception):
    """A contender that did not do what it was asked, and why."""


def main() -> None:
    options = parse_options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the contender ends with it
    outcomes: dict[str, Outcome] = {}
    updates: dict[str, dict[str, float]] = {}
    failed: dict[str, str] = {}
    about: dict[str, Any] = {}
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="vs-trl-")))
        log = stack.enter_context(Path(options.log or os.devnull).open("w"))
        folder = model_folder(options, scratch)
        recipe, problems = lay_out(options, folder)
        load_before = os.getloadavg()[0]
        for name in options.contenders:
            say(f"running {LABELS[name]}")
            try:
                if name.startswith("rstar2"):
                    view = run_rstar2(name, options, recipe, scratch / name, log)
                    outcomes[name], updates[name] = read_run(view, options), read_updates(view, options)
                else:
                    outcomes[name], about[name] = run_trl(name, options, recipe, problems, scratch / name, log)
            except ContenderError as error:
                failed[name] = str(error)
    about["load_average"] = [round(load_before, 1), round(os.getloadavg()[0], 1)]
    report(options, recipe, outcomes, updates, failed, about)


def say(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


# The task: one recipe, one model, the prompts in the order in which rstar2 takes them.


def model_folder(options: argparse.Namespace, scratch: Path) -> Path:
    folder = resolve(options.model)
    if options.adapter is None:
        return folder
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    merged = scratch / "merged"
    shutil.copytree(folder, merged, ignore=shutil.ignore_patterns("*.safetensors*"))
    base: Any = AutoModelForCausalLM.from_pretrained(folder)
    PeftModel.from_pretrained(base, options.adapter).merge_and_unload().save_pretrained(merged)
    return merged


def lay_out(options: argparse.Namespace, folder: Path) -> tuple[Recipe, list[dict[str, Any]]]:
    num_steps = options.num_warm_up_steps + options.num_steps
    num_prompts = num_steps * options.prompts_per_step
    num_generated = 2 * options.prompts_per_step * options.group_size
    settings: dict[str, Any] = {
        "name": "vs-trl",
        "seed": options.seed,
        "model": {"name": str(folder), "device": options.device},
        "engine": {"kind": "embedded", "max_batch": min(num_generated, options.max_batch)},
        "environment": {"source": "math", "tools": [options.tool]},
        "agent": {"max_tool_output_tokens": options.max_tool_output_tokens},
        "algo": {
            "group_size": options.group_size,
            "oversample_factor": 1,
            "selection": "off",
            "clip_low": CLIP_LOW,
            "clip_high": CLIP_HIGH,
            "drop_equal_groups": False,
            "max_refills": 0,
        },
        "train": {
            "lr": options.lr,
            "warmup_steps": 0,
            "weight_decay": 0.0,
            "max_grad_norm": MAX_GRAD_NORM,
            "prompts_per_step": options.prompts_per_step,
            "micro_batch_tokens": options.micro_batch_tokens,
            "gradient_checkpointing": None if options.device == "cuda" else False,
            "checkpoint_every_steps": num_steps + 1,
            "stop_at_collapse": False,
        },
        "stages": [
            {
                "name": STAGE,
                "data": [SET],
                "max_response_tokens": options.max_response_tokens,
                "max_turns": options.max_turns,
                "steps": num_steps,
            }
        ],
        "data": {SET: {"source": PROBLEMS, "num_problems": num_prompts}},
    }
    if options.lora_rank:
        settings["model"]["lora"] = {
            "rank": options.lora_rank,
            "alpha": 2.0 * options.lora_rank,
            "target_modules": LORA_MODULES,
        }
    drawn = load_problems(SET, DataSet(source=PROBLEMS, num_problems=num_prompts), options.seed)
    order, _ = take(Cursor(), num_prompts, len(drawn), f"{options.seed}/{STAGE}")
    chat = load_chat(folder)
    schema = TOOLS.load(options.tool).schema
    problems = []
    for index in order:
        start = Transcript.start(chat, drawn[index].problem, [schema])
        prompt = {"prompt": start.prompt_text, "prompt_ids": list(start.prompt_ids)}
        problems.append({**prompt, "answer": drawn[index].answer})
    longest = max(16, *(len(problem["prompt_ids"]) for problem in problems))
    settings["rollout"] = {"max_prompt_tokens": longest}
    settings["model"]["context_tokens"] = longest + options.max_response_tokens
    if options.device == "cpu":
        settings["engine"]["kv_cache_tokens"] = settings["engine"]["max_batch"] * settings["model"]["context_tokens"]
    return Recipe.model_validate(settings), problems


# The contenders.


def run_rstar2(name: str, options: argparse.Namespace, recipe: Recipe, scratch: Path, log: Any) -> RunView:
    if name == "rstar2-paper":
        algo = recipe.algo.model_copy(update={"selection": "paper", "oversample_factor": 2})
        recipe = recipe.model_copy(update={"algo": algo})
    if name == "rstar2-invariant":
        engine = recipe.engine.model_copy(update={"batch_invariant": True})
        recipe = recipe.model_copy(update={"engine": engine})
    scratch.mkdir()
    (scratch / "recipe.toml").write_text(to_toml(recipe))
    arguments = ["-m", "rstar2", "train", str(scratch / "recipe.toml"), "--run", str(scratch / "run")]
    if options.num_threads:
        arguments += ["--threads", str(options.num_threads)]
    run([sys.executable, *arguments], options, log)
    return RunView(scratch / "run")


def read_run(view: RunView, options: argparse.Namespace) -> Outcome:
    rows = [row for row in view.metrics() if row.stage == STAGE][options.num_warm_up_steps - 1 :]
    before, measured = rows[:-1], rows[1:]
    traces = [trace for row in measured for trace in view.traces(row.step)]
    groups = [group for row in measured for group in view.groups(row.step)]
    return Outcome(
        step_s=[after.time - earlier.time for earlier, after in zip(before, measured, strict=True)],
        generate_s=sum(row.values["generate_s"] or 0.0 for row in measured),
        num_trained=sum(group.selections.count(Selection.KEPT) for group in groups),
        num_generated=len(traces),
        num_sampled_tokens=sum(trace.num_sampled_tokens for trace in traces),
        num_response_tokens=sum(trace.num_response_tokens for trace in traces),
        num_tool_calls=sum(len(trace.results) for trace in traces),
        reward=sum(trace.reward or 0.0 for trace in traces) / len(traces),
    )


def read_updates(view: RunView, options: argparse.Namespace) -> dict[str, float]:
    """What the trainer says of the measured updates: means, and of what is largest the largest."""
    rows = [row.values for row in view.metrics() if row.stage == STAGE][options.num_warm_up_steps :]
    seen: dict[str, float] = {}
    for name in UPDATE_METRICS:
        if values := [value for row in rows if (value := row.get(name)) is not None]:
            seen[name] = max(values) if name in LARGEST_METRICS else sum(values) / len(values)
    return seen


def run_trl(
    name: str,
    options: argparse.Namespace,
    recipe: Recipe,
    problems: Sequence[dict[str, Any]],
    scratch: Path,
    log: Any,
) -> tuple[Outcome, dict[str, Any]]:
    scratch.mkdir()
    folder = Path(recipe.model.name)
    task = {
        **vars(options),
        "generation": name.partition("-")[2] or "generate",
        "folder": str(folder),
        "output_folder": str(scratch / "output"),
        "context_tokens": recipe.model.context_tokens,
        "stop_token_ids": list(load_chat(folder).stop_token_ids),
        "problems": problems,
    }
    task_file, result_file = scratch / "task.json", scratch / "result.json"
    task_file.write_text(json.dumps(task))
    script = Path(__file__).with_name("trl_contender.py")
    try:
        run([options.trl_python or sys.executable, str(script), str(task_file), str(result_file)], options, log)
    except ContenderError as error:
        said = json.loads(result_file.read_text()) if result_file.exists() else {}
        raise ContenderError(said.get("error", str(error))) from None
    result = json.loads(result_file.read_text())
    return Outcome(**result.pop("outcome")), result


def run(command: Sequence[str], options: argparse.Namespace, log: Any) -> None:
    """To its end, or to the deadline; with its children."""
    environment = {
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TRL_EXPERIMENTAL_SILENCE": "1",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        **os.environ,
    }
    process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
    try:
        code = process.wait(options.deadline_s)
    except subprocess.TimeoutExpired:
        raise ContenderError(f"not done in {options.deadline_s:g} s") from None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if code:
        raise ContenderError(f"ended with {code}; --log FILE keeps what it printed")


# The report.


def report(
    options: argparse.Namespace,
    recipe: Recipe,
    outcomes: dict[str, Outcome],
    updates: dict[str, dict[str, float]],
    failed: dict[str, str],
    about: dict[str, Any],
) -> None:
    facts = {
        "machine": machine(options),
        "torch": version("torch"),
        "model": Path(options.model).name + (f" with {Path(options.adapter).name}" if options.adapter else ""),
        "training": f"LoRA of rank {options.lora_rank}" if options.lora_rank else "all weights",
        "tool": options.tool,
        "prompts_per_step": options.prompts_per_step,
        "group_size": options.group_size,
        "max_response_tokens": options.max_response_tokens,
        "max_turns": options.max_turns,
        "steps": f"{options.num_steps} after {options.num_warm_up_steps}",
        "load_average": about.pop("load_average"),
        "seed": options.seed,
        "date": datetime.now(UTC).date().isoformat(),
    }
    notes = differences(outcomes)
    speed_up = ratio(outcomes)
    if options.json:
        rows = {
            name: {**asdict(outcome), "samples_per_s": outcome.samples_per_s, "tokens_per_s": outcome.tokens_per_s}
            for name, outcome in outcomes.items()
        }
        content = {
            "contenders": rows,
            "updates": updates,
            "failed": failed,
            "differences": notes,
            "rstar2_over_best_trl": speed_up,
        }
        print(json.dumps({**facts, **content, "recipe": recipe.model_dump(mode="json"), "trl": about}))
        return
    for name, value in facts.items():
        print(f"{name:20} {value}")
    for name, value in about.items():
        print(f"\n{LABELS[name]}, {', '.join(f'{key} {text}' for key, text in value['versions'].items())}")
        print("  " + ", ".join(f"{key}={setting}" for key, setting in value["settings"].items()))
    head = ("samples/s", "step s", "generate s", "tokens/s", "response", "calls", "reward")
    print(f"\n{'trainer':36}" + "".join(f"{title:>11}" for title in head))
    for name in options.contenders:
        if name in failed:
            print(f"{LABELS[name]:36} {failed[name]}")
            continue
        print(f"{LABELS[name]:36}" + "".join(f"{text:>11}" for text in cells(outcomes[name])))
    for name, seen in updates.items():
        print(f"\n{LABELS[name]}: " + ", ".join(f"{metric} {value:.4g}" for metric, value in seen.items()))
    if speed_up is not None:
        print(f"\nrstar2 trains {speed_up:.1f} times as many samples a second as the fastest TRL")
    for note in notes:
        print(note)


def cells(outcome: Outcome) -> list[str]:
    num_steps = len(outcome.step_s)
    return [
        f"{outcome.samples_per_s:,.2f}",
        f"{outcome.wall_s / num_steps:.2f}",
        f"{outcome.generate_s / num_steps:.2f}",
        f"{outcome.tokens_per_s:,.0f}",
        f"{outcome.each(outcome.num_response_tokens):.1f}",
        f"{outcome.each(outcome.num_tool_calls):.2f}",
        f"{outcome.reward:.3f}",
    ]


def ratio(outcomes: dict[str, Outcome]) -> float | None:
    theirs = [outcome.samples_per_s for name, outcome in outcomes.items() if name.startswith("trl")]
    return outcomes["rstar2"].samples_per_s / max(theirs) if theirs and "rstar2" in outcomes else None


def differences(outcomes: dict[str, Outcome]) -> list[str]:
    """Sentences on where TRL did other work than rstar2."""
    notes: list[str] = []
    ours = outcomes.get("rstar2")
    for name, theirs in outcomes.items():
        if ours is None or not name.startswith("trl"):
            continue
        for what, mine, other in (
            ("response tokens", ours.each(ours.num_response_tokens), theirs.each(theirs.num_response_tokens)),
            ("tool calls", ours.each(ours.num_tool_calls), theirs.each(theirs.num_tool_calls)),
        ):
            is_countable = what != "tool calls" or max(mine, other) >= LEAST_CALLS
            if is_countable and abs(other - mine) > MAX_DIFFERENCE * mine:
                notes.append(f"the work differs: {LABELS[name]} had {other:.2f} {what} a sample, rstar2 {mine:.2f}")
    return notes


def machine(options: argparse.Namespace) -> str:
    if options.device == "cpu":
        return f"{platform.processor() or platform.machine()}, {len(os.sched_getaffinity(0))} cores"
    import torch

    return f"{torch.cuda.get_device_name()}, {len(os.sched_getaffinity(0))} cores"


def has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), help="cuda where there is one")
    parser.add_argument("--model", default="smollm2-135m", help="a name that `rstar2 models` knows, or a folder")
    parser.add_argument("--adapter", metavar="FOLDER", help="of peft, merged into the model before either trains it")
    parser.add_argument("--lora-rank", type=int, default=0, help="train adapters of this rank; 0 trains all weights")
    parser.add_argument("--tool", choices=sorted(TOOLS), default="execute_python_code_with_standard_io")
    parser.add_argument("--prompts-per-step", type=int, help="64 on a GPU, 4 on a CPU")
    parser.add_argument("--group-size", type=int, help="16 on a GPU, 4 on a CPU")
    parser.add_argument("--max-response-tokens", type=int, help="1024 on a GPU, 128 on a CPU")
    parser.add_argument("--max-tool-output-tokens", type=int, help="256 on a GPU, 64 on a CPU")
    parser.add_argument("--max-turns", type=int, default=6, help="turns in which calls are run; one more to answer in")
    parser.add_argument("--lr", type=float, default=1e-6)
    parser.add_argument("--steps", dest="num_steps", type=int, default=5, help="that count")
    parser.add_argument("--warm-up-steps", dest="num_warm_up_steps", type=int, default=2, help="at least 1")
    parser.add_argument("--max-batch", type=int, default=2048, help="rollouts that rstar2 decodes at the same time")
    parser.add_argument("--micro-batch-tokens", type=int, help="of rstar2; its own choice on a GPU, 8192 on a CPU")
    parser.add_argument("--trl-batch", type=int, help="per_device_train_batch_size: samples in one of TRL's passes")
    parser.add_argument("--contenders", nargs="+", choices=LABELS, default=["rstar2", "rstar2-paper", "trl"])
    parser.add_argument("--trl-python", metavar="PYTHON", help="of an environment that has TRL and rstar2")
    parser.add_argument("--num-threads", type=int, help="of a CPU")
    parser.add_argument("--deadline-s", type=float, default=600.0, help="of each contender, loading included")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", metavar="FILE", help="what the contenders print")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    if options.num_warm_up_steps < 1:
        parser.error("--warm-up-steps must be at least 1: a step is timed from the end of the one before")
    options.device = options.device or ("cuda" if has_cuda() else "cpu")
    on_gpu = options.device == "cuda"
    by_device: dict[str, int] = {
        "prompts_per_step": 64 if on_gpu else 4,
        "group_size": 16 if on_gpu else 4,
        "max_response_tokens": 1024 if on_gpu else 128,
        "max_tool_output_tokens": 256 if on_gpu else 64,
        "trl_batch": 32 if on_gpu else 16,
    }
    for name, value in by_device.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    if options.micro_batch_tokens is None and not on_gpu:
        options.micro_batch_tokens = 8192
    num_samples = options.prompts_per_step * options.group_size
    options.trl_batch = min(options.trl_batch, num_samples)
    if num_samples % options.trl_batch:
        parser.error(f"--trl-batch must divide the {num_samples} samples of a step, not {options.trl_batch}")
    return options


if __name__ == "__main__":
    main()
