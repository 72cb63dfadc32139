"""A conversation to the ids that it is learnt from, written piece by piece exactly as the agent's rollouts are.

Invariant: what the mask covers is all and only what the assistant says, its end of turn included; the opening of its
turn is the environment's, as it is in a rollout. Each piece is tokenized alone, so what is learnt here are the very
ids that the agent sees and samples.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rstar2.agent.chat_template import ASSISTANT_OPENING, ChatFormat, tool_responses, with_tools
from rstar2.data.conversation import Conversation
from rstar2.errors import UserError

EMPTY_REASON = f"{ASSISTANT_OPENING}</reason>\n"
"""Before the words of an assistant that shows no reasoning: the format stays, and no reasoning is taught."""


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
    opening = chat.tokenizer.render(_opening_messages(messages[:first], conversation.tools, chat)) + ASSISTANT_OPENING
    ids, mask = chat.tokenizer.encode(opening), []
    mask += [False] * len(ids)
    for text, is_assistant in _turns(messages[first:], conversation.id):
        if is_assistant:
            piece = chat.tokenizer.encode(assistant_text(text, chat))
        else:
            piece = chat.user_turn_ids(chat.user_turn_text(text, after_end_of_turn=True), after_end_of_turn=True)
        ids += piece
        mask += [is_assistant] * len(piece)
    return Example(tuple(ids), tuple(mask))


def assistant_text(said: str, chat: ChatFormat) -> str:
    """What stands between the opening of the assistant's turn and its end, both as in a rollout."""
    text = said if said.lstrip().startswith(ASSISTANT_OPENING) else EMPTY_REASON + said
    return text.lstrip().removeprefix(ASSISTANT_OPENING) + chat.before_end + chat.end_of_turn


def conversation_texts(conversations: Sequence[Conversation]) -> Iterator[str]:
    """All that is said, for a tokenizer to learn its words from."""
    for conversation in conversations:
        for message in conversation.messages:
            yield _said(message)


def _opening_messages(
    before: Sequence[Mapping[str, Any]], functions: Sequence[Mapping[str, Any]], chat: ChatFormat
) -> list[dict[str, str]]:
    has_own = bool(before) and _role(before[0]) == "system"
    words = str(before[0]["content"]) if has_own else chat.system_words
    opening = [{"role": "system", "content": with_tools(words, functions)}] if words else []
    rest = before[1:] if has_own else before
    return opening + [{"role": _role(message), "content": chat.harmless(_said(message))} for message in rest]


def _turns(messages: Sequence[Mapping[str, Any]], conversation_id: str) -> Iterator[tuple[str, bool]]:
    """Alternately what the assistant says and what is said to it; nothing behind its last words."""
    pending: list[tuple[str, str]] = []
    was_assistant = False
    for message in messages:
        role = _role(message)
        if role != "assistant":
            pending.append((role, str(message.get("content") or "")))
            was_assistant = False
            continue
        if was_assistant:
            raise UserError(f"conversation {conversation_id!r} has two assistant turns in a row: join them")
        if pending:
            yield _answer_to_assistant(pending), False
            pending = []
        yield _said(message), True
        was_assistant = True


def _answer_to_assistant(pending: Sequence[tuple[str, str]]) -> str:
    results = [content for role, content in pending if role == "tool"]
    words = [content for role, content in pending if role != "tool"]
    return "\n".join(([tool_responses(results)] if results else []) + words)


def _role(message: Mapping[str, Any]) -> str:
    return str(message["role"])


def _said(message: Mapping[str, Any]) -> str:
    """A message's words and its calls, as the agent writes calls."""
    if _role(message) == "tool":
        return tool_responses([str(message.get("content") or "")])
    calls = [_call_text(call["function"]) for call in message.get("tool_calls") or ()]
    return "\n".join(filter(None, [str(message.get("content") or ""), *calls]))


def _call_text(function: Mapping[str, Any]) -> str:
    arguments = function["arguments"]
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError as error:
            raise UserError(f"the arguments of a call of {function['name']} are not JSON ({error})") from error
    call = json.dumps({"name": function["name"], "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{call}\n</tool_call>"
