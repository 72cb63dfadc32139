"""Servers that take and give token ids: the ids of the trace are the server's own."""

import pytest
from fake_openai_server import FakeServer, serving

from rstar2.agent import Agent, ChatFormat
from rstar2.engine import Sampling
from rstar2.engine.openai import OpenAIEngine
from rstar2.engine.openai_wire import TokenWire
from rstar2.engine.plain_text import END_ID, PlainTextTokenizer
from rstar2.errors import UserError
from rstar2.records import Outcome, Problem

pytestmark = pytest.mark.integration

CHAT = ChatFormat.of(PlainTextTokenizer())


async def test_ids_go_in_and_come_out_as_they_are() -> None:
    # One character a token: no tokenizer would give this back.
    ids = [token for letter in "Done." for token in CHAT.tokenizer.encode(letter)] + [END_ID]
    with serving(FakeServer(token_replies=[ids])) as server:
        engine = OpenAIEngine(server.url, "fake-model", TokenWire())
        agent = Agent(engine, CHAT, sampling=Sampling(temperature=0.6, top_p=0.9, top_k=20, seed=3))
        trace = await agent.rollout(Problem("p", "?", ""), [])
        await engine.close()
    (request,) = server.requests
    assert tuple(request["prompt"]) == trace.prompt_ids
    assert request["stop_token_ids"] == [END_ID]
    assert (request["temperature"], request["top_p"], request["top_k"]) == (0.6, 0.9, 20)
    assert trace.outcome is Outcome.ANSWERED
    assert trace.turns[0].token_ids == tuple(ids)
    assert trace.turns[0].log_probs == (-0.5,) * len(ids)
    assert engine.load().num_generated_tokens == len(ids)
    assert engine.load().num_running == 0


async def test_a_server_without_token_ids_is_told_apart() -> None:
    with serving(FakeServer(replies=["Done."])) as server:
        engine = OpenAIEngine(server.url, "fake-model", TokenWire())
        with pytest.raises(UserError, match="answers in text and not in token ids"):
            await Agent(engine, CHAT).rollout(Problem("p", "?", ""), [])
        await engine.close()


async def test_leaving_an_answer_early_ends_the_request() -> None:
    with serving(FakeServer(token_replies=[[300] * 10_000])) as server:
        engine = OpenAIEngine(server.url, "fake-model", TokenWire())
        stream = engine.generate("s", [300], Sampling(), 20_000)
        async for _ in stream:
            break
        assert engine.load().num_running == 1
        await stream.aclose()  # type: ignore[attr-defined]
        assert engine.load().num_running == 0
        await engine.close()
