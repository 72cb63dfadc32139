"""`rstar2 serve --agent`: the `openai` package, unmodified, against a server that runs the tool loop."""

import asyncio
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import openai
import pytest
import torch
from agent_app import CONTEXT_TOKENS, call_of, python_agent, python_environment, running, serving_agent
from process_tree import until
from sandbox_cluster import TOKEN, SandboxProcess
from sandbox_service import cold

from model_server import SIZES, TEXTS
from rstar2.agent import AgentLimits, ChatFormat, Transcript, load_chat
from rstar2.engine.embedded import EmbeddedEngine, EmbeddedOptions
from rstar2.engine.embedded.read_weights import read_weights
from rstar2.environments.plain_episode import PlainEnvironment
from rstar2.errors import EnvironmentCodeError
from rstar2.models.tiny import build_tiny
from rstar2.records import Problem
from rstar2.sandbox import LocalExecutor
from rstar2.sandbox.client import RemoteExecutor
from rstar2.serve import ServeSettings

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

HANGS = "while True: pass"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    build_tiny(folder, "llama", replace(SIZES, context_tokens=CONTEXT_TOKENS), TEXTS, seed=0)
    return folder


@pytest.fixture(scope="module")
def chat(folder: Path) -> ChatFormat:
    return load_chat(folder)


async def test_a_stream_says_what_the_full_answer_says(chat: ChatFormat, executor: LocalExecutor) -> None:
    async with python_environment(executor) as environment, serving_agent(chat, environment) as found:
        full = (await found.ask("What is the square of 12?", n=2)).model_dump()
        stream = await found.ask("What is the square of 12?", n=2, stream=True, stream_options={"include_usage": True})
        messages: list[dict[str, str]] = [{}, {}]
        events: list[list[dict[str, Any]]] = [[], []]
        reasons: list[str | None] = [None, None]
        async for chunk in stream:
            if chunk.usage is not None:
                assert chunk.usage.model_dump() == full["usage"]
            for choice in chunk.choices:
                for key, text in choice.delta.model_dump(exclude_none=True).items():
                    messages[choice.index][key] = messages[choice.index].get(key, "") + text
                event = getattr(choice, "agent_event", None)
                events[choice.index] += [event] if event else []
                reasons[choice.index] = choice.finish_reason or reasons[choice.index]
    for choice, message, seen, reason in zip(full["choices"], messages, events, reasons, strict=True):
        assert message == {key: choice["message"][key] for key in ("role", "content", "reasoning_content")}
        assert message["content"] == r"\boxed{144}"
        assert "```python\nprint(12 ** 2)\n```" in message["reasoning_content"]
        assert "\n144\n" in message["reasoning_content"]
        assert reason == choice["finish_reason"] == "stop"
        assert choice["message"]["tool_calls"] is None, "a client would run them itself"
        kinds = [event["type"] for event in seen if event["type"] != "text"]
        assert kinds == ["turn", "tool_call", "tool_result", "turn", "end"]
        call, result, end = choice["agent_events"]
        assert call["function"]["arguments"] == '{"code": "print(12 ** 2)", "input": ""}'
        assert (result["tool_call_id"], result["content"], result["status"]) == (call["id"], "144", "ok")
        assert (end["answer"], end["outcome"], end["num_turns"]) == ("144", "answered", 2)


async def test_the_ids_are_those_that_the_engine_saw(chat: ChatFormat, executor: LocalExecutor) -> None:
    async with python_environment(executor) as environment, serving_agent(chat, environment) as found:
        answer = (await found.ask("the square of 9", n=2, extra_body={"return_token_ids": True})).model_dump()
        assert len(found.engine.turns) == 4
        for choice in answer["choices"]:
            ids = [*choice["prompt_token_ids"], *choice["token_ids"]]
            assert ids in [seen for _, seen in found.engine.turns]
            masked = [each for each, own in zip(choice["token_ids"], choice["loss_mask"], strict=True) if own]
            assert chat.tokenizer.decode(masked).count(chat.end_of_turn) == 2
        # Each turn sends the conversation so far.
        num_sampled = sum(sum(choice["loss_mask"]) for choice in answer["choices"])
        assert answer["usage"]["completion_tokens"] == num_sampled
        assert answer["usage"]["total_tokens"] == sum(len(seen) for _, seen in found.engine.turns)


async def test_a_real_model_is_exact_and_within_its_tokens(folder: Path, chat: ChatFormat) -> None:
    weights = read_weights(folder, torch.device("cpu"), torch.float32)
    assert weights is not None
    engine = EmbeddedEngine(weights, EmbeddedOptions(kv_cache_tokens=1 << 16))
    async with cold() as executor, python_environment(executor) as environment:
        async with serving_agent(chat, environment, engine=engine) as found:
            asked: dict[str, Any] = {"max_tokens": 40, "seed": 3, "extra_body": {"return_token_ids": True}}
            answer = (await found.ask("What is it?", **asked)).model_dump()
            again = (await found.ask("What is it?", **asked)).model_dump()
            hot = (await found.ask("What is it?", **(asked | {"seed": 4}))).model_dump()
            [choice] = answer["choices"]
            assert [*choice["prompt_token_ids"], *choice["token_ids"]] == found.engine.turns[0][1]
            assert len(choice["token_ids"]) <= 40 and choice["finish_reason"] in ("length", "stop")
            assert again["choices"][0]["token_ids"] == choice["token_ids"] != hot["choices"][0]["token_ids"]
            await until(lambda: engine.load().num_running == 0)
        await engine.close()


async def test_many_at_a_time_do_not_mix(chat: ChatFormat, executor: LocalExecutor) -> None:
    async with python_environment(executor) as environment, serving_agent(chat, environment) as found:
        answers = await asyncio.gather(*(found.ask(f"the square of {number}", n=2) for number in range(24)))
        for number, answer in enumerate(answers):
            assert [choice.message.content for choice in answer.choices] == [rf"\boxed{{{number**2}}}"] * 2
        assert found.service.admission.num_in_flight == 0
        assert executor.status()["running"] == 0


async def test_earlier_turns_are_history(chat: ChatFormat, executor: LocalExecutor) -> None:
    messages: Any = [
        {"role": "developer", "content": "Square numbers."},
        {"role": "user", "content": "the square of 3"},
        {"role": "assistant", "content": r"\boxed{9}", "reasoning_content": "is left out"},
        {"role": "user", "content": [{"type": "text", "text": "and the square of 4"}]},
    ]
    async with python_environment(executor) as environment, serving_agent(chat, environment) as found:
        answer = await found.client.chat.completions.create(
            model="agent", messages=messages, extra_body={"return_token_ids": True}
        )
        assert answer.choices[0].message.content == r"\boxed{16}"
        tools = environment.opening(Problem("p", "q", "")).tools
        texts = [
            {"role": "system", "content": "Square numbers."},
            {"role": "user", "content": "the square of 3"},
            {"role": "assistant", "content": r"\boxed{9}"},
            {"role": "user", "content": "and the square of 4"},
        ]
        assert answer.model_dump()["prompt_token_ids"] == list(Transcript.start(chat, texts, tools).prompt_ids)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"tools": [{"type": "function", "function": {"name": "mine"}}]}, "tools: this server runs an agent"),
        ({"stop": "x"}, "stop: this server runs an agent"),
        ({"logprobs": True}, "logprobs: this server runs an agent"),
        ({"messages": [{"role": "assistant", "content": "I speak last"}]}, "the last one must be the user's"),
        ({"messages": [{"role": "tool", "tool_call_id": "1", "content": "4"}]}, "a tool of the caller's"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "is not text"),
        ({"messages": [{"role": "user", "content": "word " * CONTEXT_TOKENS}]}, "shorten it"),
        ({"max_tokens": 100_000}, "at most 64 tokens"),
    ],
)
async def test_what_an_agent_cannot_follow_is_refused(
    chat: ChatFormat, executor: LocalExecutor, fields: dict[str, Any], said: str
) -> None:
    settings = ServeSettings(max_tokens=64)
    async with python_agent(chat, executor, settings=settings) as found:
        asked: Any = {"model": "agent", "messages": [{"role": "user", "content": "the square of 2"}]} | fields
        with pytest.raises(openai.BadRequestError, match=said):
            await found.client.chat.completions.create(**asked)
        assert found.service.admission.num_in_flight == 0


async def test_a_program_that_hangs_is_the_models_own_failure(chat: ChatFormat, executor: LocalExecutor) -> None:
    text = "[sandbox.limits]\nwall_s = 0.5\ncpu_s = 0.5"
    async with python_agent(chat, executor, running(HANGS), text=text) as found:
        answer = (await found.ask("?")).model_dump()
        result = answer["choices"][0]["agent_events"][1]
        assert (result["status"], result["fault"]) == ("timed_out", "policy")
        assert answer["choices"][0]["message"]["content"] == r"\boxed{1}"


async def test_a_caller_that_leaves_during_a_call_is_cancelled(chat: ChatFormat, executor: LocalExecutor) -> None:
    async with python_agent(chat, executor, running(HANGS)) as found:
        stream = await found.ask("?", stream=True)
        async for chunk in stream:
            if (getattr(chunk.choices[0], "agent_event", None) or {}).get("type") == "tool_call":
                break
        await until(lambda: executor.status()["running"] == 1)
        await stream.close()
        await until(lambda: found.service.admission.num_in_flight == 0)
        await until(lambda: executor.status()["running"] == 0)
        waiting = asyncio.ensure_future(found.ask("?"))
        await until(lambda: executor.status()["running"] == 1)
        waiting.cancel()
        await until(lambda: executor.status()["running"] == found.service.admission.num_in_flight == 0)


async def test_a_caller_whose_time_is_up_gets_504_and_leaves_nothing(chat: ChatFormat, executor: LocalExecutor) -> None:
    settings = ServeSettings(request_timeout_s=1.0)
    async with python_agent(chat, executor, running(HANGS), settings=settings) as found:
        with pytest.raises(openai.InternalServerError) as refused:
            await found.ask("?")
        assert refused.value.status_code == 504
        await until(lambda: executor.status()["running"] == found.service.admission.num_in_flight == 0)


async def test_a_notebook_lives_as_long_as_its_request(chat: ChatFormat, executor: LocalExecutor) -> None:
    turns = [call_of("x = 6", "jupyter_code"), call_of("x * 7", "jupyter_code")]
    turns = [turn.replace(', "input": ""', "") for turn in turns]
    replies = [*turns, r"</reason><answer>\boxed{42}</answer>"]
    text = '[environment]\ntools = ["jupyter_code"]'
    async with python_agent(chat, executor, lambda prompt: replies[prompt.turn], text=text) as found:
        answer = (await found.ask("?")).model_dump()
        assert answer["choices"][0]["agent_events"][3]["content"] == "42"
        assert executor.status()["sessions"] == 0


async def test_more_episodes_than_fit_get_429(chat: ChatFormat, executor: LocalExecutor) -> None:
    settings = ServeSettings(max_in_flight=1)
    async with python_agent(chat, executor, running(HANGS), settings=settings) as found:
        first = asyncio.ensure_future(found.ask("?"))
        await until(lambda: executor.status()["running"] == 1)
        with pytest.raises(openai.RateLimitError):
            await found.ask("?")
        first.cancel()
        await until(lambda: executor.status()["running"] == 0)


async def test_a_sandbox_that_is_killed_is_never_the_models_failure(chat: ChatFormat) -> None:
    service = SandboxProcess("serve")
    try:
        executor = RemoteExecutor(service.url, TOKEN)
        limits = AgentLimits(max_fault_retries=0, tool_deadline_s=3.0)
        async with python_agent(chat, executor, running(HANGS), limits=limits) as found:
            stream = await found.ask("?", stream=True)
            said = ""
            with pytest.raises(openai.APIError, match="could not finish"):
                async for chunk in stream:
                    said += chunk.choices[0].delta.content or ""
                    event = getattr(chunk.choices[0], "agent_event", None) or {}
                    if event.get("type") == "tool_call":
                        service.signal_all(signal.SIGKILL)
            assert said == ""
            with pytest.raises(openai.InternalServerError) as refused:
                await found.ask("?")
            assert (refused.value.status_code, refused.value.code) == (503, "agent_failed")
            assert refused.value.response.headers["Retry-After"] == "1"
            assert found.service.admission.num_in_flight == 0
        await executor.close()
    finally:
        service.end()


@dataclass
class CountedEpisode:
    """An episode with state: a counter that its own request moves."""

    told: list[str]
    observation: str = " (a new world)"
    tools: Sequence[Any] = ()
    is_over: bool = False
    said: list[str] = field(default_factory=list)

    async def reply(self, said: str) -> str | None:
        self.said.append(said)
        return f"reply {len(self.said)}" if len(self.said) < 3 else None

    async def close(self) -> None:
        self.told.append(f"closed after {len(self.said)}")


class CountedEnvironment(PlainEnvironment):
    told: ClassVar[list[str]] = []

    async def begin(self, problem: Problem) -> Any:
        if problem.problem == "break":
            raise EnvironmentCodeError("world.py, line 3: KeyError")
        return CountedEpisode(self.told)


async def test_each_request_has_an_episode_of_its_own(chat: ChatFormat) -> None:
    async def judge(_problem: Problem, _trace: Any) -> Any:
        raise AssertionError("nobody judges an answer that is served")

    environment = CountedEnvironment(judge)
    async with serving_agent(chat, environment, lambda prompt: f"</reason>Turn {prompt.turn}.") as found:
        for _ in range(2):
            answer = (await found.ask("Hello", extra_body={"return_token_ids": True})).model_dump()
            assert answer["choices"][0]["message"]["content"] == "Turn 2."
            assert "reply 2" in answer["choices"][0]["message"]["reasoning_content"]
            assert "Hello (a new world)" in chat.tokenizer.decode(answer["prompt_token_ids"])
        assert environment.told == ["closed after 3"] * 2
        with pytest.raises(openai.InternalServerError, match=r"world\.py, line 3"):
            await found.ask("break")
