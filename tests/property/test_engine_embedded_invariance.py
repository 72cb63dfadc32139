"""On a CPU in float32, what a session samples is its own, bit for bit: whatever runs beside it, whenever it arrives,
and wherever its keys and values come from."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

from rstar2.engine import Sampling
from rstar2.engine.embedded import EmbeddedEngine, EmbeddedOptions

pytestmark = pytest.mark.property

VOCAB_SIZE = 200
MAX_CONTEXT_TOKENS = 512
NUM_SESSIONS = 13
CONFIGS = {
    # Three queries a key-value head, and widths that are no multiple of a vector's.
    "llama": LlamaConfig(num_attention_heads=6, num_key_value_heads=2, hidden_size=96, intermediate_size=200),
    "qwen3": Qwen3Config(
        num_attention_heads=2, num_key_value_heads=1, hidden_size=48, head_dim=32, intermediate_size=72
    ),
}


@dataclass(frozen=True, slots=True)
class Session:
    """Prompts of consecutive turns: each follows on what the session has said until then."""

    name: str
    prompts: tuple[tuple[int, ...], ...]
    max_tokens: int
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class Schedule:
    """How the sessions meet."""

    options: EmbeddedOptions
    max_delay_s: float
    num_bystanders: int = 0
    """Sessions that are cancelled somewhere along the way."""


Trace = list[tuple[int, float]]
TIGHT = EmbeddedOptions(kv_cache_tokens=512, max_running=5, max_prefill_tokens=23)
TOGETHER = EmbeddedOptions(kv_cache_tokens=16384, max_running=64, max_prefill_tokens=1000)
SCHEDULES = {
    "all at once": Schedule(TOGETHER, max_delay_s=0),
    "one after another": Schedule(TOGETHER, max_delay_s=0.3),
    "steps ahead": Schedule(EmbeddedOptions(kv_cache_tokens=4096, max_running=9, steps_ahead=3), 0.05, 4),
    "tight": Schedule(TIGHT, max_delay_s=0.1, num_bystanders=6),
}


def tiny_model(name: str) -> Any:
    torch.manual_seed(0)
    config = CONFIGS[name]
    config.vocab_size, config.num_hidden_layers, config.max_position_embeddings = VOCAB_SIZE, 2, MAX_CONTEXT_TOKENS
    config.layer_types = ["full_attention"] * 2
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def make_sessions(rng: random.Random) -> list[Session]:
    """Groups share their first prompt, so that blocks of one are found by another. Contexts end on both sides of the
    tiles in which a CPU sums over them."""
    first_prompts = [tuple(rng.choices(range(VOCAB_SIZE), k=length)) for length in (1, 40, 117, 230)]

    def session(number: int) -> Session:
        later = tuple(tuple(rng.choices(range(VOCAB_SIZE), k=rng.randint(1, 40))) for _ in range(2))
        cut = {"top_k": 5, "top_p": 0.8} if number % 5 == 3 else {}
        sampling = Sampling(temperature=(1.0, 0.7)[number % 2], seed=number, **cut)
        return Session(f"session {number}", (first_prompts[number % 4], *later), rng.randint(5, 40), sampling)

    return [session(number) for number in range(NUM_SESSIONS)]


async def play(engine: EmbeddedEngine, session: Session, delays_s: Sequence[float]) -> Trace:
    ids: list[int] = []
    trace: Trace = []
    for prompt, delay_s in zip(session.prompts, delays_s, strict=True):
        await asyncio.sleep(delay_s)
        ids += prompt
        turn: Trace = []
        async for chunk in engine.generate(session.name, ids, session.sampling, session.max_tokens):
            turn += zip(chunk.token_ids, chunk.log_probs, strict=True)
        ids += [token_id for token_id, _ in turn]
        trace += turn
    await engine.release(session.name)
    return trace


async def stand_by(engine: EmbeddedEngine, name: str, ids: list[int], num_chunks: int) -> None:
    stream = engine.generate(name, ids, Sampling(), 100)
    for _ in range(num_chunks):
        await anext(stream)
    await engine.cancel(name)
    async for _ in stream:
        pass


async def play_all(model: Any, sessions: list[Session], schedule: Schedule, rng: random.Random) -> list[Trace]:
    engine = EmbeddedEngine.on_model(model, schedule.options)
    bystanders = [
        asyncio.create_task(
            stand_by(engine, f"bystander {n}", rng.choices(range(VOCAB_SIZE), k=rng.randint(1, 99)), rng.randint(1, 30))
        )
        for n in range(schedule.num_bystanders)
    ]
    delays = [[rng.uniform(0, schedule.max_delay_s) for _ in session.prompts] for session in sessions]
    shuffled = rng.sample(range(len(sessions)), k=len(sessions))
    played = await asyncio.gather(*(play(engine, sessions[n], delays[n]) for n in shuffled))
    await asyncio.gather(*bystanders)
    if schedule.options is TIGHT:
        assert engine.load().num_preemptions > 0
    await engine.close()
    traces: list[Trace] = [[] for _ in sessions]
    for n, trace in zip(shuffled, played, strict=True):
        traces[n] = trace
    return traces


async def play_alone(model: Any, session: Session) -> Trace:
    """In an engine of its own: nothing beside it, nothing in the cache, each prompt in one piece."""
    engine = EmbeddedEngine.on_model(model, TOGETHER)
    trace = await play(engine, session, [0.0] * len(session.prompts))
    await engine.close()
    return trace


@pytest.mark.parametrize("name", CONFIGS)
async def test_no_bit_of_a_session_depends_on_how_it_was_served(name: str) -> None:
    rng = random.Random(1)
    model, sessions = tiny_model(name), make_sessions(rng)
    alone = [await play_alone(model, session) for session in sessions]
    assert len({len(trace) for trace in alone}) > 3
    for label, schedule in SCHEDULES.items():
        traces = await play_all(model, sessions, schedule, rng)
        for session, wanted, trace in zip(sessions, alone, traces, strict=True):
            assert trace == wanted, f"{session.name}, {label}"
