"""Finds, by its messages, the earlier answer that a chat request continues. Pure.

Programs send the server's answers back as messages, not as ids. A message that comes back unchanged stands for the ids
that the model sampled: they are reused, so that no text of the model is tokenized again. The message may lack its
reasoning, as most clients drop it; the context keeps it.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rstar2.harness.stitch import Call
from rstar2.serve.bodies import ChatMessage, ChatRequest

Said = tuple[str, str, str, tuple[tuple[str, str], ...]]
"""The parts of a message that are compared: role, content, reasoning, and calls as names with arguments."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A chat request and the message that answered it."""

    heading: str
    """The part of the prompt before the messages: the tools."""
    asked: tuple[Said, ...]
    answered: Said
    call: Call


def heading_of(request: ChatRequest) -> str:
    tools = [tool.model_dump(exclude_none=True) for tool in request.tools or ()]
    return json.dumps(tools, sort_keys=True)


def said_by(message: ChatMessage) -> Said:
    content = message.content or ""
    if not isinstance(content, str):
        content = "\n".join(part.text or "" for part in content)
    calls = tuple((call.function.name, _canonical(call.function.arguments)) for call in message.tool_calls or ())
    reasoning = message.reasoning_content or message.reasoning or ""
    # A server drops the white space that the model wrote beside calls.
    return message.role, content if content.strip() or not calls else "", reasoning, calls


def continued(exchanges: Sequence[Exchange], heading: str, messages: Sequence[Said]) -> Exchange | None:
    """The longest exchange that the messages begin with and continue; the newest of several that are equal."""
    found = [each for each in reversed(exchanges) if each.heading == heading and _is_continued(each, messages)]
    return max(found, key=lambda each: len(each.asked), default=None)


def _is_continued(exchange: Exchange, messages: Sequence[Said]) -> bool:
    num_asked = len(exchange.asked)
    if len(messages) < num_asked + 2 or tuple(messages[:num_asked]) != exchange.asked:
        return False
    role, content, reasoning, calls = messages[num_asked]
    _, own_content, own_reasoning, own_calls = exchange.answered
    is_same = (role, content, calls) == ("assistant", own_content, own_calls) and reasoning in ("", own_reasoning)
    return is_same and messages[num_asked + 1][0] != "assistant"


def _canonical(arguments: str | dict[str, Any]) -> str:
    try:
        value = json.loads(arguments) if isinstance(arguments, str) else arguments
        return json.dumps(value, sort_keys=True)
    except (ValueError, RecursionError):
        return str(arguments)
