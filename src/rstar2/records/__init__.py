"""The records that every part shares: problems, tool calls and results, turns, traces, groups; and how they are stored.

Promise: frozen and typed; a trace rebuilds the exact token ids, loss mask, log-probabilities and text of a rollout;
files are append-only JSON Lines that survive a kill -9 in the middle of a write.
May import: nothing of ours but `rstar2.errors`.
"""

from rstar2.records.group import Group, Selection
from rstar2.records.problem import Problem
from rstar2.records.tool import Fault, ToolCall, ToolResult, ToolStatus
from rstar2.records.trace import Outcome, StopReason, Trace, Turn, Verdict

__all__ = [
    "Fault",
    "Group",
    "Outcome",
    "Problem",
    "Selection",
    "StopReason",
    "ToolCall",
    "ToolResult",
    "ToolStatus",
    "Trace",
    "Turn",
    "Verdict",
]
