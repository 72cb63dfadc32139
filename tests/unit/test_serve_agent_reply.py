"""What an agent's events become in a chat answer."""

import json

import pytest

from rstar2.agent.events import CallEnded, CallStarted, TextGenerated, TurnRestarted, TurnStarted
from rstar2.records import ToolCall, ToolResult, ToolStatus
from rstar2.serve.agent import read_conversation
from rstar2.serve.agent_reply import EventReader, call_text
from rstar2.serve.bodies import ChatMessage
from rstar2.serve.errors import OpenAIError

pytestmark = pytest.mark.unit


def test_calls_of_one_turn_keep_their_results_apart() -> None:
    reader = EventReader()
    first, second = (ToolCall("", "f", {"x": 1}) for _ in range(2))
    for event in (
        TurnStarted(0, "<reason>"),
        TextGenerated("So.</reason>\n<tool_call>{}</tool_call>"),
        CallStarted(first),
        CallStarted(second),
        CallEnded(second, ToolResult(ToolStatus.OK, "b")),
        CallEnded(first, ToolResult(ToolStatus.OK, "a")),
    ):
        reader.read(event)
    assert [event.get("id") or event["tool_call_id"] for event in reader.tool_events] == [
        "call_1",
        "call_2",
        "call_2",
        "call_1",
    ]
    assert reader.reasoning.startswith("So.\n```\nf ") and "<tool_call>" not in reader.reasoning


def test_a_program_cannot_close_the_block_that_it_is_shown_in() -> None:
    shown = call_text(ToolCall("", "python", {"code": 'print("````")'}))
    assert shown == '\n`````python\nprint("````")\n`````\n'


def test_a_call_that_cannot_be_read_is_shown_as_it_was_written() -> None:
    reader = EventReader()
    [*_, (text, event)] = reader.read(CallStarted(ToolCall("{oops")))
    assert "{oops" in text
    assert event["function"] == {"name": None, "arguments": "{}"} and event["raw"] == "{oops"
    assert json.loads(json.dumps(event)) == event


def test_a_turn_that_is_retried_is_read_anew() -> None:
    reader = EventReader()
    reader.read(TurnStarted(0, "<reason>"))
    reader.read(TextGenerated("half a thought</rea"))
    [(text, event)] = reader.read(TurnRestarted(0, "the engine was lost"))
    assert "starts again" in text and event["reason"] == "the engine was lost"
    assert reader.read(TextGenerated("a thought"))[0][1] == {"type": "text", "kind": "reason", "text": "a thought"}


def test_a_conversation_is_the_texts_of_its_messages() -> None:
    said = [("system", "Be brief."), ("user", "a"), ("assistant", "b"), ("system", "Be kind."), ("user", ' {"q": 1} ')]
    read = read_conversation([ChatMessage(role=role, content=text) for role, text in said])  # type: ignore[arg-type]
    assert read.system == ({"role": "system", "content": "Be brief.\nBe kind."},)
    assert [turn["content"] for turn in read.history] == ["a", "b"]
    assert read.problem.row == {"q": 1}
    with pytest.raises(OpenAIError, match="last one must be the user's"):
        read_conversation([ChatMessage(role="user", content="  ")])
