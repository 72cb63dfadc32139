"""Renders a conversation to token ids to learn from, piece by piece, exactly as the agent writes rollouts.

Invariant: the mask covers exactly the assistant's text, its end of turn included; the opening of its turn is the
environment's, as it is in a rollout. Each piece is tokenized alone, so the ids learnt here are those that the agent
sees and samples.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rstar2.agent.chat_template import ChatFormat, behind_opening, tool_responses
from rstar2.data.conversation import Conversation
from rstar2.errors import UserError


@dataclass(frozen=True, slots=True)
class Example:
    """One sequence to learn from. `mask` is True on the tokens that count."""

    token_ids: tuple[int, ...]
    mask: tuple[bool, ...]

    @property
    def num_learnt(self) -> int:
        return sum(self.mask)


def render_conversation(conversation: Conversation, chat: ChatFormat) -> Example:
    messages = list(conversation.messages)
    first = next((index for index, message in enumerate(messages) if _role(message) == "assistant"), None)
    if first is None:
        raise UserError(f"conversation {conversation.id!r} has no assistant turn, so nothing can be learnt from it")
    ids, mask = chat.tokenizer.encode(_opening(messages[:first], conversation.tools, chat)), []
    mask += [False] * len(ids)
    for text, is_assistant in _turns(messages[first:], conversation.id):
        if is_assistant:
            piece = chat.tokenizer.encode(behind_opening(text) + chat.before_end + chat.end_of_turn)
        else:
            piece = chat.user_turn_ids(chat.user_turn_text(text, after_end_of_turn=True), after_end_of_turn=True)
        ids += piece
        mask += [is_assistant] * len(piece)
    return Example(tuple(ids), tuple(mask))


def conversation_texts(conversations: Sequence[Conversation]) -> Iterator[str]:
    """All texts of the conversations, from which a tokenizer can build its vocabulary."""
    for conversation in conversations:
        for message in conversation.messages:
            yield _message_text(message)


def _opening(before: Sequence[Mapping[str, Any]], functions: Sequence[Mapping[str, Any]], chat: ChatFormat) -> str:
    has_own = bool(before) and _role(before[0]) == "system"
    system_text = str(before[0]["content"]) if has_own else chat.system_text
    return chat.opening_text(system_text, functions, _environment_text(before[1:] if has_own else before))


def _turns(messages: Sequence[Mapping[str, Any]], conversation_id: str) -> Iterator[tuple[str, bool]]:
    """Alternately a text of the assistant and the reply to it, up to the assistant's last text."""
    pending: list[Mapping[str, Any]] = []
    was_assistant = False
    for message in messages:
        if _role(message) != "assistant":
            pending.append(message)
            was_assistant = False
            continue
        if was_assistant:
            raise UserError(f"conversation {conversation_id!r} has two assistant turns in a row: join them")
        if pending:
            yield _environment_text(pending), False
            pending = []
        yield _message_text(message), True
        was_assistant = True


def _environment_text(messages: Sequence[Mapping[str, Any]]) -> str:
    """The messages to the assistant between two of its turns, or before the first, joined as one user turn."""
    return "\n".join(map(_message_text, messages))


def _role(message: Mapping[str, Any]) -> str:
    return str(message["role"])


def _message_text(message: Mapping[str, Any]) -> str:
    """A message's text and its calls, as the agent writes calls."""
    content = str(message.get("content") or "")
    if _role(message) == "tool":
        return tool_responses([content])
    if _role(message) != "assistant":
        return content.strip()
    calls = [_call_text(call["function"]) for call in message.get("tool_calls") or ()]
    return "\n".join(filter(None, [content.rstrip() if calls else content, *calls]))


def _call_text(function: Mapping[str, Any]) -> str:
    arguments = function["arguments"]
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError as error:
            raise UserError(f"the arguments of a call of {function['name']} are not JSON ({error})") from error
    call = json.dumps({"name": function["name"], "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{call}\n</tool_call>"
