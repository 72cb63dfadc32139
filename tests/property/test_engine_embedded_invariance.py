"""On a CPU, what a session samples is its own, bit for bit: whatever runs beside it, whenever it arrives,
and wherever its keys and values come from."""

import asyncio
import random
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

from rstar2.engine import Sampling
from rstar2.engine.embedded import EmbeddedEngine, EmbeddedOptions
from rstar2.engine.embedded.blocks import BlockManager
from rstar2.engine.embedded.options import choose_limits
from rstar2.engine.embedded.packing import can_pack
from rstar2.engine.embedded.runner import Runner
from rstar2.engine.embedded.scheduler import BatchScheduler, EngineSequence
from rstar2.engine.embedded.weights import share_weights

pytestmark = pytest.mark.property

VOCAB_SIZE = 200
MAX_CONTEXT_TOKENS = 512
NUM_SESSIONS = 12
CONFIGS = {
    # Three queries a key-value head, and widths that are no multiple of a vector's.
    "llama": LlamaConfig(num_attention_heads=6, num_key_value_heads=2, hidden_size=96, intermediate_size=200),
    "qwen3": Qwen3Config(
        num_attention_heads=2, num_key_value_heads=1, hidden_size=48, head_dim=32, intermediate_size=72
    ),
}
MODELS = [*CONFIGS, "llama in bfloat16"]
ROOMY = EmbeddedOptions(kv_cache_tokens=8192, max_running=64, max_prefill_tokens=1000)
Trace = list[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class Session:
    """What it is told, turn by turn: each follows on what it has said until then."""

    prompts: tuple[tuple[int, ...], ...]
    max_tokens: int
    sampling: Sampling


@dataclass(slots=True)
class Progress:
    """Of a session that is served, or of a bystander that is cancelled when its steps are over."""

    session: Session
    num_steps_until_next: int
    sequence: EngineSequence | None = None
    ids: list[int] = field(default_factory=list)
    trace: Trace = field(default_factory=list)
    num_turns: int = 0
    num_steps_until_cancel: int | None = None

    @property
    def has_ended(self) -> bool:
        return self.sequence is None and self.num_turns == len(self.session.prompts)


class Server:
    """The engine without its thread: time is counted in steps, so that a schedule can be played again."""

    def __init__(self, model: Any, options: EmbeddedOptions) -> None:
        weights = share_weights(model)
        limits = choose_limits(options, weights.device, weights.shape.context_tokens, weights.kv_bytes_per_token)
        self.scheduler = BatchScheduler(
            BlockManager(limits.num_blocks, limits.block_size),
            max_running=limits.max_running,
            max_prefill_tokens=limits.max_prefill_tokens,
            steps_ahead=limits.steps_ahead,
        )
        self._runner = Runner(weights, limits)
        self._steps_ahead = limits.steps_ahead

    def serve(self, everyone: list[Progress], rng: random.Random, max_delay: int) -> None:
        while not all(progress.has_ended for progress in everyone):
            for progress in everyone:
                self._move_on(progress)
            traces = {progress.sequence: progress.trace for progress in everyone if progress.sequence is not None}
            self._step(traces)
            for progress in everyone:
                if progress.sequence is not None and progress.sequence.is_full:
                    self._end_turn(progress, rng.randint(0, max_delay))

    def _move_on(self, progress: Progress) -> None:
        if progress.has_ended:
            return
        if progress.sequence is not None:
            if progress.num_steps_until_cancel is not None:
                progress.num_steps_until_cancel -= 1
                if progress.num_steps_until_cancel < 0:
                    self._end_turn(progress, 0)
        elif progress.num_steps_until_next > 0:
            progress.num_steps_until_next -= 1
        else:
            session = progress.session
            ids = [*progress.ids, *session.prompts[progress.num_turns]]
            seed = session.sampling.seed or 0
            progress.sequence = EngineSequence(ids, len(ids) + session.max_tokens, session.sampling, seed)
            self.scheduler.add(progress.sequence)

    def _end_turn(self, progress: Progress, delay: int) -> None:
        assert progress.sequence is not None
        self.scheduler.remove(progress.sequence)
        progress.ids = progress.sequence.token_ids
        progress.sequence, progress.num_steps_until_next = None, delay
        progress.num_turns += 1

    def _step(self, traces: dict[EngineSequence, Trace]) -> None:
        plan = self.scheduler.plan()
        if plan.prefill:
            self._runner.prefill(plan.prefill)
        if plan.decode:
            sampled = self._runner.start_decode(plan.decode).wait()
            for sequence, ids, log_probs in zip(plan.decode, sampled.token_ids, sampled.log_probs, strict=True):
                sequence.append(ids, self._steps_ahead)
                traces[sequence] += zip(ids, log_probs, strict=True)


@cache
def tiny_model(name: str) -> Any:
    if name not in CONFIGS:
        if not can_pack(torch.bfloat16):
            pytest.skip("oneDNN has no packed products of bfloat16 here")
        return deepcopy(tiny_model(name.removesuffix(" in bfloat16"))).bfloat16()
    torch.manual_seed(0)
    config = CONFIGS[name]
    config.vocab_size, config.num_hidden_layers, config.max_position_embeddings = VOCAB_SIZE, 2, MAX_CONTEXT_TOKENS
    config.layer_types = ["full_attention"] * 2
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def random_ids(rng: random.Random, num_tokens: int) -> tuple[int, ...]:
    return tuple(rng.choices(range(VOCAB_SIZE), k=num_tokens))


def make_sessions() -> list[Session]:
    """Some share their first prompt, so that blocks of one are found by another; half have a long one in common, whose
    tiles a CPU reads once for all of them. Contexts reach into the fifth of these tiles."""
    rng = random.Random(1)
    first_prompts = [random_ids(rng, num_tokens) for num_tokens in (1, 40, 117, 230)]

    def session(number: int) -> Session:
        prompts = (first_prompts[min(number % 6, 3)], random_ids(rng, rng.randint(1, 40)))
        temperature, top_k, top_p = (1.0, 0.7)[number % 2], *((5, 0.8) if number % 5 == 3 else (0, 1.0))
        sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=number)
        return Session(prompts, rng.randint(5, 40), sampling)

    return [session(number) for number in range(NUM_SESSIONS)]


SESSIONS = make_sessions()


@cache
def traces_alone(name: str) -> list[Trace]:
    """Each on a server of its own: nothing beside it, nothing in the cache but its own, each prompt in one piece."""
    traces: list[Trace] = []
    for session in SESSIONS:
        progress = Progress(session, 0)
        Server(tiny_model(name), ROOMY).serve([progress], random.Random(0), 0)
        traces.append(progress.trace)
    assert [len(trace) for trace in traces] == [2 * session.max_tokens for session in SESSIONS]
    return traces


def make_bystander(rng: random.Random, max_delay: int) -> Progress:
    session = Session((random_ids(rng, rng.randint(1, 99)),), 100, Sampling())
    return Progress(session, rng.randint(0, max_delay), num_steps_until_cancel=rng.randint(1, 50))


def serve_together(
    name: str, options: EmbeddedOptions, *, num_bystanders: int, max_delay: int, seed: int
) -> tuple[list[Trace], BatchScheduler]:
    rng = random.Random(seed)
    players = [Progress(session, rng.randint(0, max_delay)) for session in SESSIONS]
    everyone = [*players, *(make_bystander(rng, max_delay) for _ in range(num_bystanders))]
    rng.shuffle(everyone)
    server = Server(tiny_model(name), options)
    server.serve(everyone, rng, max_delay)
    return [progress.trace for progress in players], server.scheduler


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Small products on many threads are slow beyond measure where other processes want the cores."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=6, deadline=None, derandomize=True)
@given(
    options=st.builds(
        EmbeddedOptions,
        kv_cache_tokens=st.sampled_from((368, 800, 8192)),
        max_running=st.integers(1, 20),
        max_prefill_tokens=st.integers(5, 300),
        steps_ahead=st.integers(1, 4),
    ),
    num_bystanders=st.integers(0, 6),
    max_delay=st.sampled_from((0, 10, 100)),
    seed=st.integers(0, 2**32),
)
def test_no_bit_of_a_session_depends_on_how_it_was_served(
    name: str, options: EmbeddedOptions, num_bystanders: int, max_delay: int, seed: int
) -> None:
    traces, _ = serve_together(name, options, num_bystanders=num_bystanders, max_delay=max_delay, seed=seed)
    for trace, alone in zip(traces, traces_alone(name), strict=True):
        assert trace == alone


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", MODELS)
def test_nor_on_what_was_lost_and_computed_again(name: str) -> None:
    options = EmbeddedOptions(kv_cache_tokens=368, max_running=20, max_prefill_tokens=300, steps_ahead=4)
    traces, scheduler = serve_together(name, options, num_bystanders=9, max_delay=0, seed=0)
    assert scheduler.num_preemptions > 0
    assert scheduler.num_recomputed_tokens > 0
    for trace, alone in zip(traces, traces_alone(name), strict=True):
        assert trace == alone


@pytest.mark.parametrize("name", MODELS)
async def test_nor_with_all_threads(name: str) -> None:
    engine = EmbeddedEngine.on_model(tiny_model(name), ROOMY)

    async def first_turn(number: int, session: Session) -> Trace:
        stream = engine.generate(str(number), session.prompts[0], session.sampling, session.max_tokens)
        return [pair async for chunk in stream for pair in zip(chunk.token_ids, chunk.log_probs, strict=True)]

    sessions = SESSIONS[:10]
    alone = [await first_turn(number, session) for number, session in enumerate(sessions)]
    engine.weights_changed(1)  # the cache is empty again
    together = await asyncio.gather(*(first_turn(number, session) for number, session in enumerate(sessions)))
    await engine.close()
    assert together == alone
