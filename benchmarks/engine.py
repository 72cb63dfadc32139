"""Generated tokens a second: the embedded engine, `transformers`, and vLLM where it is installed, in one run.

    python benchmarks/engine.py [--device cuda|cpu] [--model FOLDER] [--num-rollouts N] [--json]

Every engine gets the same rollouts: groups that share a prompt, answers of mixed length, temperature 1; at most
`--num-concurrent` run at a time, and with more rollouts than that the next starts when one ends, as in training.
Without `--model` the weights are random, in SmolLM2-135M's shapes, which is as good for speed. Only tokens that a
rollout asked for count: `transformers.generate` runs each batch to its longest answer, and what it makes beyond a
rollout's own length is shown as `made`. Wall time, prefill included, the middle of `--num-repeats` runs after one to
warm up; the prefix cache starts empty each time. The repeats of the engines are interleaved, so that a noisy machine is
noisy for all of them.
"""

import argparse
import asyncio
import importlib.util
import json
import platform
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from rstar2.engine import Sampling
from rstar2.engine.embedded import EmbeddedEngine, EmbeddedOptions

SMOLLM2_135M = LlamaConfig(
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


@dataclass(frozen=True, slots=True)
class Rollout:
    prompt_ids: list[int]
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Outcome:
    num_rollouts: int
    num_asked_tokens: int
    num_made_tokens: int
    wall_s: float

    @property
    def tokens_per_s(self) -> float:
        return self.num_asked_tokens / self.wall_s


def make_rollouts(options: argparse.Namespace, vocab_size: int) -> list[Rollout]:
    rng = random.Random(options.seed)
    rollouts: list[Rollout] = []
    while len(rollouts) < options.num_rollouts:
        num_prompt_tokens = rng.randint(*options.prompt_tokens)
        prompt_ids = [rng.randrange(3, vocab_size) for _ in range(num_prompt_tokens)]
        rollouts += [Rollout(prompt_ids, rng.randint(*options.answer_tokens)) for _ in range(options.group_size)]
    return rollouts[: options.num_rollouts]


def load_model(options: argparse.Namespace, dtype: torch.dtype) -> Any:
    if options.model:
        return AutoModelForCausalLM.from_pretrained(options.model, dtype=dtype).to(options.device).eval()
    torch.manual_seed(options.seed)
    with torch.device(options.device):
        return AutoModelForCausalLM.from_config(SMOLLM2_135M, dtype=dtype).eval()


def embedded(model: Any, rollouts: Sequence[Rollout], num_concurrent: int) -> tuple[str, Callable[[], Outcome]]:

    async def one(engine: EmbeddedEngine, session: str, rollout: Rollout) -> int:
        num_tokens = 0
        async for chunk in engine.generate(session, rollout.prompt_ids, Sampling(), rollout.num_tokens):
            assert len(chunk.token_ids) == len(chunk.log_probs)
            num_tokens += len(chunk.token_ids)
        await engine.release(session)
        return num_tokens

    async def run() -> Outcome:
        engine.weights_changed(engine.policy_version + 1)
        started = time.perf_counter()
        counts = await asyncio.gather(*(one(engine, str(n), rollout) for n, rollout in enumerate(rollouts)))
        wall_s = time.perf_counter() - started
        assert counts == [rollout.num_tokens for rollout in rollouts]
        return Outcome(len(rollouts), sum(counts), sum(counts), wall_s)

    engine = EmbeddedEngine.on_model(model, EmbeddedOptions(max_running=num_concurrent))
    engine.warm_up(num_concurrent)
    return "embedded", lambda: asyncio.run(run())


def transformers_generate(
    model: Any, rollouts: Sequence[Rollout], batch_size: int, limit: int
) -> tuple[str, Callable[[], Outcome]]:
    """Left-padded batches, each to its longest answer; the first `limit` rollouts."""

    def run() -> Outcome:
        chosen = rollouts[:limit]
        num_made = 0
        synchronize(model.device)
        started = time.perf_counter()
        for start in range(0, len(chosen), batch_size):
            batch = chosen[start : start + batch_size]
            width = max(len(rollout.prompt_ids) for rollout in batch)
            num_tokens = max(rollout.num_tokens for rollout in batch)
            ids = torch.tensor([[0] * (width - len(r.prompt_ids)) + r.prompt_ids for r in batch], device=model.device)
            mask = torch.tensor(
                [[0] * (width - len(r.prompt_ids)) + [1] * len(r.prompt_ids) for r in batch], device=model.device
            )
            made = model.generate(
                ids,
                attention_mask=mask,
                do_sample=True,
                temperature=1.0,
                top_k=0,
                max_new_tokens=num_tokens,
                eos_token_id=None,
                pad_token_id=0,
            )
            assert made.shape[1] == width + num_tokens
            num_made += len(batch) * num_tokens
        synchronize(model.device)
        return Outcome(len(chosen), sum(r.num_tokens for r in chosen), num_made, time.perf_counter() - started)

    return f"transformers.generate, batches of {batch_size}", run


def transformers_continuous_batching(
    model: Any, rollouts: Sequence[Rollout], limit: int
) -> tuple[str, Callable[[], Outcome]]:
    """One length for all: its batch call takes no length of each request's own."""
    from transformers import GenerationConfig
    from transformers.generation.configuration_utils import ContinuousBatchingConfig

    def run() -> Outcome:
        chosen = rollouts[:limit]
        num_tokens = round(statistics.mean(rollout.num_tokens for rollout in chosen))
        generation = GenerationConfig(do_sample=True, max_new_tokens=num_tokens, eos_token_id=-1, pad_token_id=0)
        batching = ContinuousBatchingConfig(block_size=32, num_blocks=2048, max_batch_tokens=512, return_logprobs=True)
        started = time.perf_counter()
        outputs = model.generate_batch(
            [rollout.prompt_ids for rollout in chosen],
            generation_config=generation,
            continuous_batching_config=batching,
            progress_bar=False,
        )
        num_made = sum(len(output.generated_tokens) for output in outputs.values())
        return Outcome(len(chosen), num_made, num_made, time.perf_counter() - started)

    return "transformers continuous batching", run


def vllm(options: argparse.Namespace, rollouts: Sequence[Rollout]) -> tuple[str, Callable[[], Outcome]]:
    from vllm import LLM, SamplingParams

    engine = LLM(options.model, skip_tokenizer_init=True, max_num_seqs=options.num_concurrent, seed=options.seed)

    def run() -> Outcome:
        engine.reset_prefix_cache()
        started = time.perf_counter()
        outputs = engine.generate(
            [{"prompt_token_ids": rollout.prompt_ids} for rollout in rollouts],
            [SamplingParams(max_tokens=r.num_tokens, ignore_eos=True, logprobs=0, detokenize=False) for r in rollouts],
            use_tqdm=False,
        )
        num_made = sum(len(output.outputs[0].token_ids) for output in outputs)
        return Outcome(len(rollouts), num_made, num_made, time.perf_counter() - started)

    return "vllm", run


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def mismatch(model: Any, rollouts: Sequence[Rollout]) -> dict[str, float]:
    """How far the engine's log-probabilities are from the model's own forward pass over the same tokens."""
    chosen = rollouts[:8]

    async def sample() -> list[tuple[list[int], list[float]]]:
        engine = EmbeddedEngine.on_model(model, EmbeddedOptions(max_running=8, kv_cache_tokens=16384))

        async def one(session: str, rollout: Rollout) -> tuple[list[int], list[float]]:
            ids: list[int] = []
            log_probs: list[float] = []
            async for chunk in engine.generate(session, rollout.prompt_ids, Sampling(), min(rollout.num_tokens, 64)):
                ids += chunk.token_ids
                log_probs += chunk.log_probs
            return ids, log_probs

        try:
            return await asyncio.gather(*(one(str(n), rollout) for n, rollout in enumerate(chosen)))
        finally:
            await engine.close()

    differences: list[float] = []
    for rollout, (ids, log_probs) in zip(chosen, asyncio.run(sample()), strict=True):
        with torch.inference_mode():
            logits = model(torch.tensor([rollout.prompt_ids + ids], device=model.device)).logits[0, -len(ids) - 1 : -1]
        reference = logits.float().log_softmax(-1).gather(-1, torch.tensor(ids, device=model.device)[:, None])[:, 0]
        differences += (reference.cpu() - torch.tensor(log_probs)).abs().tolist()
    return {"mean": statistics.mean(differences), "max": max(differences)}


def measure(name: str, run: Callable[[], Outcome], note: dict[str, str]) -> Outcome | None:
    try:
        return run()
    except Exception as error:
        note[name] = f"{type(error).__name__}: {error}".splitlines()[0][:160]
        return None


def main() -> None:
    options = parse_options()
    is_cuda = options.device == "cuda"
    torch.set_num_threads(options.num_threads or torch.get_num_threads())
    model = load_model(options, torch.bfloat16 if is_cuda else torch.float32)
    rollouts = make_rollouts(options, model.config.vocab_size)
    limit = options.transformers_rollouts or len(rollouts)
    contenders: dict[str, Callable[[], Outcome]] = {}
    if "embedded" in options.engines:
        contenders.update([embedded(model, rollouts, options.num_concurrent)])
    if "transformers" in options.engines:
        contenders.update([transformers_generate(model, rollouts, options.transformers_batch, limit)])
    if "continuous" in options.engines:
        contenders.update([transformers_continuous_batching(model, rollouts, limit)])
    if "vllm" in options.engines and options.model and importlib.util.find_spec("vllm"):
        contenders.update([vllm(options, rollouts)])
    notes: dict[str, str] = {}
    outcomes: dict[str, list[Outcome]] = {name: [] for name in contenders}
    for repeat in range(options.num_repeats + 1):
        for name, run in contenders.items():
            is_warm_up = repeat == 0
            if name in notes or (is_warm_up and name.startswith("transformers") and options.no_warm_up):
                continue
            outcome = measure(name, run, notes)
            if outcome is not None and not is_warm_up:
                outcomes[name].append(outcome)
    report(options, rollouts, outcomes, notes, mismatch(model, rollouts))


def report(
    options: argparse.Namespace,
    rollouts: Sequence[Rollout],
    outcomes: dict[str, list[Outcome]],
    notes: dict[str, str],
    log_prob_mismatch: dict[str, float],
) -> None:
    middle = {
        name: sorted(runs, key=lambda run: run.wall_s)[(len(runs) - 1) // 2] for name, runs in outcomes.items() if runs
    }
    rates = {name: outcome.tokens_per_s for name, outcome in middle.items()}
    facts = {
        "machine": torch.cuda.get_device_name() if options.device == "cuda" else platform.processor() or "cpu",
        "num_threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "model": Path(options.model).name if options.model else "random weights, SmolLM2-135M's shapes",
        "num_rollouts": len(rollouts),
        "num_concurrent": options.num_concurrent,
        "group_size": options.group_size,
        "prompt_tokens": options.prompt_tokens,
        "answer_tokens": options.answer_tokens,
        "log_prob_mismatch": log_prob_mismatch,
        "seed": options.seed,
        "date": datetime.now(UTC).date().isoformat(),
    }
    if options.json:
        runs = {name: [asdict(outcome) for outcome in values] for name, values in outcomes.items()}
        print(json.dumps({**facts, "tokens_per_s": rates, "runs": runs, "failed": notes}))
        return
    for name, value in facts.items():
        print(f"{name:18} {value}")
    print(f"\n{'engine':44}{'rollouts':>9}{'tokens/s':>11}{'made/s':>11}{'wall s':>9}{'ratio':>8}")
    for name in outcomes:
        if name not in middle:
            print(f"{name:44} {notes.get(name, 'not run')}")
            continue
        outcome = middle[name]
        print(
            f"{name:44}{outcome.num_rollouts:9}{outcome.tokens_per_s:11,.0f}"
            f"{outcome.num_made_tokens / outcome.wall_s:11,.0f}{outcome.wall_s:9.2f}"
            f"{rates.get('embedded', float('nan')) / rates[name]:8.1f}"
        )


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    has_cuda = torch.cuda.is_available()
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if has_cuda else "cpu")
    parser.add_argument("--model", help="a Hugging Face model folder; random weights without it")
    parser.add_argument("--engines", nargs="+", default=["embedded", "transformers", "continuous", "vllm"])
    parser.add_argument("--num-rollouts", type=int, help="4096 on a GPU, 32 on a CPU")
    parser.add_argument("--num-concurrent", type=int, help="at the same time, at most; 1024 on a GPU, 32 on a CPU")
    parser.add_argument("--group-size", type=int, help="rollouts that share a prompt; 16")
    parser.add_argument("--prompt-tokens", type=int, nargs=2, help="shortest and longest")
    parser.add_argument("--answer-tokens", type=int, nargs=2, help="shortest and longest")
    parser.add_argument("--transformers-batch", type=int, help="256 on a GPU, 32 on a CPU")
    parser.add_argument("--transformers-rollouts", type=int, help="only the first so many; 256 on a GPU")
    parser.add_argument("--no-warm-up", action="store_true", help="of transformers, which is slow enough")
    parser.add_argument("--num-repeats", type=int, default=3)
    parser.add_argument("--num-threads", type=int, help="of a CPU")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    by_device: dict[str, Any] = (
        {
            "num_rollouts": 4096,
            "num_concurrent": 1024,
            "group_size": 16,
            "prompt_tokens": [100, 500],
            "answer_tokens": [64, 512],
            "transformers_batch": 256,
            "transformers_rollouts": 256,
        }
        if options.device == "cuda"
        else {
            "num_rollouts": 32,
            "num_concurrent": 32,
            "group_size": 16,
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
