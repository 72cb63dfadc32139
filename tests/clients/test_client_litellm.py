"""litellm, unmodified: chat, streams, tools, errors."""

import os
from typing import Any

import pytest

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would ask the network for prices
litellm = pytest.importorskip("litellm")
pytestmark = pytest.mark.clients

MESSAGES = [{"role": "user", "content": "What is the sum of 12 and 30?"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds two numbers.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    },
}


@pytest.fixture
def to_server(served: Any) -> dict[str, Any]:
    return {"model": "openai/tiny", "api_base": f"{served.root}/v1", "api_key": "none", "messages": MESSAGES}


def test_chat_and_stream_say_the_same(to_server: dict[str, Any]) -> None:
    full = litellm.completion(**to_server, max_tokens=12, seed=3)
    events = list(litellm.completion(**to_server, max_tokens=12, seed=3, stream=True))
    streamed = "".join(event.choices[0].delta.content or "" for event in events)
    assert full.choices[0].message.content == streamed and full.usage.completion_tokens == 12


async def test_many_at_a_time(to_server: dict[str, Any]) -> None:
    import asyncio

    answers = await asyncio.gather(*(litellm.acompletion(**to_server, max_tokens=8, seed=n) for n in range(8)))
    assert [answer.usage.completion_tokens for answer in answers] == [8] * 8


def test_tools_reach_the_prompt(to_server: dict[str, Any]) -> None:
    plain = litellm.completion(**to_server, max_tokens=2)
    with_tool = litellm.completion(**to_server, max_tokens=2, tools=[TOOL])
    assert with_tool.usage.prompt_tokens > plain.usage.prompt_tokens + 20


def test_an_unknown_model_is_its_not_found_error(to_server: dict[str, Any]) -> None:
    with pytest.raises(litellm.NotFoundError, match="there is no"):
        litellm.completion(**to_server | {"model": "openai/other"}, max_tokens=2, num_retries=0)
