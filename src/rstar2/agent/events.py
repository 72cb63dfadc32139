"""What an observer of a rollout is told while it runs, in order. For display; the trace is the record."""

from collections.abc import Callable
from dataclasses import dataclass

from rstar2.records import Outcome, ToolCall, ToolResult


@dataclass(frozen=True, slots=True)
class TurnStarted:
    """The model begins to write; what it writes continues the opening of the turn."""

    turn: int
    opening: str


@dataclass(frozen=True, slots=True)
class TextGenerated:
    text: str


@dataclass(frozen=True, slots=True)
class TurnRestarted:
    """The engine failed in the middle: what it wrote in this turn is void, and it begins again."""

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
class Ended:
    outcome: Outcome
    note: str


AgentEvent = TurnStarted | TextGenerated | TurnRestarted | CallStarted | CallEnded | Ended
Observer = Callable[[AgentEvent], None]


def nobody(_event: AgentEvent) -> None:
    """The observer that ignores every event."""
