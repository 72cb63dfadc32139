"""A real vLLM is sent new weights through its own transfer interface: between two processes on one GPU (`ipc`) where
there is one, otherwise over gloo. It follows them exactly, also in the middle of a turn and after a sleep.

`make test-vllm` runs this on a CPU. It needs no download: the model is random.
"""

import asyncio
import importlib.util
import os
import socket
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from rstar2.engine import Sampling

if importlib.util.find_spec("vllm") is None:
    pytest.skip("vllm is not installed here: `make test-vllm` runs this test", allow_module_level=True)

from rstar2.engine.vllm import VllmInProcessEngine, VllmOptions
from rstar2.engine.vllm.transfer import (
    Backend,
    Rendezvous,
    Sender,
    ServedWeights,
    TransferError,
    WeightStream,
    open_sender,
    with_head,
)

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

HAS_GPU = torch.cuda.is_available()
BACKEND: Backend = "ipc" if HAS_GPU else "gloo"
DTYPE = torch.bfloat16 if HAS_GPU else torch.float32
TOLERANCE = 0.1 if HAS_GPU else 1e-3
"""Mean difference of log-probabilities from those of `transformers` in float32. Other weights differ by whole units."""
PROMPT = list(range(7, 47))
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
}


def make_model(seed: int) -> Any:
    """Its output head is its embedding: what a vLLM on a CPU would keep the old one of."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        initializer_range=0.1,
        tie_word_embeddings=True,
        dtype=DTYPE,
    )
    return LlamaForCausalLM(config).to(DTYPE).eval()


def served(model: Any) -> ServedWeights:
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    device = torch.device("cuda" if HAS_GPU else "cpu")
    weights = ServedWeights(
        shapes, DTYPE, lambda: ((name, value.detach().to(device)) for name, value in model.named_parameters())
    )
    return weights if HAS_GPU else with_head(weights)


class OneEngine:
    """Satisfies `Link`, for an engine in this process whose event loop runs in another thread."""

    def __init__(self, engine: VllmInProcessEngine, loop: asyncio.AbstractEventLoop) -> None:
        self._engine = engine
        self._loop = loop
        self.version = 0
        self.fails_to_receive = False

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._ask(self._engine.open_transfer(init_info))

    def start_weight_update(self) -> None:
        self._ask(self._engine.begin_transfer())

    def update_weights(self, update_info: Any) -> None:
        if self.fails_to_receive:
            raise TransferError("the engine is gone")
        self._ask(self._engine.receive(update_info))

    def finish_weight_update(self, weight_version: str | None = None) -> None:  # noqa: ARG002
        self._ask(self._engine.end_transfer(self.version))

    def _ask(self, call: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(call, self._loop).result(120)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


async def send(link: OneEngine, sender: Sender, weights: ServedWeights, version: int) -> WeightStream:
    link.version = version
    running = WeightStream(weights)
    await asyncio.to_thread(sender.send, running)
    return running


def mean_error(model: Any, prompt: Sequence[int], ids: Sequence[int], log_probs: Sequence[float]) -> float:
    with torch.inference_mode():
        logits = model.float()(torch.tensor([[*prompt, *ids]])).logits[0, -len(ids) - 1 : -1]
    expected = logits.log_softmax(-1).gather(-1, torch.tensor(ids)[:, None])[:, 0]
    return float((expected - torch.tensor(log_probs)).abs().mean())


async def check_follows(engine: VllmInProcessEngine, model: Any, version: int) -> None:
    ids: list[int] = []
    log_probs: list[float] = []
    async for chunk in engine.generate("s", PROMPT, Sampling(seed=version), 48):
        assert chunk.policy_version == version
        ids += chunk.token_ids
        log_probs += chunk.log_probs
    assert len(ids) == 48
    assert mean_error(model, PROMPT, ids, log_probs) < TOLERANCE


async def eventually(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(240):
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_weights_are_sent_and_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (QUIET | {"TMPDIR": str(tmp_path)}).items():
        if name not in os.environ:
            monkeypatch.setenv(name, value)
    first, second, third = (make_model(seed) for seed in range(3))
    first.save_pretrained(tmp_path / "model")
    options = VllmOptions(
        max_context_tokens=1024,
        kv_cache_tokens=8192,
        max_running=4,
        gpu_memory_share=0.2,
        is_eager=True,
        can_sleep=HAS_GPU,
        transfer=BACKEND,
    )
    engine = VllmInProcessEngine.from_folder(tmp_path / "model", options)
    try:
        await check_follows(engine, first, 0)
        link = OneEngine(engine, asyncio.get_running_loop())
        meeting = Rendezvous("127.0.0.1", free_port(), num_workers=1)
        sender = await asyncio.to_thread(open_sender, BACKEND, 0, served(second), link, meeting)

        # In the middle of a turn: what is left of it has the new weights, and none of the old keys and values.
        ids: list[int] = []
        log_probs: list[float] = []
        versions: list[int] = []

        async def run() -> None:
            async for chunk in engine.generate("long", PROMPT, Sampling(seed=1), 900):
                ids.extend(chunk.token_ids)
                log_probs.extend(chunk.log_probs)
                versions.extend([chunk.policy_version] * len(chunk.token_ids))

        turn = asyncio.create_task(run())
        await eventually(lambda: len(ids) > 8)
        await send(link, sender, served(second), 5)
        await asyncio.wait_for(turn, 240)
        num_old = versions.count(0)
        assert 8 < num_old < 900 and versions == [0] * num_old + [5] * (900 - num_old)
        # A token or two may have been on their way when the version changed.
        new = num_old + 4
        assert mean_error(second, [*PROMPT, *ids[:new]], ids[new:], log_probs[new:]) < TOLERANCE
        assert mean_error(first, [*PROMPT, *ids[:new]], ids[new:], log_probs[new:]) > 1
        await check_follows(engine, second, 5)

        # Asleep it holds no weights: it has them again when they were sent.
        await engine.sleep()
        await engine.wake_for_weights()
        await send(link, sender, served(third), 6)
        await engine.wake()
        await check_follows(engine, third, 6)

        # An engine that fails in the middle leaves the sender free, which has gone through all that it had to.
        link.fails_to_receive = True
        with pytest.raises(TransferError, match="the engine is gone"):
            await asyncio.wait_for(send(link, sender, served(first), 7), 240)
        await asyncio.to_thread(sender.close)
    finally:
        await engine.close()
