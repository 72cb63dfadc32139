"""Training on Ray with vLLM and a trainer rank on one GPU, in turns: does vLLM have the trainer's weights at each step?

    python benchmarks/vllm_cluster.py --model FOLDER [--shapes qwen2.5-1.5b] [--steps 5] [--kill-after 2] [--json]

The weights are random, in the shapes of a model, and only the tokenizer is the folder's. All are trained, at a rate at
which every step moves them far, towards tokens with even ids: a task that random weights can learn. `rstar2 train
--cluster local` and its driver are killed after the metrics of one step (SIGKILL, no warning); how long the others take
to end is timed, and the run is resumed.

Each step's row has the mean and the largest absolute difference between vLLM's log-probabilities of its tokens and the
trainer's. So that a small difference means something, the last row is what it would be if vLLM still had the weights it
started with: the log-probabilities of the last step's tokens under these, against vLLM's. On a CPU vLLM and the rank
are separated, and it takes `VLLM_CPU_KVCACHE_SPACE=1`.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from model_shapes import SHAPES
from serve import write_random_model

from rstar2.environments import Task
from rstar2.records import RunView, Trace

STAGE, SET = "measured", "problems"
MARK = "RSTAR2_BENCHMARK_RUN"
"""In the environment of every process that a run starts, whoever its parent is after a kill."""
END_S = 120.0
METRICS = ("reward_mean", "mismatch", "mismatch_max", "generate_s", "train_s", "sync_s", "step_s")
NUM_CONTROL_TRACES = 8


class EvenIds(Task):
    """The reward is the share of sampled tokens whose id is even, of truncated rollouts too."""

    def get_reward(self, trace: Trace) -> float:
        sampled = [token for turn in trace.turns for token in turn.token_ids]
        return sum(token % 2 == 0 for token in sampled) / max(1, len(sampled))


def write_recipe(options: argparse.Namespace, folder: Path, model: Path) -> Path:
    on_gpu = options.device == "cuda"
    lines = f"""
name = "vllm-cluster"
[model]
name = "{model}"
device = "{options.device}"
dtype = "{"bfloat16" if on_gpu else "float32"}"
context_tokens = {options.response_tokens + 512}
[engine]
kind = "vllm"
max_batch = {options.prompts * options.group_size}
gpu_memory_share = {options.gpu_memory_share}
{"" if on_gpu else "kv_cache_tokens = 8192"}
[environment]
source = "file:{Path(__file__).absolute()}:EvenIds"
[rollout]
max_prompt_tokens = 512
[algo]
group_size = {options.group_size}
oversample_factor = 1
selection = "off"
max_refills = 0
drop_equal_groups = false
[train]
lr = {options.lr}
warmup_steps = 0
weight_decay = 0.0
prompts_per_step = {options.prompts}
micro_batch_tokens = {options.micro_batch_tokens}
checkpoint_every_steps = 1
stop_at_collapse = false
[[stages]]
name = "{STAGE}"
data = ["{SET}"]
max_response_tokens = {options.response_tokens}
max_turns = 1
steps = {options.steps}
[data.{SET}]
source = "procedural:gcd"
num_problems = {options.steps * options.prompts}
[cluster]
num_nodes = 1
gpus_per_node = {int(on_gpu)}
layout = "{"colocated" if on_gpu else "separated"}"
num_trainer_ranks = 1
num_engines = 1
"""
    recipe = folder / "recipe.toml"
    recipe.write_text(lines, encoding="utf-8")
    return recipe


class Command:
    """One `rstar2 train` and everything that it starts."""

    def __init__(self, arguments: list[str], log: Path) -> None:
        self._mark = uuid.uuid4().hex
        environment = {**os.environ, MARK: self._mark, "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "rstar2", "train", *arguments],
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
            )

    @property
    def code(self) -> int | None:
        return self._process.poll()

    def living(self) -> Iterator[int]:
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdigit() and f"{MARK}={self._mark}".encode() in (entry / "environ").read_bytes():
                    yield int(entry.name)

    def kill(self) -> tuple[float, int]:
        """Kills the command and its driver. Returns after how many seconds no process was left, and how many had to be
        killed one by one after the deadline."""
        began = time.monotonic()
        for pid in list(self.living()):
            with suppress(ProcessLookupError):
                if os.getpgid(pid) == self._process.pid:
                    os.kill(pid, signal.SIGKILL)
        self._process.wait()
        while left := list(self.living()):
            if time.monotonic() - began > END_S:
                for pid in left:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                return END_S, len(left)
            time.sleep(0.1)
        return time.monotonic() - began, 0


def steps_of(run: Path) -> dict[int, dict[str, float]]:
    if not (run / "run.json").is_file():
        return {}
    rows = [row for row in RunView(run).metrics() if row.stage == STAGE]
    return {row.step: {name: value for name in METRICS if (value := row.values.get(name)) is not None} for row in rows}


def await_end(command: Command, run: Path, deadline: float, until_step: int | None = None) -> None:
    """Until the command ends, or until a step's metrics are written."""
    try:
        while command.code is None:
            if time.monotonic() > deadline:
                sys.exit("the deadline has passed")
            if until_step is not None and until_step in steps_of(run):
                return
            time.sleep(0.2)
        if command.code or until_step is not None:
            sys.exit(f"rstar2 train ended with {command.code}")
    except BaseException:
        command.kill()
        raise


def versions_of(run: Path, step: int) -> list[int]:
    return sorted({turn.policy_version for trace in RunView(run).traces(step) for turn in trace.turns})


def difference_from(folder: Path, run: Path, step: int, device: str) -> dict[str, float]:
    """What the mismatch of a step would be if its tokens had been sampled from the weights in a folder."""
    import torch
    from transformers import AutoModelForCausalLM

    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device)
    found: list[float] = []
    with torch.inference_mode():
        for trace in list(RunView(run).traces(step))[:NUM_CONTROL_TRACES]:
            ids = torch.tensor([trace.token_ids], device=device)
            log_probs = model(ids).logits[0, :-1].float().log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0].tolist()
            pairs = zip(log_probs, trace.log_probs[1:], trace.loss_mask[1:], strict=True)
            found += [abs(theirs - ours) for theirs, ours, is_own in pairs if is_own]
    return {"mismatch": statistics.fmean(found), "mismatch_max": max(found)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a model folder, of which the tokenizer is used")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--shapes", choices=SHAPES, default="qwen2.5-1.5b")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--kill-after", type=int, default=2, metavar="STEP")
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--group-size", type=int, default=16)
    parser.add_argument("--response-tokens", type=int, default=512)
    parser.add_argument("--micro-batch-tokens", type=int, default=16_384)
    parser.add_argument("--gpu-memory-share", type=float, default=0.4)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--deadline-s", type=float, default=560.0)
    parser.add_argument("--log", type=Path, default=Path("vllm_cluster.log"))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    deadline = time.monotonic() + options.deadline_s
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no run outlives this process
    with tempfile.TemporaryDirectory() as scratch:
        model, run = Path(scratch) / "model", Path(scratch) / "run"
        write_random_model(options.model, options.shapes, model, options.seed)
        recipe = write_recipe(options, Path(scratch), model)
        began = time.monotonic()
        command = Command([str(recipe), "--run", str(run), "--cluster", "local"], options.log)
        await_end(command, run, deadline, options.kill_after)
        first_s = time.monotonic() - began
        gone_s, num_left = command.kill()
        began = time.monotonic()
        await_end(Command(["--resume", str(run), "--cluster", "local"], options.log), run, deadline)
        found: dict[str, Any] = {
            "steps": {step: values | {"versions": versions_of(run, step)} for step, values in steps_of(run).items()},
            "with_the_first_weights": difference_from(model, run, options.steps, options.device),
            "seconds_until_the_kill": round(first_s, 1),
            "seconds_until_no_process_was_left": round(gone_s, 1),
            "processes_killed_one_by_one": num_left,
            "seconds_of_the_resumed_run": round(time.monotonic() - began, 1),
            "status": RunView(run).status.value,
        }
    if options.json:
        print(json.dumps({**found, "options": {key: str(value) for key, value in vars(options).items()}}))
        return
    print("  step  " + "".join(f"{name:>14}" for name in METRICS) + "  weights of step")
    for step, values in found.pop("steps").items():
        numbers = "".join(f"{values.get(name, float('nan')):14.4f}" for name in METRICS)
        print(f"  {step:4}  {numbers}  {', '.join(map(str, values['versions']))}")
    for name, value in found.items():
        print(f"{name}: {value}")


if __name__ == "__main__":
    main()
