"""A conversation to learn a format from, in OpenAI's form: messages with roles, tool calls and tool results."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Conversation:
    """Roles are system, user, assistant (with `tool_calls` where it calls) and tool. Only the assistant is learnt."""

    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] = ()
    id: str = ""
    source: str = ""
