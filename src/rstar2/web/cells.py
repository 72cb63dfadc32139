"""A turn as the cells of a notebook: reasoning, code with its output, answer. Pure.

Invariant: nothing of the turn's text is lost but blank space between cells: tags become the kind of their cell, a
call's text becomes the call as it was parsed, and everything else becomes a separate cell, in order.
"""

import json
import re
from dataclasses import dataclass
from enum import StrEnum

from rstar2.records import ToolCall, ToolResult, Turn


class CellKind(StrEnum):
    PLAIN = "plain"
    REASON = "reason"
    CALL = "tool_call"
    ANSWER = "answer"


OPENING = "<reason>"
"""How the environment opens an assistant turn: what the model then writes is reasoning from its first token."""

_TAG = re.compile(r"<(/?)(reason|tool_call|answer)>")


@dataclass(frozen=True, slots=True)
class Cell:
    kind: CellKind
    text: str
    call: ToolCall | None = None
    result: ToolResult | None = None


def cells_of(turn: Turn, before: str) -> list[Cell]:
    """`before` is the last text of the environment, which the turn continues."""
    cells: list[Cell] = []
    num_calls = 0
    for kind, text in _spans(turn.text, CellKind.REASON if before.endswith(OPENING) else CellKind.PLAIN):
        if kind is CellKind.CALL and num_calls < len(turn.calls):
            cells.append(_call_cell(turn, num_calls))
            num_calls += 1
        elif text.strip():
            cells.append(Cell(kind, text.strip()))
    return cells + [_call_cell(turn, number) for number in range(num_calls, len(turn.calls))]


def _spans(text: str, kind: CellKind) -> list[tuple[CellKind, str]]:
    spans, start = [], 0
    for tag in _TAG.finditer(text):
        spans.append((kind, text[start : tag.start()]))
        kind, start = CellKind.PLAIN if tag[1] else CellKind(tag[2]), tag.end()
    spans.append((kind, text[start:]))
    # A call may be empty of text and still be a call that came back as an error.
    return [(kind, piece) for kind, piece in spans if piece or kind is CellKind.CALL]


def _call_cell(turn: Turn, number: int) -> Cell:
    call = turn.calls[number]
    result = turn.results[number] if number < len(turn.results) else None
    return Cell(CellKind.CALL, call_text(call), call, result)


def call_text(call: ToolCall) -> str:
    """The code of a call where it has one, else its arguments, else what was written."""
    code = call.arguments.get("code")
    if isinstance(code, str):
        return code.strip("\n")
    if call.name is not None:
        return json.dumps(call.arguments, indent=2, ensure_ascii=False)
    return call.raw.strip("\n")
