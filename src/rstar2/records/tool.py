"""Tool calls and their results.

What went wrong is a typed status, never a word found in the text: the penalties of GRPO-RoC, the retry rules and the
decision whether a rollout may be scored all read `ToolStatus` and nothing else.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Fault(StrEnum):
    """Who is to blame for how a call ended."""

    NONE = "none"
    POLICY = "policy"
    """The model's code or call; it sees the message, and GRPO-RoC counts it as a tool error."""
    INFRASTRUCTURE = "infrastructure"
    """Ours: retried, never shown to the model as its own error, never scored."""


class ToolStatus(StrEnum):
    """How a tool call ended."""

    OK = "ok"
    """It ran and showed something."""
    NO_OUTPUT = "no_output"
    """It ran to its end and printed nothing; a success, but often a forgotten print."""
    RAISED = "raised"
    """The program raised, exited with a code other than 0, or was ended by a signal that it caused."""
    TIMED_OUT = "timed_out"
    """It was stopped at its wall-clock or CPU limit."""
    OUT_OF_MEMORY = "out_of_memory"
    """It was stopped at its memory limit."""
    OUTPUT_TOO_LONG = "output_too_long"
    """It was stopped because it printed more than its limit; what came before is kept."""
    UNPARSABLE_CALL = "unparsable_call"
    """The text of the call is not a call (malformed JSON, missing field)."""
    UNKNOWN_TOOL = "unknown_tool"
    """A well-formed call of a tool that does not exist."""
    BAD_ARGUMENTS = "bad_arguments"
    """A known tool, with arguments that its schema refuses."""
    INFRASTRUCTURE_FAULT = "infrastructure_fault"
    """The tool could not be run through no fault of the call."""

    @property
    def fault(self) -> Fault:
        if self in (ToolStatus.OK, ToolStatus.NO_OUTPUT):
            return Fault.NONE
        if self is ToolStatus.INFRASTRUCTURE_FAULT:
            return Fault.INFRASTRUCTURE
        return Fault.POLICY

    @property
    def is_tool_error(self) -> bool:
        """True for what GRPO-RoC's `p_err` counts: the policy's own failed calls."""
        return self.fault is Fault.POLICY


def count_tool_calls(statuses: Iterable[ToolStatus]) -> tuple[int, int]:
    """Calls that the policy answers for, and how many of them failed. Faults of ours are in neither number."""
    own = [status for status in statuses if status.fault is not Fault.INFRASTRUCTURE]
    return len(own), sum(status.is_tool_error for status in own)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call as the model wrote it. `name` is None and `arguments` empty when `raw` could not be parsed."""

    raw: str
    name: str | None = None
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What came back. `text` is what the model reads, already cut to its token budget."""

    status: ToolStatus
    text: str = ""
    wall_s: float = 0.0
    cpu_s: float = 0.0
    num_attempts: int = 1
    num_cut_chars: int = 0

    @property
    def fault(self) -> Fault:
        return self.status.fault
