"""Splits the text of an assistant turn into the parts of a chat message: reasoning, content and tool calls.

A model trained here begins each turn with reasoning; the text before its end tag is `reasoning_content`. Calls are
returned when the turn has ended, because their JSON decides where they end. A call that cannot be parsed stays in the
content as the model wrote it.
"""

import json
from typing import Any, Self

from rstar2.agent.chat_template import REASON_END
from rstar2.agent.parse import CLOSE, OPEN, parse_calls
from rstar2.serve.bodies import ChatRequest
from rstar2.serve.sessions import random_name
from rstar2.serve.text import num_held_back

Delta = dict[str, Any]


class ChatText:
    """Reads one turn. `opening` is text that the server wrote at its start in place of the model."""

    def __init__(
        self, *, is_reasoning: bool, parses_calls: bool, max_calls: int | None = None, opening: str = ""
    ) -> None:
        self._is_reasoning = is_reasoning
        self._parses_calls = parses_calls
        self._max_calls = max_calls
        self._held = opening
        self._calls_text = ""
        self.has_calls = False

    @classmethod
    def of(cls, request: ChatRequest, *, is_reasoning: bool, opening: str) -> Self:
        return cls(
            is_reasoning=is_reasoning,
            parses_calls=bool(request.tools) and request.tool_choice != "none",
            max_calls=1 if request.parallel_tool_calls is False else None,
            opening=opening,
        )

    def feed(self, text: str) -> list[Delta]:
        """Add text; returns what is certain by now, as deltas of a stream."""
        deltas: list[Delta] = []
        if self._calls_text:
            self._calls_text += text
            return deltas
        self._held += text
        if self._is_reasoning:
            before, end, after = self._held.partition(REASON_END)
            if end:
                self._is_reasoning, self._held = False, after
                _add(deltas, "reasoning_content", before)
            else:
                _add(deltas, "reasoning_content", self._release(REASON_END))
                return deltas
        if self._parses_calls:
            before, start, after = self._held.partition(OPEN)
            if start:
                _add(deltas, "content", before)
                self._held, self._calls_text = "", start + after
                return deltas
        _add(deltas, "content", self._release(*((OPEN,) if self._parses_calls else ())))
        return deltas

    def finish(self) -> list[Delta]:
        """End the turn; returns the text held back, and the calls."""
        deltas: list[Delta] = []
        _add(deltas, "reasoning_content" if self._is_reasoning else "content", self._held)
        self._held = ""
        parsed = parse_calls(self._calls_text, {})
        calls = [each.call for each in parsed if each.call.name is not None][: self._max_calls]
        unparsed = [each.call.raw for each in parsed if each.call.name is None]
        for raw in unparsed:
            is_closed = f"{OPEN}{raw}{CLOSE}" in self._calls_text
            _add(deltas, "content", f"{OPEN}{raw}{CLOSE if is_closed else ''}")
        for index, call in enumerate(calls):
            function = {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)}
            made = {"index": index, "id": f"call_{random_name()[:24]}", "type": "function", "function": function}
            deltas.append({"tool_calls": [made]})
        self.has_calls = bool(calls)
        return deltas

    def _release(self, *tags: str) -> str:
        num_held = num_held_back(self._held, tags)
        released, self._held = self._held[: len(self._held) - num_held], self._held[len(self._held) - num_held :]
        return released


def _add(deltas: list[Delta], key: str, text: str) -> None:
    if text:
        deltas.append({key: text})


def message_of(deltas: list[Delta]) -> dict[str, Any]:
    """Join the deltas of a stream into one message."""
    reasoning = "".join(delta.get("reasoning_content", "") for delta in deltas)
    content = "".join(delta.get("content", "") for delta in deltas)
    calls = [
        {key: value for key, value in call.items() if key != "index"}
        for delta in deltas
        for call in delta.get("tool_calls", ())
    ]
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if calls:
        message |= {"content": content if content.strip() else None, "tool_calls": calls}
    if reasoning:
        message["reasoning_content"] = reasoning
    return message
