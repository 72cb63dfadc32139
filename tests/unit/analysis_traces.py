"""Traces made by hand, token by token: a text with `|` between its tokens, and a number for each of them."""

import json
from collections.abc import Sequence
from typing import Any

from rstar2.records import Outcome, StopReason, ToolCall, ToolResult, ToolStatus, Trace, Turn


class HandTexts:
    """Satisfies `TokenTexts`; an id is given to each new piece."""

    def __init__(self) -> None:
        self._pieces: list[str] = []

    def pieces(self, token_ids: Sequence[int]) -> list[str]:
        return [self._pieces[token_id] for token_id in token_ids]

    def ids(self, pieces: Sequence[str]) -> tuple[int, ...]:
        self._pieces += [piece for piece in dict.fromkeys(pieces) if piece not in self._pieces]
        return tuple(self._pieces.index(piece) for piece in pieces)

    def turn(self, split: str, entropies: Sequence[float] | None = None, **fields: Any) -> Turn:
        """Without `entropies`, each is 0.5."""
        pieces = split.split("|")
        values = [0.5] * len(pieces) if entropies is None else entropies
        fields = {"stop_reason": StopReason.END_OF_TURN, "log_probs": (), "entropies": tuple(values), **fields}
        return Turn(token_ids=self.ids(pieces), text="".join(pieces), **fields)


def make_trace(*turns: Turn, id: str = "t", outcome: Outcome = Outcome.ANSWERED, **fields: Any) -> Trace:
    return Trace(id, "p", (1,), "P", turns, outcome, **fields)


def make_call(code: str) -> ToolCall:
    arguments = {"code": code, "input": ""}
    return ToolCall(json.dumps({"name": "python", "arguments": arguments}), "python", arguments)


OK = ToolResult(ToolStatus.OK, "42")
NAME_ERROR = ToolResult(ToolStatus.RAISED, "Traceback\n  line 3\nNameError: name 'x' is not defined")
TYPE_ERROR = ToolResult(ToolStatus.RAISED, "Traceback\n  line 3\nTypeError: 'int' object is not callable")
TIMEOUT = ToolResult(ToolStatus.TIMED_OUT, "[Timed out: 10 s of wall clock.]")
OURS = ToolResult(ToolStatus.INFRASTRUCTURE_FAULT, "gone")


def calling_turn(code: str, result: ToolResult | None) -> Turn:
    """A turn of one token without entropies, for what looks at calls alone."""
    results = () if result is None else (result,)
    return Turn((1,), (), "x", StopReason.END_OF_TURN, calls=(make_call(code),), results=results)


def silent_turn() -> Turn:
    return Turn((1,), (), "x", StopReason.END_OF_TURN)
