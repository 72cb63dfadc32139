"""Converts our rollout into the trace that verifiers' rewards read. Imports verifiers.

Invariant: the token ids along the trace's one branch are the ids that the engine saw.
"""

import json
from collections.abc import Sequence
from typing import Any

from verifiers.v1 import AssistantMessage, MessageNode, ModelCall, ToolCall, ToolMessage, Usage, UserMessage
from verifiers.v1 import Tool as ToolDefinition

from rstar2.agent import ToolSchema
from rstar2.agent.chat_template import REASON_END
from rstar2.agent.parse import OPEN as CALL_OPEN
from rstar2.records import StopReason, Trace, Turn

MODEL = "rstar2"


def assistant_message(text: str, calls: Sequence[ToolCall] = ()) -> AssistantMessage:
    """The model's text as a chat server returns it: with reasoning and calls separated."""
    reasoning, end, content = text.partition(REASON_END)
    if not end:
        reasoning, content = "", text
    content = content.partition(CALL_OPEN)[0] if calls else content
    return AssistantMessage(
        content=content.strip(), reasoning_content=reasoning.strip() or None, tool_calls=list(calls) or None
    )


def tool_definitions(schemas: Sequence[ToolSchema]) -> list[ToolDefinition]:
    return [
        ToolDefinition(name=schema.name, description=schema.description, parameters=dict(schema.parameters))
        for schema in schemas
    ]


class VerifiersTraceWriter:
    """Appends to a trace of verifiers, message by message."""

    def __init__(self, trace: Any) -> None:
        self._trace = trace

    def add(
        self, message: Any, *, sampled: bool = False, token_ids: Sequence[int] = (), turn: Turn | None = None
    ) -> None:
        nodes = self._trace.nodes
        nodes.append(
            MessageNode(
                parent=len(nodes) - 1 if nodes else None,
                message=message,
                sampled=sampled,
                token_ids=list(token_ids),
                mask=[sampled] * len(token_ids),
                logprobs=list(turn.log_probs) if turn else [],
            )
        )

    def rewrite(
        self,
        prompt: Sequence[Any],
        schemas: Sequence[ToolSchema],
        trace: Trace,
        said: Sequence[str],
        heard: Sequence[str],
    ) -> None:
        """Replace what was appended during the rollout by the whole rollout. `prompt` are the messages before the first
        turn; `said` and `heard` are the texts of the turns without calls, and the user's replies."""
        self._trace.nodes.clear()
        self._trace.calls.clear()
        self._trace.tools = tool_definitions(schemas)
        waiting, num_before = list(trace.prompt_ids), len(trace.prompt_ids)
        for message in prompt[:-1]:
            self.add(message)
        self.add(prompt[-1], token_ids=waiting)
        texts, replies = iter(said), iter(heard)
        for number, turn in enumerate(trace.turns):
            calls = [_call(number, index, turn) for index in range(len(turn.calls))]
            is_own = not turn.calls and turn.stop_reason is StopReason.END_OF_TURN
            text = next(texts, turn.text) if is_own else turn.text
            self.add(assistant_message(text, calls), sampled=True, token_ids=turn.token_ids, turn=turn)
            self._add_call(turn, num_before)
            num_before += len(turn.token_ids) + len(turn.appended_ids)
            after = [_result(call, result.text) for call, result in zip(calls, turn.results, strict=False)]
            if is_own and turn.appended_ids:
                after = [UserMessage(content=next(replies, ""))]
            for index, message in enumerate(after):
                self.add(message, token_ids=turn.appended_ids if index == 0 else ())
        if self._trace.nodes:
            self._trace.nodes[0].tools = self._trace.tools

    def _add_call(self, turn: Turn, num_before: int) -> None:
        finish = "tool_calls" if turn.calls else "stop"
        usage = Usage(prompt_tokens=num_before, completion_tokens=len(turn.token_ids))
        self._trace.calls.append(
            ModelCall(
                node=len(self._trace.nodes) - 1,
                model=MODEL,
                finish_reason="length" if turn.stop_reason is StopReason.TOKEN_LIMIT else finish,
                usage=usage,
            )
        )


def _call(number: int, index: int, turn: Turn) -> ToolCall:
    call = turn.calls[index]
    # A call that could not be parsed has no name; its text replaces the arguments.
    arguments = json.dumps(call.arguments) if call.name else call.raw
    return ToolCall(id=f"call_{number}_{index}", name=call.name or "unparsable", arguments=arguments)


def _result(call: ToolCall, text: str) -> ToolMessage:
    return ToolMessage(tool_call_id=call.id, content=text, name=call.name)
