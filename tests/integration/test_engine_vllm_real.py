"""The real vLLM with SmolLM2, on a CPU: exact tokens, a live load, and new weights with which it solves a problem.

`make test-vllm` runs these in an environment of their own: vLLM brings its own versions of much.
"""

import asyncio
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from typer import Typer
from typer.testing import CliRunner

from rstar2.agent import Agent, ChatFormat, HfTokenizer, PythonTool, ToolSchema, Transcript, load_chat
from rstar2.cli.solve import solve_command
from rstar2.engine import Engine, Sampling
from rstar2.engine.scripted import ScriptedEngine, replies
from rstar2.grading import extract_answer
from rstar2.models import resolve
from rstar2.records import Problem, StopReason, Trace, Turn
from rstar2.records.codec import decode
from rstar2.sandbox import LocalExecutor, Sandbox

if importlib.util.find_spec("vllm") is None:
    pytest.skip("vllm is not installed here: `make test-vllm` runs these tests", allow_module_level=True)

from rstar2.engine.vllm import VllmInProcessEngine, VllmOptions, VllmServerEngine
from rstar2.engine.vllm.checkpoint import untie

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

START_S = 400.0
DEADLINE_S = 240.0
TOLERANCE = 1e-3
AGENT = "smollm2-135m-agent"
QUESTION = "What is 1234 * 5678?"
CALL = {"name": PythonTool.schema.name, "arguments": {"code": "print(1234 * 5678)", "input": ""}}
SAID = (
    f"I multiply.</reason>\n<tool_call>\n{json.dumps(CALL)}\n</tool_call>",
    "It is there.</reason>\n<answer>\\boxed{7006652}</answer>",
)
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    # Pinned threads are faster on an idle machine, and collapse as soon as anything else wants a core.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
}


@pytest.fixture
def model(smollm2: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def prompt(smollm2: Path) -> list[int]:
    return HfTokenizer.load(smollm2).encode(
        "<|im_start|>user\nName three rivers of Europe.<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.fixture(scope="module")
def server(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a vLLM server, whose name for its model is `smol`."""
    scratch = tmp_path_factory.mktemp("vllm")
    untie(smollm2, scratch / "model")
    with serving(scratch / "model", scratch, {"logprobs-mode": "processed_logprobs"}) as url:
        yield url


@pytest.fixture(scope="module")
def agent_server(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The agent that comes with the package, served as anybody serves a model with tools."""
    assert smollm2.is_dir()
    options = {"enable-auto-tool-choice": None, "tool-call-parser": "hermes"}
    with serving(resolve(AGENT), tmp_path_factory.mktemp("vllm-agent"), options) as url:
        yield url


@contextmanager
def serving(model: Path, scratch: Path, options: dict[str, str | None]) -> Iterator[str]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    arguments = {
        "model": model,
        "served-model-name": "smol",
        "host": "127.0.0.1",
        "port": port,
        "dtype": "float32",
        "max-model-len": 2048,
        "block-size": 32,
    } | options
    # `vllm serve` asks for the metadata of a package named vllm, which vllm-cpu is not.
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--enforce-eager"]
    command += [f"--{name}" if value is None else f"--{name}={value}" for name, value in arguments.items()]
    # A short path for its sockets, whose names may have 107 characters.
    environment = os.environ | QUIET | {"VLLM_SERVER_DEV_MODE": "1", "TMPDIR": str(scratch)}
    with (scratch / "log.txt").open("w") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    url = f"http://127.0.0.1:{port}"
    try:
        _await_health(url, process, scratch / "log.txt")
        yield url
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(60)
            _await_end_of_group(process.pid)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def _await_health(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()[-4000:]
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except OSError:
            time.sleep(0.5)
    raise AssertionError(f"not up after {START_S:g} s: {log.read_text()[-4000:]}")


def _await_end_of_group(group: int) -> None:
    """Its workers are gone, too."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    raise AssertionError("processes of vLLM outlived it")


@dataclass
class Made:
    """What came of a turn so far."""

    token_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    stop_reason: StopReason | None = None


async def turn(
    engine: Engine, ids: Sequence[int], sampling: Sampling, max_tokens: int = 16, made: Made | None = None
) -> Made:
    made = made or Made()
    async for chunk in engine.generate("s", ids, sampling, max_tokens):
        made.token_ids += chunk.token_ids
        made.log_probs += chunk.log_probs
        made.versions += [chunk.policy_version] * len(chunk.token_ids)
        made.stop_reason = chunk.stop_reason
    return made


def reference(model: Any, prompt: Sequence[int], ids: Sequence[int], temperature: float = 1.0) -> list[float]:
    with torch.inference_mode():
        logits = model(torch.tensor([[*prompt, *ids]])).logits[0, -len(ids) - 1 : -1] / temperature
    return [float(value) for value in logits.log_softmax(-1).gather(-1, torch.tensor(ids)[:, None])[:, 0]]


def greedy(model: Any, prompt: Sequence[int], num_tokens: int = 16) -> list[int]:
    ids = torch.tensor([prompt])
    # Without a mask of ours, it would take the end-of-turn token in the prompt, which is also the padding, for padding.
    made = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=num_tokens, eos_token_id=None
    )
    return [int(token) for token in made[0, len(prompt) :]]


async def eventually(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def check_tokens(engine: Engine, model: Any, prompt: list[int]) -> None:
    """Ids are those of `transformers`, log-probabilities those of the distribution that was drawn from."""
    best = await turn(engine, prompt, Sampling(temperature=0.0))
    assert (best.token_ids, best.stop_reason) == (greedy(model, prompt), StopReason.TOKEN_LIMIT)
    assert best.log_probs == pytest.approx(reference(model, prompt, best.token_ids), abs=TOLERANCE)
    drawn = await turn(engine, prompt, Sampling(temperature=0.7, seed=5))
    assert drawn.log_probs == pytest.approx(reference(model, prompt, drawn.token_ids, 0.7), abs=TOLERANCE)
    stop_id = best.token_ids[5]
    stopped = await turn(engine, prompt, Sampling(temperature=0.0, stop_token_ids=(stop_id,)))
    assert stopped.stop_reason is StopReason.END_OF_TURN
    assert stopped.token_ids == best.token_ids[: best.token_ids.index(stop_id) + 1]


async def check_load_and_cancel(engine: Engine, prompt: list[int]) -> None:
    await eventually(
        lambda: engine.load().num_running == 0 and engine.load().num_free_blocks == engine.load().num_blocks
    )
    idle = engine.load()
    assert idle.block_size == 32
    running = asyncio.create_task(turn(engine, prompt, Sampling(), 1900))
    await eventually(lambda: engine.load().num_running == 1 and engine.load().num_free_blocks <= idle.num_blocks - 2)
    await engine.cancel("s")
    made = await asyncio.wait_for(running, DEADLINE_S)
    assert made.stop_reason is StopReason.CANCELLED
    assert 0 < len(made.token_ids) == len(made.log_probs) < 1900
    await eventually(lambda: engine.load().num_running == 0 and engine.load().num_free_blocks == idle.num_blocks)
    assert engine.load().num_generated_tokens > idle.num_generated_tokens


async def scripted_trace(folder: Path) -> Trace:
    """What a model that solves the problem writes, through the agent loop and the sandbox."""
    chat = ChatFormat.of(HfTokenizer.load(folder))
    executor = LocalExecutor()
    try:
        engine = ScriptedEngine(replies(SAID), chat.tokenizer, chat.end_of_turn_id)
        return await Agent(engine, chat).rollout(Problem("p", QUESTION, ""), [PythonTool(executor)])
    finally:
        await executor.close()


def learn(model: Any, trace: Trace, num_steps: int = 60) -> None:
    """By heart, until each token of the model's own is the most likely one by far. Every part changes, the embedding
    and with it the output head, too; but only the upper layers learn, which is quick."""
    ids = torch.tensor([trace.token_ids])
    own = torch.tensor(trace.loss_mask).nonzero()[:, 0]
    model.requires_grad_(False)
    upper = model.model.layers[-10:].requires_grad_(True)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.01)
    optimizer = torch.optim.Adam(upper.parameters(), lr=3e-4)
    for _ in range(num_steps):
        logits = model(ids, logits_to_keep=own - 1).logits[0]
        losses = torch.nn.functional.cross_entropy(logits, ids[0, own], reduction="none")
        if losses.detach().max() < 0.1:
            return
        optimizer.zero_grad()
        losses.mean().backward()
        optimizer.step()
    raise AssertionError(f"not learned in {num_steps} steps")


def solve(*arguments: str) -> Trace:
    app = Typer()
    app.command()(solve_command)
    result = CliRunner().invoke(app, [QUESTION, "--json", "--temperature", "0", "--engine", "vllm", *arguments])
    assert result.exit_code in (0, 1), (result.stderr, result.exception)
    return decode(Trace, result.stdout.strip().encode())


async def test_a_server(server: str, model: Any, prompt: list[int]) -> None:
    engine = await VllmServerEngine.connect(server, "smol")
    try:
        await check_tokens(engine, model, prompt)
        await check_load_and_cancel(engine, prompt)
    finally:
        await engine.close()


async def test_a_server_is_given_weights_and_solves(server: str, smollm2: Path, model: Any, prompt: list[int]) -> None:
    arguments = ("--base-url", server, "--tokenizer", str(smollm2))
    before = await asyncio.to_thread(solve, *arguments, "--max-tokens", "60")
    assert (before.answer, before.turns[0].calls) == (None, ())
    learn(model, await scripted_trace(smollm2))
    engine = await VllmServerEngine.connect(server, "smol")
    try:
        made = Made()
        running = asyncio.create_task(turn(engine, prompt, Sampling(temperature=0.0), 1900, made))
        await eventually(lambda: len(made.token_ids) > 4)
        await engine.update_weights(model.named_parameters(), 3)
        await eventually(lambda: made.versions.count(3) > 4)
        await engine.cancel("s")
        await asyncio.wait_for(running, DEADLINE_S)
        num_old = made.versions.count(0)
        assert made.versions == [0] * num_old + [3] * (len(made.token_ids) - num_old)
        # In the middle of the turn: with the new weights, and with none of the old keys and values.
        expected = reference(model, prompt, made.token_ids)
        assert made.log_probs[num_old:] == pytest.approx(expected[num_old:], abs=TOLERANCE)
        assert made.log_probs[:num_old] != pytest.approx(expected[:num_old], abs=TOLERANCE)
        await check_tokens(engine, model, prompt)

        after = await asyncio.to_thread(solve, *arguments)
        assert [turn.text for turn in after.turns] == [f"{text}<|im_end|>" for text in SAID]
        assert (after.answer, after.turns[0].results[0].text) == ("7006652", "7006652")
        assert list(after.turns[1].log_probs) == pytest.approx(
            reference(model, after.token_ids[: -len(after.turns[1].token_ids)], after.turns[1].token_ids), abs=TOLERANCE
        )

        await engine.update_weights(smollm2, 4)
        again = await asyncio.to_thread(solve, *arguments, "--max-tokens", "60")
        assert again.token_ids == before.token_ids
    finally:
        await engine.close()


async def test_in_this_process(
    smollm2: Path,
    model: Any,
    prompt: list[int],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    for name, value in (QUIET | {"TMPDIR": str(tmp_path_factory.mktemp("vllm"))}).items():
        monkeypatch.setenv(name, value)
    options = VllmOptions(max_context_tokens=2048, kv_cache_tokens=8192, max_running=8)
    engine = VllmInProcessEngine.from_folder(smollm2, options)
    try:
        await check_tokens(engine, model, prompt)
        await check_load_and_cancel(engine, prompt)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.05)
        await engine.update_weights(model.named_parameters(), 1)
        await check_tokens(engine, model, prompt)
    finally:
        await engine.close()


def test_the_agent_is_asked_as_it_was_trained_by_vllm_s_own_chat_endpoint(agent_server: str) -> None:
    """Its template, its tool parser, its stop tokens: nothing of rstar2 stands between the server and the client."""
    chat, schema = load_chat(resolve(AGENT)), PythonTool.schema
    messages: list[dict[str, Any]] = [{"role": "user", "content": QUESTION}]
    first = _chat(agent_server, messages, schema)
    transcript = Transcript.start(chat, QUESTION, [schema])
    assert tuple(first["prompt_token_ids"]) == transcript.prompt_ids
    said = first["choices"][0]["message"]
    (call,) = said["tool_calls"]
    code = json.loads(call["function"]["arguments"])["code"]
    with Sandbox() as sandbox:
        printed = sandbox.run(code).stdout.removesuffix("\n")
    assert printed == "7006652"

    messages += [
        {"role": "assistant", "content": said["content"], "tool_calls": said["tool_calls"]},
        {"role": "tool", "tool_call_id": call["id"], "content": printed},
    ]
    second = _chat(agent_server, messages, schema)
    ids = tuple(first["choices"][0]["token_ids"])
    turn = Turn(ids, (), chat.tokenizer.decode(ids), StopReason.END_OF_TURN)
    seen = transcript.with_turn(turn).with_user_turn(chat, f"<tool_response>\n{printed}\n</tool_response>")
    assert tuple(second["prompt_token_ids"]) == seen.token_ids
    assert extract_answer(second["choices"][0]["message"]["content"]) == printed


def _chat(url: str, messages: list[dict[str, Any]], schema: ToolSchema) -> dict[str, Any]:
    body = {
        "model": "smol",
        "messages": messages,
        "tools": [schema.as_function()],
        "temperature": 0,
        "max_tokens": 200,
        "return_token_ids": True,
    }
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=DEADLINE_S) as response:
        return dict(json.load(response))
