"""The vLLM engine against a server that speaks as vLLM does, well or badly. The real one: test_engine_vllm_real.py."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import torch
import typer
from fake_openai_server import FakeServer, serving
from fake_vllm_server import METRICS, FakeVllm
from safetensors.torch import load_file, save_file

from rstar2.agent import HfTokenizer
from rstar2.cli.output import ExitCode, errors_as_sentences
from rstar2.cli.solve import solve_command
from rstar2.engine import Chunk, EngineLoad, Sampling
from rstar2.engine.vllm import VllmServerEngine
from rstar2.engine.vllm.checkpoint import HEAD, untie
from rstar2.engine.vllm.metrics import load_of
from rstar2.errors import InfrastructureError, UserError
from rstar2.models import get_model
from rstar2.records import StopReason, Trace
from rstar2.records.codec import decode

pytestmark = pytest.mark.integration

DEADLINE_S = 240.0
EMBEDDING = "model.embed_tokens.weight"
TIED = {EMBEDDING: torch.ones(4, 2), "model.norm.weight": torch.ones(2)}


@asynccontextmanager
async def connected(server: FakeVllm) -> AsyncIterator[VllmServerEngine]:
    with serving(server):
        engine = await VllmServerEngine.connect(server.url, "fake-model", server.api_key)
        try:
            yield engine
        finally:
            await engine.close()


async def turn(engine: VllmServerEngine, sampling: Sampling | None = None, max_tokens: int = 8) -> list[Chunk]:
    return [chunk async for chunk in engine.generate("s", [3, 4, 5], sampling or Sampling(), max_tokens)]


async def eventually(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def test_the_metrics_page_is_the_load() -> None:
    page = METRICS.format(running=3.0)
    assert load_of(page) == EngineLoad(
        block_size=32,
        num_blocks=40,
        num_free_blocks=30,
        num_cached_blocks=0,
        num_running=3,
        num_waiting=5,
        num_preemptions=7,
        num_recomputed_tokens=0,
        num_prefill_tokens=317,
        num_generated_tokens=2000,
    )
    both = load_of(page + page.replace('engine="0"', 'engine="1"').replace("} 0.25", "} 1"))
    assert (both.num_blocks, both.num_free_blocks, both.num_running) == (80, 30, 6)
    with pytest.raises(UserError, match="not those of a vLLM"):
        load_of("process_cpu_seconds_total 3.0\n")


async def test_ids_go_in_and_come_out_as_they_are() -> None:
    server = FakeVllm(token_replies=[[7, 8, 2]])
    async with connected(server) as engine:
        chunks = await turn(engine, Sampling(temperature=0.6, seed=3, stop_token_ids=(2,)))
    assert (server.requests[0]["prompt"], server.requests[0]["seed"]) == ([3, 4, 5], 3)
    assert [chunk.token_ids for chunk in chunks] == [(7,), (8,), (2,)]
    assert [chunk.log_probs for chunk in chunks] == [(-0.5,)] * 3
    assert [chunk.stop_reason for chunk in chunks] == [None, None, StopReason.END_OF_TURN]


async def test_the_request(subtests: pytest.Subtests) -> None:
    server = FakeVllm(token_replies=[[7]] * 3, reports_sampled=False)
    async with connected(server) as engine:
        await turn(engine, Sampling(stop_token_ids=(2,)), 9999)
        drawn_differently = await turn(engine, Sampling(temperature=0.6))
        greedy = await turn(engine, Sampling(temperature=0.0))
    with subtests.test("nothing is left to the model's generation_config.json, and only our stop tokens end a turn"):
        stated = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "ignore_eos": True}
        assert server.requests[0].items() >= {**stated, "stop_token_ids": [2], "return_token_ids": True}.items()
    with subtests.test("what the context has no room for is not asked for"):
        assert server.requests[0]["max_tokens"] == 2048 - 3
    with subtests.test("log-probabilities of another distribution are no log-probabilities"):
        assert server.requests[1]["logprobs"] is None
        assert server.requests[2]["logprobs"] == 0
        assert (drawn_differently[0].log_probs, greedy[0].log_probs) == ((), (-0.5,))


async def test_cancel_ends_a_turn_for_which_nothing_comes() -> None:
    server = FakeVllm(token_replies=[[7, 8, 9]], hangs=True)
    async with connected(server) as engine:
        running = asyncio.create_task(turn(engine))
        await eventually(lambda: engine.load().num_running == 1)
        await engine.cancel("another")
        await engine.cancel("s")
        chunks = await asyncio.wait_for(running, DEADLINE_S)
        assert [(chunk.token_ids, chunk.stop_reason) for chunk in chunks] == [((7,), None), ((), StopReason.CANCELLED)]
        await eventually(lambda: engine.load().num_running == 0)
        assert server.num_left_requests == 1


async def test_leaving_a_turn_early_ends_the_request() -> None:
    server = FakeVllm(token_replies=[[7, 8, 9]], hangs=True)
    async with connected(server) as engine:
        stream = engine.generate("s", [3], Sampling(), 8)
        await anext(stream)
        await stream.aclose()
        await eventually(lambda: server.num_left_requests == 1)


@pytest.mark.parametrize(
    ("server", "error", "sentence"),
    [
        (FakeVllm(token_replies=[[7] * 9], mishap="dies"), InfrastructureError, "was lost in the middle of an answer"),
        (FakeVllm(token_replies=[[7] * 9], mishap="stops"), InfrastructureError, "ended an answer in the middle"),
        (FakeVllm(token_replies=[[7] * 9], mishap="error event"), InfrastructureError, "failed: out of memory"),
        (FakeVllm(mishap="too long"), UserError, "refuses the request"),
    ],
    ids=lambda value: value.mishap if isinstance(value, FakeVllm) else None,
)
async def test_a_server_that_fails(server: FakeVllm, error: type[Exception], sentence: str) -> None:
    async with connected(server) as engine:
        with pytest.raises(error, match=sentence):
            await turn(engine)


async def test_what_can_never_work_is_said_before_it_is_asked() -> None:
    async with connected(FakeVllm()) as engine:
        with pytest.raises(UserError, match="the prompt has 2048 tokens, and the context holds 2048"):
            await anext(engine.generate("s", [3] * 2048, Sampling(), 8))
        with pytest.raises(UserError, match="vLLM does not report entropies"):
            await turn(engine, Sampling(entropies=True))


async def test_a_server_that_is_gone_has_no_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rstar2.engine.vllm.server.STALE_S", 0.0)
    with serving(FakeVllm()) as server:
        engine = await VllmServerEngine.connect(server.url, "fake-model")
    with pytest.raises(InfrastructureError, match="vLLM has shown no metrics"):
        await eventually(lambda: engine.load().num_blocks == 0)
    await engine.close()


async def test_an_update_stops_the_server_loads_forgets_and_goes_on(tmp_path: Path) -> None:
    server = FakeVllm(token_replies=[[7], [7]])
    async with connected(server) as engine:
        before = await turn(engine)
        await engine.update_weights(TIED.items(), 4)
        after = await turn(engine)
        assert server.control_calls == [
            "/pause?mode=keep",
            "reload_weights",
            "/reset_prefix_cache?reset_running_requests=true",
            "/resume",
        ]
        assert server.reloaded_names == {*TIED, HEAD}
        save_file(TIED, tmp_path / "model.safetensors")
        (tmp_path / "config.json").write_text('{"tie_word_embeddings": true}')
        await engine.update_weights(tmp_path, 5)
        assert server.reloaded_names == {*TIED, HEAD}
    assert (before[0].policy_version, after[0].policy_version, engine.policy_version) == (0, 4, 5)


async def test_an_update_that_fails_leaves_nothing_that_answers() -> None:
    server = FakeVllm(token_replies=[[7, 8], [7]], hangs=True, fails_to_reload=True)
    async with connected(server) as engine:
        running = asyncio.create_task(turn(engine))
        await eventually(lambda: engine.load().num_running == 1)
        with pytest.raises(InfrastructureError, match="the update of vLLM's weights failed"):
            await engine.update_weights(TIED.items(), 1)
        assert "/resume" not in server.control_calls
        for asked in (running, turn(engine)):
            with pytest.raises(InfrastructureError, match="the update of vLLM's weights failed"):
                await asyncio.wait_for(asked, DEADLINE_S)
        server.fails_to_reload = server.hangs = False
        await engine.update_weights(TIED.items(), 2)
        assert (await turn(engine))[0].policy_version == 2


@pytest.mark.parametrize(
    ("server", "sentence"),
    [
        (FakeVllm(is_in_dev_mode=False), "start it with VLLM_SERVER_DEV_MODE=1"),
        (FakeVllm(is_tied=True), "cannot update a model whose output head is tied"),
    ],
)
async def test_a_server_whose_weights_cannot_be_updated(server: FakeVllm, sentence: str) -> None:
    async with connected(server) as engine:
        with pytest.raises(UserError, match=sentence):
            await engine.update_weights(TIED.items(), 1)
    assert server.control_calls == []


async def test_a_tied_model_on_a_gpu_is_updated() -> None:
    server = FakeVllm(is_tied=True, device="cuda")
    async with connected(server) as engine:
        await engine.update_weights(TIED.items(), 1)
    assert server.control_calls[-1] == "/resume"


async def test_weights_that_are_none_are_refused_before_anything_stops(tmp_path: Path) -> None:
    server = FakeVllm()
    async with connected(server) as engine:
        with pytest.raises(UserError, match=r"no \.safetensors file"):
            await engine.update_weights(tmp_path, 1)
        with pytest.raises(UserError, match="neither lm_head"):
            await engine.update_weights([("model.norm.weight", torch.ones(2))], 1)
    assert server.control_calls == []


def test_an_untied_folder_is_the_same_model(tmp_path: Path) -> None:
    tied, untied = tmp_path / "tied", tmp_path / "untied"
    tied.mkdir()
    save_file(TIED, tied / "model.safetensors")
    (tied / "config.json").write_text('{"tie_word_embeddings": true, "vocab_size": 4}')
    (tied / "tokenizer.json").write_text("{}")
    untie(tied, untied)
    files = json.loads((untied / "model.safetensors.index.json").read_text())["weight_map"]
    tensors = {name: load_file(untied / file)[name] for name, file in files.items()}
    assert tensors.keys() == {*TIED, HEAD}
    assert torch.equal(tensors[HEAD], TIED[EMBEDDING])
    assert json.loads((untied / "config.json").read_text()) == {"tie_word_embeddings": False, "vocab_size": 4}
    assert (untied / "tokenizer.json").read_text() == "{}"


def shell(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `rstar2 solve`."""
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(solve_command)
    with pytest.raises(SystemExit) as end, errors_as_sentences():
        app(["What is 6 * 7?", "--engine", "vllm", *arguments])
    printed = capsys.readouterr()
    return int(end.value.code or 0), printed.out, printed.err


def test_solve_through_vllm(capsys: pytest.CaptureFixture[str]) -> None:
    folder = get_model("smollm2-135m").folder
    call = {"name": "execute_python_code_with_standard_io", "arguments": {"code": "print(6 * 7)", "input": ""}}
    said = [f"So.</reason><tool_call>{json.dumps(call)}</tool_call>", r"<answer>\boxed{42}</answer>"]
    replies = [HfTokenizer.load(folder).encode(f"{text}<|im_end|>") for text in said]
    # vLLM's name for a model is the folder that it was started with, unless it was told another.
    with serving(FakeVllm(token_replies=list(replies), models=[str(folder)])) as server:
        code, out, err = shell(capsys, "--base-url", server.url.removesuffix("/v1"), "--json")
    trace = decode(Trace, out.strip().encode())
    assert (code, trace.answer, trace.turns[0].results[0].text) == (ExitCode.OK, "42", "42"), err
    assert [list(turn.token_ids) for turn in trace.turns] == replies
    assert tuple(server.requests[1]["prompt"]) == trace.token_ids[: -len(replies[1])]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--base-url", "http://127.0.0.1:1"], "failed: cannot connect to http://127.0.0.1:1"),
        (["--base-url", "127.0.0.1:1"], "error: --base-url: '127.0.0.1:1' is not a URL"),
        (["--script", "x"], "error: --script is for --engine scripted, not vllm"),
        (["--base-url", "VLLM_URL", "--model", "m"], "error: --tokenizer is needed, the folder of the server's model"),
        (
            ["--base-url", "VLLM_URL", "--model", "m", "--tokenizer", "FOLDER"],
            "error: the vLLM at VLLM_URL has no model 'm'",
        ),
        (
            ["--base-url", "OPENAI_URL", "--tokenizer", "FOLDER"],
            "error: there is no /metrics at OPENAI_URL, so it is no vLLM",
        ),
    ],
)
def test_mistakes_are_sentences(capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str) -> None:
    with serving(FakeVllm()) as vllm, serving(FakeServer()) as openai:
        places = {"VLLM_URL": vllm.url.removesuffix("/v1"), "OPENAI_URL": openai.url.removesuffix("/v1")}
        places["FOLDER"] = str(get_model("smollm2-135m").folder)
        code, _, err = shell(capsys, *[places.get(argument, argument) for argument in arguments])
    for name, place in places.items():
        sentence = sentence.replace(name, place)
    assert code == (ExitCode.INFRASTRUCTURE if sentence.startswith("failed") else ExitCode.USAGE)
    assert err.startswith(sentence)
    assert err.count("\n") == 1
