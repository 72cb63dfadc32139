"""The engine as its users meet it: streams, stops, cancels, pauses, new weights, and what it says when it cannot."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, Qwen2Config

from rstar2.engine import Chunk, Sampling
from rstar2.engine.embedded import EmbeddedEngine, EmbeddedOptions
from rstar2.engine.embedded import engine as module
from rstar2.errors import InfrastructureError, UserError
from rstar2.records import StopReason

pytestmark = pytest.mark.unit

OPTIONS = EmbeddedOptions(kv_cache_tokens=512, max_running=8, max_prefill_tokens=64)
PROMPT = list(range(40))


def tiny_config(**changes: Any) -> LlamaConfig:
    sizes = {"vocab_size": 100, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128}
    return LlamaConfig(**sizes | heads | changes)


def tiny_model() -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(tiny_config(), dtype=torch.float32)


@pytest.fixture
async def engine() -> AsyncIterator[EmbeddedEngine]:
    engine = EmbeddedEngine.on_model(tiny_model(), OPTIONS)
    yield engine
    await engine.close()


async def chunks_of(
    engine: EmbeddedEngine, ids: list[int], sampling: Sampling, max_tokens: int, session: str = "s"
) -> list[Chunk]:
    return [chunk async for chunk in engine.generate(session, ids, sampling, max_tokens)]


def ids_of(chunks: list[Chunk]) -> list[int]:
    return [token_id for chunk in chunks for token_id in chunk.token_ids]


async def test_only_the_last_chunk_has_a_stop_reason(engine: EmbeddedEngine) -> None:
    chunks = await chunks_of(engine, PROMPT, Sampling(seed=1), 20)
    assert len(ids_of(chunks)) == 20
    assert [chunk.stop_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].stop_reason is StopReason.TOKEN_LIMIT


async def test_a_stop_token_ends_the_turn_and_is_its_last_token(engine: EmbeddedEngine) -> None:
    free = ids_of(await chunks_of(engine, PROMPT, Sampling(seed=1), 20))
    stop = free[7]
    chunks = await chunks_of(engine, PROMPT, Sampling(seed=1, stop_token_ids=(99, stop)), 20)
    assert ids_of(chunks) == free[: free.index(stop) + 1]
    assert chunks[-1].stop_reason is StopReason.END_OF_TURN


async def test_a_turn_ends_at_the_context_even_if_asked_for_more(engine: EmbeddedEngine) -> None:
    chunks = await chunks_of(engine, PROMPT, Sampling(), 1000)
    assert len(ids_of(chunks)) == 128 - len(PROMPT)
    assert chunks[-1].stop_reason is StopReason.TOKEN_LIMIT


async def test_seeds_make_a_turn_repeatable_whatever_runs_beside_it(engine: EmbeddedEngine) -> None:
    alone = ids_of(await chunks_of(engine, PROMPT, Sampling(seed=5), 30))
    beside = await asyncio.gather(
        *(chunks_of(engine, PROMPT[: 5 * n + 1], Sampling(seed=5 if n == 7 else n), 30, str(n)) for n in range(8)),
        chunks_of(engine, PROMPT, Sampling(seed=5), 30, "same"),
    )
    assert ids_of(beside[-1]) == alone
    unseeded = [ids_of(await chunks_of(engine, PROMPT, Sampling(), 30)) for _ in range(2)]
    assert unseeded[0] != unseeded[1]


async def test_a_session_that_comes_back_prefills_only_what_is_new(engine: EmbeddedEngine) -> None:
    made = ids_of(await chunks_of(engine, PROMPT, Sampling(), 30))
    before = engine.load().num_prefill_tokens
    await chunks_of(engine, [*PROMPT, *made, 1, 2, 3], Sampling(), 5)
    assert engine.load().num_prefill_tokens - before < 16


async def test_cancel_ends_a_running_turn_with_its_tokens_so_far(engine: EmbeddedEngine) -> None:
    chunks: list[Chunk] = []
    async for chunk in engine.generate("s", PROMPT, Sampling(), 80):
        chunks.append(chunk)
        if len(chunks) == 3:
            await engine.cancel("s")
    assert chunks[-1].stop_reason is StopReason.CANCELLED
    assert len(ids_of(chunks)) < 80
    assert engine.load().num_running == 0
    assert engine.load().num_free_blocks == engine.load().num_blocks


async def test_leaving_the_iterator_cancels(engine: EmbeddedEngine) -> None:
    stream = engine.generate("s", PROMPT, Sampling(), 80)
    await anext(stream)
    await stream.aclose()
    await engine.cancel("nobody")  # messages are acted on in order
    assert engine.load().num_running == engine.load().num_waiting == 0


async def test_load_counts_running_and_waiting(engine: EmbeddedEngine) -> None:
    streams = [engine.generate(str(n), PROMPT, Sampling(), 80) for n in range(12)]
    firsts = [asyncio.ensure_future(anext(stream)) for stream in streams]
    await firsts[0]
    load = engine.load()
    assert load.num_running <= 8
    assert load.num_running + load.num_waiting <= 12
    assert load.num_free_blocks < load.num_blocks == 512 // load.block_size
    for n in range(12):
        await engine.cancel(str(n))
    await asyncio.gather(*firsts)
    assert engine.load().num_generated_tokens > 0


async def test_weights_are_the_models_own_and_updates_are_seen(engine: EmbeddedEngine) -> None:
    greedy = Sampling(temperature=0)
    before = await chunks_of(engine, PROMPT, greedy, 10)
    with engine.paused():
        with torch.no_grad():
            for parameter in engine.model.parameters():
                parameter.copy_(torch.randn_like(parameter))
        engine.weights_changed(7)
    assert engine.load().num_cached_blocks == 0
    after = await chunks_of(engine, PROMPT, greedy, 10)
    assert ids_of(after) != ids_of(before)
    assert {chunk.policy_version for chunk in before} == {0}
    assert {chunk.policy_version for chunk in after} == {7}
    wanted = engine.model(torch.tensor([PROMPT])).logits[0, -1].argmax()
    assert ids_of(after)[0] == wanted


async def test_a_turn_goes_on_over_an_update_and_says_which_policy_made_what(engine: EmbeddedEngine) -> None:
    chunks: list[Chunk] = []
    async for chunk in engine.generate("s", PROMPT, Sampling(), 60):
        chunks.append(chunk)
        if len(chunks) == 3:
            engine.weights_changed(1)
    versions = [chunk.policy_version for chunk in chunks]
    assert versions == sorted(versions)
    assert set(versions) == {0, 1}
    assert len(ids_of(chunks)) == 60


async def test_nothing_is_sampled_while_paused(engine: EmbeddedEngine) -> None:
    turn = engine.generate("s", PROMPT, Sampling(), 60)
    first = await anext(turn)
    is_inside, may_leave = threading.Event(), threading.Event()

    def hold() -> None:
        with engine.paused():
            is_inside.set()
            may_leave.wait(60)

    holder = asyncio.create_task(asyncio.to_thread(hold))
    assert await asyncio.to_thread(is_inside.wait, 60)
    count = engine.load().num_generated_tokens
    await asyncio.sleep(0.1)
    assert engine.load().num_generated_tokens == count
    may_leave.set()
    await holder
    assert len(ids_of([first, *[chunk async for chunk in turn]])) == 60


class LongStep:
    """The engine's next decode step, which ends when it may, or after a while, late."""

    def __init__(self, engine: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.has_begun, self._may_end = asyncio.Event(), threading.Event()
        self.is_late = False
        self._start, self._loop = engine._runner.start_decode, asyncio.get_running_loop()
        monkeypatch.setattr(engine._runner, "start_decode", self._run)

    def end(self) -> None:
        self._may_end.set()

    def _run(self, sequences: Any) -> Any:
        self._loop.call_soon_threadsafe(self.has_begun.set)
        self.is_late |= not self._may_end.wait(20)
        return self._start(sequences)


async def test_the_event_loop_goes_on_while_learning_waits_for_a_step(
    engine: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = LongStep(engine, monkeypatch)
    turn = asyncio.create_task(chunks_of(engine, PROMPT, Sampling(), 10))
    await step.has_begun.wait()
    asyncio.get_running_loop().call_soon(step.end)  # which a loop that is blocked never comes to
    async with asyncio.timeout(240), engine.paused_for_weight_sync(3):
        assert not step.is_late
    assert {chunk.policy_version for chunk in await turn} == {0, 3}


async def test_learning_that_is_cancelled_or_late_lets_the_engine_go_on(
    engine: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def learn() -> None:
        async with engine.paused_for_weight_sync(3):
            raise AssertionError("the step has not ended")

    step = LongStep(engine, monkeypatch)
    turn = asyncio.create_task(chunks_of(engine, PROMPT, Sampling(), 10))
    await step.has_begun.wait()
    cancelled = asyncio.create_task(learn())
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.wait([cancelled])
    assert cancelled.cancelled()
    monkeypatch.setattr(module, "PAUSE_DEADLINE_S", 0.05)
    with pytest.raises(InfrastructureError, match=r"did not pause: its steps in flight took longer than 0.05 s"):
        await learn()
    step.end()
    assert {chunk.policy_version for chunk in await turn} == {0}
    assert not step.is_late


def test_building_twice_on_one_model_keeps_sharing_and_saving_works(tmp_path: Path) -> None:
    model = tiny_model()
    names = [name for name, _ in model.named_parameters()]
    values = [parameter.clone() for parameter in model.parameters()]
    engines = [EmbeddedEngine.on_model(model, OPTIONS) for _ in range(2)]
    for engine in engines:
        engine.weights_changed(1)  # asserts that the parameters are still the engine's
    for name, parameter, value in zip(names, model.parameters(), values, strict=True):
        assert torch.equal(parameter, value), name
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    for name, parameter, value in zip(names, again.parameters(), values, strict=True):
        assert torch.equal(parameter, value), name
    for engine in engines:
        asyncio.run(engine.close())


def test_gradients_reach_parameters_that_are_views() -> None:
    model = tiny_model().train()
    engine = EmbeddedEngine.on_model(model, OPTIONS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    before = [parameter.clone() for parameter in model.parameters()]
    with engine.paused():
        model(torch.tensor([PROMPT]), labels=torch.tensor([PROMPT])).loss.backward()
        optimizer.step()
        engine.weights_changed(1)
    assert all(not torch.equal(new, old) for new, old in zip(model.parameters(), before, strict=True))
    asyncio.run(engine.close())


def test_a_replaced_parameter_is_noticed() -> None:
    model = tiny_model()
    engine = EmbeddedEngine.on_model(model, OPTIONS)
    model.model.norm.weight.data = torch.ones(32)
    with pytest.raises(AssertionError, match="in place"):
        engine.weights_changed(1)
    asyncio.run(engine.close())


async def test_what_can_never_work_is_said_at_once(engine: EmbeddedEngine) -> None:
    mistakes: list[tuple[list[int], Sampling, int, str]] = [
        ([], Sampling(), 1, "no tokens"),
        (PROMPT, Sampling(), 0, "max_tokens"),
        (PROMPT * 4, Sampling(), 1, "the context holds 128"),
        ([100], Sampling(), 1, "another tokenizer"),
        (PROMPT, Sampling(stop_token_ids=tuple(range(9))), 1, "stop_token_ids"),
        (PROMPT, Sampling(temperature=-1.0), 1, "temperature"),
        (PROMPT, Sampling(top_p=0.0), 1, "top_p"),
    ]
    for ids, sampling, max_tokens, message in mistakes:
        with pytest.raises(UserError, match=message):
            await chunks_of(engine, ids, sampling, max_tokens)


async def test_a_cache_too_small_for_one_sequence_is_said() -> None:
    engine = EmbeddedEngine.on_model(tiny_model(), EmbeddedOptions(kv_cache_tokens=48))
    assert len(ids_of(await chunks_of(engine, PROMPT, Sampling(), 9))) == 9
    with pytest.raises(UserError, match="kv_cache_tokens"):
        await chunks_of(engine, PROMPT, Sampling(), 10)
    await engine.close()
    with pytest.raises(UserError, match="at least one block"):
        EmbeddedEngine.on_model(tiny_model(), EmbeddedOptions(kv_cache_tokens=10))
    with pytest.raises(UserError, match="max_context_tokens"):
        EmbeddedEngine.on_model(tiny_model(), EmbeddedOptions(max_context_tokens=129))
    with pytest.raises(UserError, match="steps_ahead"):
        EmbeddedOptions(steps_ahead=0)


async def test_a_lost_engine_ends_every_turn_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = EmbeddedEngine.on_model(tiny_model(), OPTIONS)

    def fail(*_: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(engine._runner, "prefill", fail)
    with pytest.raises(InfrastructureError, match="out of memory"):
        await chunks_of(engine, PROMPT, Sampling(), 5)
    with pytest.raises(InfrastructureError, match="out of memory"):
        await chunks_of(engine, PROMPT, Sampling(), 5)
    await engine.cancel("s")
    await engine.close()


async def test_closing_ends_running_turns(engine: EmbeddedEngine) -> None:
    stream = engine.generate("s", PROMPT, Sampling(), 80)
    await anext(stream)
    await engine.close()
    with pytest.raises(InfrastructureError, match="closed"):
        async for _ in stream:
            pass
    with pytest.raises(InfrastructureError, match="closed"):
        await chunks_of(engine, PROMPT, Sampling(), 5)


def test_unsupported_models_are_refused_by_name() -> None:
    for config, message in [
        (GPT2Config(n_embd=8, n_layer=1, n_head=1), "not gpt2"),
        (tiny_config(hidden_act="gelu"), "not gelu"),
        (Qwen2Config(num_hidden_layers=1, hidden_size=16, num_attention_heads=1, num_key_value_heads=1,
                     intermediate_size=16, vocab_size=50, use_sliding_window=True, max_window_layers=0), "sliding"),
        (tiny_config(rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}), "dynamic"),
    ]:  # fmt: skip
        with pytest.raises(UserError, match=message):
            EmbeddedEngine.on_model(AutoModelForCausalLM.from_config(config), OPTIONS)


def test_adapters_must_be_merged_first() -> None:
    model = tiny_model()
    model.model.layers[0].mlp.up_proj = torch.nn.Sequential(model.model.layers[0].mlp.up_proj)
    with pytest.raises(UserError, match="merge adapters"):
        EmbeddedEngine.on_model(model, OPTIONS)


def test_folders_without_a_model_or_without_weights(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no config\.json"):
        EmbeddedEngine.from_folder(tmp_path, device="cpu")
    tiny_config().save_pretrained(tmp_path)
    with pytest.raises(UserError, match="no weights"):
        EmbeddedEngine.from_folder(tmp_path, device="cpu")


def test_a_folder_is_loaded(tmp_path: Path) -> None:
    tiny_model().save_pretrained(tmp_path)
    engine = EmbeddedEngine.from_folder(tmp_path, OPTIONS, device="cpu")
    assert engine.model.dtype == torch.float32
    assert len(ids_of(asyncio.run(chunks_of(engine, PROMPT, Sampling(), 5)))) == 5
    asyncio.run(engine.close())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_cuda_asked_for_where_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no CUDA GPU"):
        EmbeddedEngine.from_folder(tmp_path, device="cuda")
