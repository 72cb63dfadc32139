"""The `openai` package, unmodified, against a served model: chats, streams, ids, log-probabilities, tools, errors."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from model_server import ModelServer, serving
from rstar2.agent import load_chat

pytestmark = pytest.mark.integration

MESSAGES: Any = [{"role": "user", "content": "What is the sum of 12 and 30?"}]
TOOL: Any = {
    "type": "function",
    "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {}}},
}


@pytest.fixture(scope="module")
def server(tiny_served: Path) -> Iterator[ModelServer]:
    with serving(str(tiny_served), "--name", "tiny", "--max-tokens", "64") as server:
        yield server


@pytest.fixture(scope="module")
def client(server: ModelServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.root}/v1", api_key="none", max_retries=0)


def test_the_model_is_listed_with_its_context(client: openai.OpenAI) -> None:
    card = client.models.list().data[0]
    assert card.id == "tiny" and card.model_dump()["max_model_len"] == 2048
    assert client.models.retrieve("tiny").id == "tiny"


def test_a_stream_says_what_the_full_answer_says(client: openai.OpenAI) -> None:
    asked: Any = {"model": "tiny", "messages": MESSAGES, "max_tokens": 12, "seed": 5, "n": 3, "logprobs": True}
    extra = {"return_token_ids": True}
    full = client.chat.completions.create(**asked, extra_body=extra)
    texts, ids, values, reasons = ["", "", ""], [[], [], []], [[], [], []], [None, None, None]
    prompt_ids: list[Any] = []
    stream = client.chat.completions.create(
        **asked, extra_body=extra, stream=True, stream_options={"include_usage": True}
    )
    for event in stream:
        if event.usage is not None:
            assert event.usage == full.usage
        prompt_ids += [event.model_dump()["prompt_token_ids"]] if "prompt_token_ids" in event.model_dump() else []
        for choice in event.choices:
            texts[choice.index] += choice.delta.content or ""
            ids[choice.index] += choice.model_dump().get("token_ids") or []
            values[choice.index] += [entry.logprob for entry in choice.logprobs.content] if choice.logprobs else []
            reasons[choice.index] = choice.finish_reason or reasons[choice.index]
    assert texts == [choice.message.content for choice in full.choices]
    assert ids == [choice.model_dump()["token_ids"] for choice in full.choices]
    assert values == [[entry.logprob for entry in choice.logprobs.content] for choice in full.choices]  # type: ignore
    assert reasons == [choice.finish_reason for choice in full.choices] == ["length"] * 3
    assert prompt_ids == [full.model_dump()["prompt_token_ids"]] * 3
    assert len({tuple(each) for each in ids}) == 3, "choices of one request draw different numbers"


def test_the_prompt_is_the_rendering_of_the_template(client: openai.OpenAI, tiny_served: Path) -> None:
    tokenizer = load_chat(tiny_served).tokenizer
    answer = client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=1, extra_body={"return_token_ids": True}
    )
    assert answer.model_dump()["prompt_token_ids"] == tokenizer.encode(tokenizer.render(MESSAGES))


async def test_many_at_a_time_each_get_their_own(server: ModelServer) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server.root}/v1", api_key="none", max_retries=0) as client:

        async def ask(number: int) -> str:
            answer = await client.completions.create(model="tiny", prompt=f"say {number}", max_tokens=8, seed=number)
            return answer.choices[0].text

        alone = [await ask(number) for number in range(12)]
        assert await asyncio.gather(*map(ask, range(12))) == alone


def test_completions_take_texts_and_ids_and_echo_their_likelihood(client: openai.OpenAI, tiny_served: Path) -> None:
    tokenizer = load_chat(tiny_served).tokenizer
    text = "A loop repeats 12 times."
    ids = tokenizer.encode(text)
    asked: Any = {"model": "tiny", "max_tokens": 2, "temperature": 0, "echo": True, "logprobs": 2}
    by_text, by_ids = (client.completions.create(prompt=prompt, **asked).choices[0] for prompt in (text, ids))
    assert by_text == by_ids and by_text.text.startswith(text)
    found = by_text.logprobs
    assert found is not None and found.tokens is not None and found.token_logprobs is not None
    assert len(found.tokens) == len(found.token_logprobs) == len(ids) + 2
    assert found.token_logprobs[0] is None and "".join(found.tokens) == by_text.text
    assert found.top_logprobs is not None
    for value, top in zip(found.token_logprobs[1:], found.top_logprobs[1:], strict=True):
        assert value in top.values() and max(top.values()) >= value
    several = client.completions.create(model="tiny", prompt=[text, "one"], n=2, max_tokens=1)  # type: ignore[call-overload]
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]


def test_a_stop_string_ends_the_answer_before_it(client: openai.OpenAI) -> None:
    asked: Any = {"model": "tiny", "prompt": "one two", "max_tokens": 40, "temperature": 0}
    full = client.completions.create(**asked).choices[0].text
    stop = full[7:10]
    cut = client.completions.create(**asked, stop=stop, extra_body={"return_token_ids": True}).choices[0]
    assert cut.text == full[: full.index(stop)] and cut.finish_reason == "stop"
    streamed = "".join(event.choices[0].text for event in client.completions.create(**asked, stop=stop, stream=True))
    assert streamed == cut.text
    kept = client.completions.create(**asked, stop=stop, extra_body={"include_stop_str_in_output": True})
    assert kept.choices[0].text == cut.text + stop


def test_tools_are_in_the_prompt_and_a_choice_opens_the_call(client: openai.OpenAI, tiny_served: Path) -> None:
    tokenizer = load_chat(tiny_served).tokenizer
    asked: Any = {"model": "tiny", "messages": MESSAGES, "max_tokens": 4, "tools": [TOOL]}

    def prompt(choice: Any) -> str:
        answer = client.chat.completions.create(**asked, tool_choice=choice, extra_body={"return_token_ids": True})
        return tokenizer.decode(answer.model_dump()["prompt_token_ids"])

    assert prompt("auto") == prompt("none") and '"name": "add"' in prompt("auto")
    named = prompt({"type": "function", "function": {"name": "add"}})
    assert named == prompt("auto") + '<tool_call>\n{"name": "add", "arguments": '


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"model": "other"}, openai.NotFoundError, "there is no 'other'"),
        ({"messages": []}, openai.BadRequestError, "messages"),
        ({"temperature": -1}, openai.BadRequestError, "temperature"),
        ({"presence_penalty": 1.5}, openai.BadRequestError, "presence_penalty"),
        ({"response_format": {"type": "json_object"}}, openai.BadRequestError, "response_format"),
        ({"max_tokens": 65}, openai.BadRequestError, "at most 64"),
        ({"messages": [{"role": "user", "content": "word " * 4000}]}, openai.BadRequestError, "context"),
        ({"top_logprobs": 2}, openai.BadRequestError, "logprobs"),
        ({"tool_choice": "required"}, openai.BadRequestError, "tool_choice"),
        ({"stop": ["a"] * 17}, openai.BadRequestError, "stop"),
        ({"extra_body": {"chat_template_kwargs": {"chat_template": "x"}}}, openai.BadRequestError, "chat_template is"),
        ({"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}}, None, ""),
        ({"extra_body": {"stop_token_ids": [10**7]}}, None, ""),
        ({"extra_body": {"min_p": 0.0, "unknown_to_us": 1}}, None, ""),
    ],
)
def test_mistakes_are_errors_of_the_client_that_name_the_field(
    client: openai.OpenAI, change: dict[str, Any], error: type[openai.APIStatusError] | None, message: str
) -> None:
    asked: Any = {"model": "tiny", "messages": MESSAGES, "max_tokens": 2} | change
    if error is None:
        assert client.chat.completions.create(**asked).choices
        return
    with pytest.raises(error, match=message) as caught:
        client.chat.completions.create(**asked)
    assert {"message", "type", "param", "code"} <= caught.value.body.keys()  # type: ignore[union-attr]
