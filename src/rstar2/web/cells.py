"""Splits a turn into the cells of a notebook: reasoning, calls with their results, answer, the user's reply. Pure.

Invariant: only blank space between cells is lost of the turn's text: tags become the kind of their cell, a call's text
becomes the parsed call, and other text becomes a separate cell, in order.
"""

import json
import re
from dataclasses import dataclass
from enum import StrEnum

from rstar2.records import ToolCall, ToolResult, Turn
from rstar2.web.messages import user_text


class CellKind(StrEnum):
    PLAIN = "plain"
    REASON = "reason"
    CALL = "tool_call"
    ANSWER = "answer"


OPENING = "<reason>"
"""The environment's opening of an assistant turn; the model's text after it is reasoning from the first token."""

PYTHON_TOOLS = frozenset({"execute_python_code_with_standard_io", "jupyter_code", "python"})
"""The tools whose argument `code` is a Python program."""

_TAG = re.compile(r"<(/?)(reason|tool_call|answer)>")
_END_MARK = re.compile(r"<\|\w+\|>\s*\Z")


@dataclass(frozen=True, slots=True)
class TraceCell:
    kind: CellKind
    text: str
    call: ToolCall | None = None
    result: ToolResult | None = None


def cells_of(turn: Turn, before: str) -> list[TraceCell]:
    """The cells of a turn. `before` is the environment's text that the turn continues."""
    cells: list[TraceCell] = []
    num_calls = 0
    for kind, text in _spans(turn.text, CellKind.REASON if before.endswith(OPENING) else CellKind.PLAIN):
        if kind is CellKind.CALL and num_calls < len(turn.calls):
            cells.append(_call_cell(turn, num_calls))
            num_calls += 1
        elif text.strip():
            cells.append(TraceCell(kind, text.strip()))
    return cells + [_call_cell(turn, number) for number in range(num_calls, len(turn.calls))]


def _spans(text: str, kind: CellKind) -> list[tuple[CellKind, str]]:
    spans, start = [], 0
    for tag in _TAG.finditer(text):
        spans.append((kind, text[start : tag.start()]))
        kind, start = CellKind.PLAIN if tag[1] else CellKind(tag[2]), tag.end()
    # The control token that ends a turn is not part of its text.
    mark = _END_MARK.search(text, start)
    end = mark.start() if mark else len(text)
    spans += [(kind, text[start:end]), (CellKind.PLAIN, text[end:])]
    # An empty call is still a call, and came back as an error.
    return [(kind, piece) for kind, piece in spans if piece or kind is CellKind.CALL]


def _call_cell(turn: Turn, number: int) -> TraceCell:
    call = turn.calls[number]
    result = turn.results[number] if number < len(turn.results) else None
    return TraceCell(CellKind.CALL, call_text(call), call, result)


def reply_after(turn: Turn) -> str:
    """The user's reply to the turn; empty if tools answered, or there was none."""
    return "" if turn.calls else user_text(turn.appended_text)


def call_text(call: ToolCall) -> str:
    """The program of a Python tool; empty for another tool; the raw text of an unreadable call."""
    if call.name is None:
        return call.raw.strip("\n")
    return str(call.arguments["code"]).strip("\n") if is_python(call) else ""


def is_python(call: ToolCall) -> bool:
    return call.name in PYTHON_TOOLS and isinstance(call.arguments.get("code"), str)


def call_arguments(call: ToolCall) -> list[tuple[str, str]]:
    """The arguments by name, without the program of a Python tool: texts as they are, other values as JSON."""
    shown = {name: value for name, value in call.arguments.items() if not (name == "code" and is_python(call))}
    return [
        (name, value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False))
        for name, value in shown.items()
    ]
