"""The events of a running rollout, in order, for display. The trace is the record."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from rstar2.records import Outcome, ToolCall, ToolResult


@dataclass(frozen=True, slots=True)
class TurnStarted:
    """The model begins a turn; its text continues the turn's opening."""

    turn: int
    opening: str


@dataclass(frozen=True, slots=True)
class TextGenerated:
    text: str


@dataclass(frozen=True, slots=True)
class TurnRestarted:
    """The engine failed during a turn: the text of this turn is dropped, and the turn is retried."""

    turn: int
    reason: str


@dataclass(frozen=True, slots=True)
class CallStarted:
    call: ToolCall


@dataclass(frozen=True, slots=True)
class CallEnded:
    call: ToolCall
    result: ToolResult


@dataclass(frozen=True, slots=True)
class UserReplied:
    """The user speaks after a turn that called no tool, and the model continues."""

    text: str


@dataclass(frozen=True, slots=True)
class Ended:
    outcome: Outcome
    note: str


AgentEvent = TurnStarted | TextGenerated | TurnRestarted | CallStarted | CallEnded | UserReplied | Ended
Observer = Callable[[AgentEvent], None]


def ignore_event(_event: AgentEvent) -> None:
    """The observer that ignores every event."""


class TextKind(StrEnum):
    """The part of a turn that a piece of the model's text belongs to."""

    PLAIN = "plain"
    REASON = "reason"
    CALL = "tool_call"
    ANSWER = "answer"


_TAGS = {f"<{span}>": span for span in (TextKind.REASON, TextKind.CALL, TextKind.ANSWER)} | {
    f"</{span}>": TextKind.PLAIN for span in (TextKind.REASON, TextKind.CALL, TextKind.ANSWER)
}


class SpanReader:
    """Finds the kind of each piece of one assistant turn while it streams, and takes the tags out. A piece that may be
    the start of a tag is held back until that is known."""

    def __init__(self) -> None:
        self._span = TextKind.PLAIN
        self._held = ""

    def feed(self, text: str) -> list[tuple[TextKind, str]]:
        """The pieces whose kind is known by now, in order."""
        self._held += text
        pieces: list[tuple[TextKind, str]] = []
        while self._held:
            before, bracket, rest = self._held.partition("<")
            if before:
                pieces.append((self._span, before))
            self._held = bracket + rest
            tag = next((tag for tag in _TAGS if self._held.startswith(tag)), None)
            if tag is not None:
                self._span, self._held = _TAGS[tag], self._held.removeprefix(tag)
            elif any(tag.startswith(self._held) for tag in _TAGS):
                break
            else:
                pieces.append((self._span, bracket))
                self._held = rest
        return [(span, piece) for span, piece in pieces if piece]

    def finish(self) -> list[tuple[TextKind, str]]:
        """The rest at the end of the turn: text that was held back and is no tag."""
        held, self._held = self._held, ""
        return [(self._span, held)] if held else []
