"""The last step of every converter to conversations: it puts the turns into an order that can be rendered and learnt
from. Pure."""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

from rstar2.data.build.source import LeftOut, LeftOutError
from rstar2.data.cells import compact_json
from rstar2.data.conversation import Conversation
from rstar2.data.validate import validate_conversations

PLAIN_SYSTEM_TEXT = "You are a helpful assistant."
"""The system text for rows without one. The agent's own asks for a boxed answer, which these rows do not give."""

Message = dict[str, Any]


def call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def assistant(content: str, calls: Sequence[dict[str, Any]] = ()) -> Message:
    message: Message = {"role": "assistant", "content": content}
    return {**message, "tool_calls": list(calls)} if calls else message


def with_system(messages: Sequence[Message], text: str = "") -> list[Message]:
    """The messages after a system text: their own, else `text`, else the plain one."""
    if messages and messages[0]["role"] == "system":
        return list(messages)
    return [{"role": "system", "content": text.strip() or PLAIN_SYSTEM_TEXT}, *messages]


def conversation_of(messages: Iterable[Message], tools: Sequence[dict[str, Any]] = ()) -> Conversation:
    """Makes a conversation. Its id is a digest of its content, so the same conversation has the same id wherever it
    is."""
    joined = _joined(messages)
    while joined and joined[-1]["role"] != "assistant":
        joined.pop()
    offered = {tool["function"].get("name") for tool in tools}
    called = [each["function"]["name"] for message in joined for each in message.get("tool_calls", ())]
    if unknown := [name for name in called if name not in offered]:
        raise LeftOutError(LeftOut.UNKNOWN_TOOL, unknown[0])
    digest = hashlib.sha256(compact_json([joined, list(tools)]).encode("utf-8", "surrogatepass")).hexdigest()[:16]
    conversation = Conversation(tuple(joined), tuple(tools), digest)
    if faults := validate_conversations([conversation]):
        raise LeftOutError(LeftOut.FORM, faults[0].reason)
    return conversation


def _joined(messages: Iterable[Message]) -> list[Message]:
    """Joins two consecutive texts of the assistant into one turn."""
    joined: list[Message] = []
    for message in messages:
        last = joined[-1] if joined else None
        if message["role"] == "assistant" and not (message["content"].strip() or message.get("tool_calls")):
            raise LeftOutError(LeftOut.FORM, "a turn of the assistant is empty")
        if last is None or message["role"] != "assistant" or last["role"] != "assistant":
            joined.append(message)
        elif last.get("tool_calls"):
            raise LeftOutError(LeftOut.FORM, "the assistant does not wait for the result of its call")
        else:
            joined[-1] = {**message, "content": f"{last['content']}\n\n{message['content']}".strip()}
    return joined
