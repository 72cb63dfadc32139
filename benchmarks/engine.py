"""Generated tokens a second: the embedded engine, `transformers` and vLLM on the same rollouts, in one run.

    python benchmarks/engine.py [--device cuda|cpu] [--model FOLDER] [--vllm-python PYTHON] [--json]

Every engine gets the same rollouts: groups that share a prompt, answers of mixed length, temperature 1; at most
`--num-concurrent` run at a time, and with more rollouts than that the next starts when one ends, as in training.
Without `--model` the weights are random, in SmolLM2-135M's shapes, which is as good for speed. Only tokens that a
rollout asked for count: `transformers.generate` runs each batch to its longest answer, and what it makes beyond a
rollout's own length is shown as `made`. Wall time, prefill included, the middle of `--num-repeats` runs after one to
warm up; the prefix cache starts empty each time. The repeats of the engines are interleaved, so that a noisy machine is
noisy for all of them.

Each engine is a separate process (engine_contenders.py) with a deadline: one that fails or hangs is reported as such.
vLLM is run by `--vllm-python`, since it brings its own versions of much; left out, by this Python if it has vLLM.
"""

import argparse
import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from engine_contenders import Outcome

LABELS = {
    "embedded": "embedded",
    "transformers": "transformers.generate",
    "continuous": "transformers continuous batching",
    "vllm": "vllm",
}


class ContenderError(Exception):
    """A contender that did not do what it was asked, and why."""


class Contender:
    """The other end of a process of engine_contenders.py."""

    def __init__(self, name: str, python: str, options: argparse.Namespace, log: Any) -> None:
        read_fd, write_fd = os.pipe()
        script = Path(__file__).with_name("engine_contenders.py")
        self._process = subprocess.Popen(
            [python, str(script), name, str(write_fd), json.dumps(vars(options))],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=(write_fd,),
            start_new_session=True,
            text=True,
        )
        os.close(write_fd)
        self._results = os.fdopen(read_fd)
        self._deadline_s = options.deadline_s
        self.facts: dict[str, Any] = self._answer()["facts"]

    def run(self) -> Outcome:
        assert self._process.stdin is not None
        self._process.stdin.write("run\n")
        self._process.stdin.flush()
        return Outcome(**self._answer())

    def close(self) -> None:
        """Kill it with its children, whatever it was doing."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._results.close()

    def _answer(self) -> dict[str, Any]:
        ready, _, _ = select.select([self._results], [], [], self._deadline_s)
        if not ready:
            self.close()
            raise ContenderError(f"no result in {self._deadline_s:g} s")
        line = self._results.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": f"ended with {self._process.wait()}"}
        if "error" in answer:
            self.close()
            raise ContenderError(answer["error"])
        return answer


def main() -> None:
    options = parse_options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the contenders end with it
    with ExitStack() as stack:
        options.folder, options.vocab_size = stack.enter_context(model_folder(options))
        log = stack.enter_context(Path(options.log or os.devnull).open("w"))
        contenders: dict[str, Contender] = {}
        failed: dict[str, str] = {}
        for name in options.engines:
            try:
                say(f"loading {LABELS[name]}")
                contenders[name] = Contender(name, python_for(name, options), options, log)
                stack.callback(contenders[name].close)
            except ContenderError as error:
                failed[name] = str(error)
        outcomes: dict[str, list[Outcome]] = {name: [] for name in options.engines}
        load_before = os.getloadavg()[0]
        for repeat in range(options.num_repeats + 1):
            for name, contender in contenders.items():
                is_warm_up = repeat == 0
                if name in failed or (is_warm_up and options.no_warm_up and name in ("transformers", "continuous")):
                    continue
                say(f"run {repeat} of {options.num_repeats}: {LABELS[name]}")
                try:
                    outcome = contender.run()
                except ContenderError as error:
                    failed[name] = str(error)
                    continue
                if not is_warm_up:
                    outcomes[name].append(outcome)
        facts = {key: value for contender in contenders.values() for key, value in contender.facts.items()}
        facts["load_average"] = [round(load_before, 1), round(os.getloadavg()[0], 1)]
    report(options, facts, outcomes, failed)


def say(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


def python_for(name: str, options: argparse.Namespace) -> str:
    if name != "vllm":
        return sys.executable
    if options.vllm_python is None and importlib.util.find_spec("vllm") is None:
        raise ContenderError("not installed: name a Python that has it with --vllm-python")
    return options.vllm_python or sys.executable


@contextmanager
def model_folder(options: argparse.Namespace) -> Iterator[tuple[str, int]]:
    """The folder of the weights, and the size of the vocabulary."""
    if options.model:
        yield options.model, json.loads((Path(options.model) / "config.json").read_text())["vocab_size"]
        return
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
    )
    torch.manual_seed(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
        yield folder, config.vocab_size


def report(
    options: argparse.Namespace,
    measured_facts: dict[str, Any],
    outcomes: dict[str, list[Outcome]],
    failed: dict[str, str],
) -> None:
    middle = {
        name: sorted(runs, key=lambda run: run.wall_s)[(len(runs) - 1) // 2] for name, runs in outcomes.items() if runs
    }
    rates = {name: outcome.tokens_per_s for name, outcome in middle.items()}
    facts = measured_facts | {
        "model": Path(options.model).name if options.model else "random weights, SmolLM2-135M's shapes",
        "num_rollouts": options.num_rollouts,
        "num_concurrent": options.num_concurrent,
        "group_size": options.group_size,
        "prompt_tokens": options.prompt_tokens,
        "answer_tokens": options.answer_tokens,
        "seed": options.seed,
        "date": datetime.now(UTC).date().isoformat(),
    }
    if options.json:
        runs = {name: [asdict(outcome) for outcome in values] for name, values in outcomes.items()}
        print(json.dumps({**facts, "tokens_per_s": rates, "runs": runs, "failed": failed}))
        return
    for name, value in facts.items():
        print(f"{name:18} {value}")
    print(f"\n{'engine':44}{'rollouts':>9}{'tokens/s':>11}{'made/s':>11}{'wall s':>9}{'ratio':>8}")
    for name in outcomes:
        if name not in middle:
            print(f"{LABELS[name]:44} {failed.get(name, 'not run')}")
            continue
        outcome = middle[name]
        print(
            f"{LABELS[name]:44}{outcome.num_rollouts:9}{outcome.tokens_per_s:11,.0f}"
            f"{outcome.num_made_tokens / outcome.wall_s:11,.0f}{outcome.wall_s:9.2f}"
            f"{rates.get('embedded', float('nan')) / rates[name]:8.1f}"
            f"{'  then ' + failed[name] if name in failed else ''}"
        )


def has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), help="cuda where there is one")
    parser.add_argument("--model", help="a Hugging Face model folder; random weights without it")
    parser.add_argument("--engines", nargs="+", choices=list(LABELS), default=list(LABELS))
    parser.add_argument("--vllm-python", metavar="PYTHON", help="the interpreter of an environment that has vLLM")
    parser.add_argument("--num-rollouts", type=int, help="4096 on a GPU, 32 on a CPU")
    parser.add_argument("--num-concurrent", type=int, help="at the same time, at most; 1024 on a GPU, 32 on a CPU")
    parser.add_argument("--group-size", type=int, default=16, help="rollouts that share a prompt; 16")
    parser.add_argument("--prompt-tokens", type=int, nargs=2, help="shortest and longest")
    parser.add_argument("--answer-tokens", type=int, nargs=2, help="shortest and longest")
    parser.add_argument("--transformers-batch", type=int, help="256 on a GPU, 32 on a CPU")
    parser.add_argument("--transformers-rollouts", type=int, help="only the first N; 256 on a GPU")
    parser.add_argument("--no-warm-up", action="store_true", help="of transformers, which is slow enough")
    parser.add_argument("--num-repeats", type=int, default=3)
    parser.add_argument("--num-threads", type=int, help="of a CPU")
    parser.add_argument("--deadline-s", type=float, default=600.0, help="of loading an engine, and of each of its runs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", metavar="FILE", help="what the engines print")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    options.device = options.device or ("cuda" if has_cuda() else "cpu")
    by_device: dict[str, Any] = (
        {
            "num_rollouts": 4096,
            "num_concurrent": 1024,
            "prompt_tokens": [100, 500],
            "answer_tokens": [64, 512],
            "transformers_batch": 256,
            "transformers_rollouts": 256,
        }
        if options.device == "cuda"
        else {
            "num_rollouts": 32,
            "num_concurrent": 32,
            "prompt_tokens": [100, 300],
            "answer_tokens": [16, 64],
            "transformers_batch": 32,
        }
    )
    for name, value in by_device.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    return options


if __name__ == "__main__":
    main()
