"""Renders a request's episodes as OpenAI's documents: one assistant message per choice, at once or in chunks.

`content` is the model's last text. `reasoning_content` is all earlier text that a person may want to see: the reasoning
of every turn, and each call and its result as Markdown. `agent_event`, in a chunk's choice, has the same for programs;
a full answer has the events of calls and results in `agent_events`. OpenAI's clients ignore both. `tool_calls` stays
empty: a client would run them itself.
"""

import json
import re
import time
from dataclasses import replace
from typing import Any

from rstar2.agent import AgentEvent
from rstar2.agent.events import (
    CallEnded,
    CallStarted,
    Ended,
    SpanReader,
    TextGenerated,
    TextKind,
    TurnRestarted,
    TurnStarted,
    UserReplied,
)
from rstar2.grading import extract_answer
from rstar2.records import Outcome, ToolCall, ToolResult, Trace
from rstar2.serve.bodies import ChatRequest
from rstar2.serve.served_model import ServedModel
from rstar2.serve.service import Usage
from rstar2.serve.sessions import random_name

Document = dict[str, Any]
_FENCE = re.compile("`{3,}")


class AgentReply:
    def __init__(self, body: ChatRequest, model: ServedModel) -> None:
        self._returns_ids = bool(body.return_token_ids)
        self._shared = {
            "id": f"chatcmpl-{random_name()}",
            "created": int(time.time()),
            "model": body.model or model.name,
        }
        self._readers = [EventReader() for _ in range(body.n or 1)]
        self._choices: list[Document] = [{} for _ in self._readers]

    def take(self, choice: int, happened: AgentEvent | Trace) -> list[Document]:
        """Take an event; returns the chunks that it adds."""
        reader = self._readers[choice]
        if isinstance(happened, Trace):
            return [self._finished(choice, happened)]
        is_first = not reader.has_begun
        shown = reader.read(happened)
        chunks = [self._chunk(choice, {"reasoning_content": text} if text else {}, event) for text, event in shown]
        if is_first:
            chunks.insert(0, self._chunk(choice, {"role": "assistant", "content": ""}))
        return chunks

    def full(self, usage: Usage) -> Document:
        """The full answer, once all choices have ended."""
        document = {**self._shared, "object": "chat.completion", "choices": self._choices, "usage": usage.body}
        if self._returns_ids:
            document["prompt_token_ids"] = self._choices[0]["prompt_token_ids"]
        return document

    def usage_document(self, usage: Usage) -> Document:
        return {**self._shared, "object": "chat.completion.chunk", "choices": [], "usage": usage.body}

    def _finished(self, choice: int, trace: Trace) -> Document:
        reader = self._readers[choice]
        content = replace(trace, turns=trace.turns[-1:]).final_text.strip()
        end = end_event(trace)
        more: Document = {
            "logprobs": None,
            "finish_reason": "stop" if trace.outcome is Outcome.ANSWERED else "length",
        }
        if self._returns_ids:
            num_prompt = len(trace.prompt_ids)
            more |= {
                "prompt_token_ids": trace.prompt_ids,
                "token_ids": trace.token_ids[num_prompt:],
                "loss_mask": [int(is_sampled) for is_sampled in trace.loss_mask[num_prompt:]],
            }
        message = {"role": "assistant", "content": content}
        if reader.reasoning:
            message["reasoning_content"] = reader.reasoning
        events = [*reader.tool_events, end]
        self._choices[choice] = {"index": choice, "message": message, **more, "agent_events": events}
        chunk = self._chunk(choice, {"content": content} if content else {}, end)
        chunk["choices"][0] |= more
        return chunk

    def _chunk(self, index: int, delta: Document, event: Document | None = None) -> Document:
        choice: Document = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        if event is not None:
            choice["agent_event"] = event
        return {**self._shared, "object": "chat.completion.chunk", "choices": [choice]}


class EventReader:
    """Reads the events of one episode: for each, the text shown as reasoning, and the event for programs."""

    def __init__(self) -> None:
        self._spans = SpanReader()
        self._opening = ""
        self._names: dict[int, str] = {}
        """The ids of the running calls, by `id(call)`."""
        self._num_calls = 0
        self.has_begun = False
        self.reasoning = ""
        self.tool_events: list[Document] = []

    def read(self, event: AgentEvent) -> list[tuple[str, Document]]:
        self.has_begun = True
        shown = self._read(event)
        self.reasoning += "".join(text for text, _ in shown)
        self.tool_events += [document for _, document in shown if document["type"].startswith("tool_")]
        return shown

    def _read(self, event: AgentEvent) -> list[tuple[str, Document]]:
        match event:
            case TurnStarted(turn=turn, opening=opening):
                self._spans, self._opening = SpanReader(), opening
                return [("\n" if turn else "", {"type": "turn", "turn": turn}), *_texts(self._spans.feed(opening))]
            case TextGenerated(text=text):
                return _texts(self._spans.feed(text))
            case TurnRestarted(turn=turn, reason=reason):
                self._spans = SpanReader()
                restart = {"type": "restart", "turn": turn, "reason": reason}
                return [("\n[the turn starts again]\n", restart), *_texts(self._spans.feed(self._opening))]
            case CallStarted(call=call):
                self._num_calls += 1
                self._names[id(call)] = f"call_{self._num_calls}"
                return [*_texts(self._spans.finish()), (call_text(call), call_event(self._names[id(call)], call))]
            case CallEnded(call=call, result=result):
                return [(_fenced(result.text), result_event(self._names.pop(id(call)), result))]
            case UserReplied(text=text):
                return [*_texts(self._spans.finish()), (f"\n> {text}\n", {"type": "user", "text": text})]
            case Ended():
                return _texts(self._spans.finish())


def _texts(pieces: list[tuple[TextKind, str]]) -> list[tuple[str, Document]]:
    """The shown text and event of each piece. A call is shown as code when it runs, not as escaped JSON while it is
    written. Text outside reasoning is only an event, as it may be the last text."""
    return [
        (text if kind is TextKind.REASON else "", {"type": "text", "kind": kind.value, "text": text})
        for kind, text in pieces
        if kind is not TextKind.CALL
    ]


def call_event(name: str, call: ToolCall) -> Document:
    """The event of a call, in the form of `tool_calls`. An unreadable call has the name null, and its text in `raw`."""
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    function = {"name": call.name, "arguments": arguments}
    return {"type": "tool_call", "id": name, "function": function} | ({"raw": call.raw} if call.name is None else {})


def result_event(name: str, result: ToolResult) -> Document:
    return {
        "type": "tool_result",
        "tool_call_id": name,
        "content": result.text,
        "status": result.status.value,
        "fault": result.fault.value,
        "wall_s": result.wall_s,
        "num_attempts": result.num_attempts,
        "num_cut_chars": result.num_cut_chars,
    }


def end_event(trace: Trace) -> Document:
    """An episode's end; `answer` is the content of the last answer box, if there is one."""
    return {
        "type": "end",
        "outcome": trace.outcome.value,
        "note": trace.note,
        "answer": extract_answer(*trace.turn_texts),
        "num_turns": len(trace.turns),
        "num_tokens": trace.num_sampled_tokens,
    }


def call_text(call: ToolCall) -> str:
    """A call as Markdown; a program is shown as code."""
    code = call.arguments.get("code")
    if isinstance(code, str):
        return _fenced(code, "python")
    return _fenced(call.raw if call.name is None else f"{call.name} {json.dumps(call.arguments, ensure_ascii=False)}")


def _fenced(text: str, language: str = "") -> str:
    """A fenced block that its own text cannot close."""
    longest = max((len(found) for found in _FENCE.findall(text)), default=2)
    fence = "`" * (longest + 1)
    return f"\n{fence}{language}\n{text.strip(chr(10))}\n{fence}\n"
