"""One contender of benchmarks/engine.py, in a separate process: it can be killed, and it may need another Python.

    python engine_contenders.py NAME RESULT_FD OPTIONS_AS_JSON

It loads its engine, writes one JSON object, and then one more for each line that it reads: `run` answers every rollout
once and tells how long that took. Needs rstar2 for the embedded engine alone.
"""

import asyncio
import json
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import Any


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


def make_rollouts(options: Any) -> list[Rollout]:
    rng = random.Random(options.seed)
    rollouts: list[Rollout] = []
    while len(rollouts) < options.num_rollouts:
        num_prompt_tokens = rng.randint(*options.prompt_tokens)
        prompt_ids = [rng.randrange(3, options.vocab_size) for _ in range(num_prompt_tokens)]
        rollouts += [Rollout(prompt_ids, rng.randint(*options.answer_tokens)) for _ in range(options.group_size)]
    return rollouts[: options.num_rollouts]


def load_model(options: Any) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    if options.num_threads:
        torch.set_num_threads(options.num_threads)
    dtype = torch.bfloat16 if options.device == "cuda" else torch.float32
    return AutoModelForCausalLM.from_pretrained(options.folder, dtype=dtype).to(options.device).eval()


def embedded(options: Any, rollouts: Sequence[Rollout]) -> tuple[Callable[[], Outcome], dict[str, Any]]:
    import torch

    from rstar2.engine import Sampling
    from rstar2.engine.embedded import EmbeddedEngine, EmbeddedOptions

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

    model = load_model(options)
    facts = {
        "torch": torch.__version__,
        "num_threads": torch.get_num_threads(),
        "machine": torch.cuda.get_device_name() if options.device == "cuda" else platform.processor() or "cpu",
        "log_prob_mismatch": mismatch(model, rollouts),
    }
    engine_options = EmbeddedOptions(max_running=options.num_concurrent, records_at_start=True)
    engine = EmbeddedEngine.on_model(model, engine_options)
    return lambda: asyncio.run(run()), facts


def mismatch(model: Any, rollouts: Sequence[Rollout]) -> dict[str, float]:
    """How far the engine's log-probabilities are from the model's own forward pass over the same tokens."""
    import torch

    from rstar2.engine import Sampling
    from rstar2.engine.embedded import EmbeddedEngine, EmbeddedOptions

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


def transformers_generate(options: Any, rollouts: Sequence[Rollout]) -> tuple[Callable[[], Outcome], dict[str, Any]]:
    """Left-padded batches, each to its longest answer; the first `transformers_rollouts` rollouts."""
    import torch
    import transformers

    model = load_model(options)
    chosen = rollouts[: options.transformers_rollouts]

    def run() -> Outcome:
        num_made = 0
        started = time.perf_counter()
        for start in range(0, len(chosen), options.transformers_batch):
            batch = chosen[start : start + options.transformers_batch]
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
            assert made.cpu().shape[1] == width + num_tokens
            num_made += len(batch) * num_tokens
        wall_s = time.perf_counter() - started
        return Outcome(len(chosen), sum(rollout.num_tokens for rollout in chosen), num_made, wall_s)

    return run, {"transformers": transformers.__version__}


def continuous_batching(options: Any, rollouts: Sequence[Rollout]) -> tuple[Callable[[], Outcome], dict[str, Any]]:
    """`transformers`' own continuous batching, each request with its own length; the first `transformers_rollouts`."""
    import torch
    import transformers
    from transformers import GenerationConfig
    from transformers.generation.configuration_utils import ContinuousBatchingConfig

    model = load_model(options)
    chosen = rollouts[: options.transformers_rollouts]
    generation = GenerationConfig(do_sample=True, temperature=1.0, top_k=0, eos_token_id=-1, pad_token_id=0)
    batching: dict[str, Any] = {"max_requests_per_batch": options.num_concurrent, "return_logprobs": True}
    if options.device == "cpu":
        batching |= {"block_size": 32, "num_blocks": 1024, "max_batch_tokens": 512, "use_cuda_graph": False}

    @torch.no_grad()
    def run() -> Outcome:
        # A new manager for each run: the blocks of the last one hold its prefixes.
        manager = model.init_continuous_batching(
            generation_config=generation, continuous_batching_config=ContinuousBatchingConfig(**batching)
        )
        if options.device == "cuda":
            manager.warmup()
        manager.start()
        try:
            started = time.perf_counter()
            for number, rollout in enumerate(chosen):
                manager.add_request(rollout.prompt_ids, str(number), rollout.num_tokens, eos_token_id=-1)
            counts: dict[str, int] = {}
            while len(counts) < len(chosen):
                result = manager.get_result(timeout=1)
                if result is None:
                    assert manager.is_running(), "its thread ended before the requests did"
                    continue
                assert result.error is None, result.error
                if result.is_finished():
                    counts[result.request_id] = len(result.generated_tokens)
            wall_s = time.perf_counter() - started
        finally:
            manager.stop(block=True, timeout=30)
            manager.destroy()
        assert counts == {str(number): rollout.num_tokens for number, rollout in enumerate(chosen)}
        return Outcome(len(chosen), sum(counts.values()), sum(counts.values()), wall_s)

    return run, {"transformers": transformers.__version__}


def vllm(options: Any, rollouts: Sequence[Rollout]) -> tuple[Callable[[], Outcome], dict[str, Any]]:
    """`LLM.generate` in this process, as fast as vLLM is known to go here: on a GPU with CUDA graphs for as many as run
    at a time, where vLLM's own limit is 512; on a CPU with one pinned thread a core and no compilation, which makes it
    no faster and takes minutes."""
    is_cpu = options.device == "cpu"
    if is_cpu:
        cores = sorted(os.sched_getaffinity(0))[: options.num_threads or None]
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", ",".join(map(str, cores)))
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    from vllm import LLM, SamplingParams, __version__

    on_gpu = {"gpu_memory_utilization": 0.3, "max_cudagraph_capture_size": options.num_concurrent}
    engine = LLM(
        options.folder,
        skip_tokenizer_init=True,
        max_num_seqs=options.num_concurrent,
        seed=options.seed,
        dtype="float32" if is_cpu else "bfloat16",
        enforce_eager=is_cpu,
        **({"distributed_executor_backend": "uni"} if is_cpu else on_gpu),
    )
    parameters = [
        SamplingParams(temperature=1.0, max_tokens=r.num_tokens, ignore_eos=True, logprobs=0, detokenize=False)
        for r in rollouts
    ]

    def run() -> Outcome:
        engine.reset_prefix_cache()
        started = time.perf_counter()
        outputs = engine.generate(
            [{"prompt_token_ids": rollout.prompt_ids} for rollout in rollouts], parameters, use_tqdm=False
        )
        wall_s = time.perf_counter() - started
        counts = [len(output.outputs[0].token_ids) for output in outputs]
        assert counts == [rollout.num_tokens for rollout in rollouts]
        return Outcome(len(rollouts), sum(counts), sum(counts), wall_s)

    return run, {"vllm": __version__}


CONTENDERS = {
    "embedded": embedded,
    "transformers": transformers_generate,
    "continuous": continuous_batching,
    "vllm": vllm,
}


def main() -> None:
    name, result_fd, options_json = sys.argv[1:]
    options = SimpleNamespace(**json.loads(options_json))
    with os.fdopen(int(result_fd), "w", buffering=1) as results:
        try:
            run, facts = CONTENDERS[name](options, make_rollouts(options))
            print(json.dumps({"facts": facts}), file=results)
            for _ in sys.stdin:
                print(json.dumps(asdict(run())), file=results)
        except Exception as error:
            said = str(error).splitlines() or [""]
            print(json.dumps({"error": f"{type(error).__name__}: {said[0]}"[:200]}), file=results)
            raise


if __name__ == "__main__":
    main()
