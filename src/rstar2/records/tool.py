"""Tool calls and their results.

A typed status says what went wrong, never a word found in the text: GRPO-RoC's penalties, the retry rules and the
decision whether a rollout may be scored read `ToolStatus` and nothing else.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Fault(StrEnum):
    """Who is to blame for how a call ended."""

    NONE = "none"
    POLICY = "policy"
    """The model's code or call is to blame; the model sees the message, and GRPO-RoC counts it as a tool error."""
    INFRASTRUCTURE = "infrastructure"
    """We are to blame: the call is retried, and the fault never shown to the model as its own error and never
    scored."""


class ToolStatus(StrEnum):
    """How a tool call ended."""

    OK = "ok"
    """The program ran and showed something."""
    NO_OUTPUT = "no_output"
    """The program ran to its end and printed nothing; a success, but often a forgotten print."""
    RAISED = "raised"
    """The program raised, exited with a code other than 0, or was ended by a signal that it caused."""
    TIMED_OUT = "timed_out"
    """The program was stopped at its wall-clock or CPU limit."""
    OUT_OF_MEMORY = "out_of_memory"
    """The program was stopped at its memory limit."""
    OUTPUT_TOO_LONG = "output_too_long"
    """The program was stopped because it printed more than its limit; the output up to there is kept."""
    UNPARSABLE_CALL = "unparsable_call"
    """The call's text is no valid call (malformed JSON, missing field)."""
    UNKNOWN_TOOL = "unknown_tool"
    """The call is well-formed, but there is no such tool."""
    BAD_ARGUMENTS = "bad_arguments"
    """The tool is known, but its schema refuses the arguments."""
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
        """Whether GRPO-RoC's `p_err` counts the call as failed: through the policy's own fault."""
        return self.fault is Fault.POLICY


def count_tool_calls(statuses: Iterable[ToolStatus]) -> tuple[int, int]:
    """How many calls the policy is responsible for, and how many of them failed. Our faults are in neither number."""
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
    """The result of a call. `text` is the part that the model reads, already cut to its token budget."""

    status: ToolStatus
    text: str = ""
    wall_s: float = 0.0
    cpu_s: float = 0.0
    num_attempts: int = 1
    num_cut_chars: int = 0

    @property
    def fault(self) -> Fault:
        return self.status.fault
