"""Turns the messages of a request into the token ids that the engine continues.

The model's own chat template writes the conversation, including tools, if it writes calls in the form that the parser
reads. Otherwise tools and calls are written into the texts of an ordinary conversation, as Qwen's template does. Text
from outside cannot forge a turn: control tokens in it are broken up.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rstar2.agent.chat_template import ASSISTANT_OPENING, REASON_END, ChatFormat, tool_responses, with_tools
from rstar2.agent.hf_tokenizer import HfTokenizer
from rstar2.agent.parse import CLOSE, OPEN
from rstar2.errors import UserError
from rstar2.serve.bodies import ChatMessage, ChatRequest, NamedChoice
from rstar2.serve.errors import unsupported

_MARKS = ("rstar2-tool-mark", "rstar2-call-mark", "rstar2-argument-mark", "rstar2-result-mark")


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    token_ids: list[int]
    is_reasoning: bool
    """Whether the template begins the assistant's turn with reasoning."""
    opening: str = ""
    """The start of the assistant's turn that the server wrote to force a tool call."""


class PromptWriter:
    def __init__(self, chat: ChatFormat) -> None:
        self._chat = chat
        tokenizer = chat.tokenizer
        self._hf = tokenizer if isinstance(tokenizer, HfTokenizer) else None
        self._knows_tools = self._hf is not None and _knows_tools(self._hf)

    def write(self, request: ChatRequest) -> ChatPrompt:
        """Write a prompt. UserError if the template refuses the messages."""
        functions = [self._harmless(tool.model_dump(exclude_none=True)) for tool in request.tools or ()]
        text = self._render(request.messages, functions, request.chat_template_kwargs or {})
        is_reasoning = text.endswith(ASSISTANT_OPENING)
        opening = forced_call(request, is_reasoning=is_reasoning)
        return ChatPrompt(self._chat.tokenizer.encode(text + opening), is_reasoning, opening)

    def document(self, text: str, *, adds_special_tokens: bool) -> list[int]:
        """The ids of a prompt that is plain text."""
        if self._hf is not None and adds_special_tokens:
            return self._hf.encode_document(text)
        return self._chat.tokenizer.encode(text)

    def _render(
        self, messages: Sequence[ChatMessage], functions: list[dict[str, Any]], values: Mapping[str, Any]
    ) -> str:
        if self._hf is None:
            return self._chat.tokenizer.render(self.as_text(messages, functions))
        if self._knows_tools:
            text = self._hf.render_request([self._native(message) for message in messages], functions, values)
            if all(each["function"]["name"] in text for each in functions):
                return text
        return self._hf.render_request(self.as_text(messages, functions), (), values)

    def _native(self, message: ChatMessage) -> dict[str, Any]:
        """The message in the form that chat templates take."""
        native: dict[str, Any] = {"role": role_of(message), "content": self._content(message)}
        if message.tool_calls:
            native["tool_calls"] = [
                {"type": "function", "function": {"name": call.function.name, "arguments": self._arguments(call)}}
                for call in message.tool_calls
            ]
        if message.tool_call_id is not None:
            native["tool_call_id"] = message.tool_call_id
        return native

    def as_text(
        self, messages: Sequence[ChatMessage], functions: Sequence[Mapping[str, Any]] = ()
    ) -> list[dict[str, str]]:
        """The conversation without tools: calls become text of the assistant, results become turns of the user."""
        turns: list[dict[str, str]] = []
        has_results = False
        for message in messages:
            role, content = role_of(message), self._content(message)
            if message.role == "tool":
                text = tool_responses([content])
                if has_results:
                    turns[-1]["content"] += "\n" + text
                else:
                    turns.append({"role": "user", "content": text})
            else:
                calls = [
                    f"{OPEN}\n{json.dumps({'name': call.function.name, 'arguments': self._arguments(call)})}\n{CLOSE}"
                    for call in message.tool_calls or ()
                ]
                turns.append({"role": role, "content": "\n".join(filter(None, [content, *calls]))})
            has_results = message.role == "tool"
        if functions:
            if turns[0]["role"] != "system":
                turns.insert(0, {"role": "system", "content": self._chat.system_text})
            turns[0]["content"] = with_tools(turns[0]["content"], functions)
        return turns

    def _content(self, message: ChatMessage) -> str:
        content = text_of(message)
        reasoning = message.reasoning_content or message.reasoning
        if message.role == "assistant" and reasoning and REASON_END not in content:
            content = f"{reasoning}{REASON_END}{content}"
        return self._chat.harmless(content)

    def _arguments(self, call: Any) -> Any:
        """An object if the text is JSON, since templates write JSON themselves."""
        arguments = call.function.arguments
        if not isinstance(arguments, str):
            return self._harmless(arguments)
        try:
            return json.loads(self._chat.harmless(arguments))
        except (ValueError, RecursionError):
            return self._chat.harmless(arguments)

    def _harmless(self, value: dict[str, Any]) -> dict[str, Any]:
        made: dict[str, Any] = json.loads(self._chat.harmless(json.dumps(value, ensure_ascii=False)))
        return made


def role_of(message: ChatMessage) -> str:
    return "system" if message.role == "developer" else message.role


def text_of(message: ChatMessage) -> str:
    """The message's content. ApiError if a part of it is not text."""
    content = message.content or ""
    if isinstance(content, str):
        return content
    for part in content:
        if part.type != "text" or part.text is None:
            raise unsupported("messages.content", f"a part of type {part.type!r} is not text")
    return "\n".join(part.text or "" for part in content)


def forced_call(request: ChatRequest, *, is_reasoning: bool) -> str:
    """The text that forces a tool call: the end of reasoning, then the beginning of the call."""
    opening = _forced_call(request)
    return f"{REASON_END}\n{opening}" if opening and is_reasoning else opening


def _forced_call(request: ChatRequest) -> str:
    choice = request.tool_choice
    if choice is None or choice in ("none", "auto"):
        return ""
    names = [tool.function.name for tool in request.tools or ()]
    if not names:
        raise UserError("tool_choice: there are no tools to choose from; give some")
    if not isinstance(choice, NamedChoice):
        return f'{OPEN}\n{{"name": "' + (f'{names[0]}", "arguments": ' if len(names) == 1 else "")
    if choice.function.name not in names:
        raise UserError(f"tool_choice: there is no tool named {choice.function.name!r}")
    return f'{OPEN}\n{{"name": "{choice.function.name}", "arguments": '


def _knows_tools(tokenizer: HfTokenizer) -> bool:
    """Whether the template writes tools, results and, in the form that the parser reads, calls."""
    tool, call, argument, result = _MARKS
    function = {"name": tool, "description": "d", "parameters": {"type": "object", "properties": {}}}
    called = {"type": "function", "function": {"name": call, "arguments": {"x": argument}}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": "", "tool_calls": [called]},
        {"role": "tool", "content": result},
    ]
    try:
        text = tokenizer.render_request(messages, [{"type": "function", "function": function}], {})
    except UserError:
        return False
    return OPEN in text and all(mark in text for mark in _MARKS)
