"""The records that every part shares: problems, tool calls and results, turns, traces, groups; and how they are stored.

Promise: frozen and typed; a trace rebuilds the exact token ids, loss mask, log-probabilities and text of a rollout;
files are append-only JSON Lines that survive a kill -9 in the middle of a write.
May import: nothing.
"""

from rstar2.records.problem import Group, Problem, Selection
from rstar2.records.run_dir import RunDirectory
from rstar2.records.run_info import Event, RunInfo, RunStatus, StepMetrics
from rstar2.records.run_layout import make_run_folder
from rstar2.records.run_view import RunView
from rstar2.records.schedule import EngineSample, EngineUse, RolloutSpan, SpanKind, StepRecord
from rstar2.records.tool import Fault, ToolCall, ToolResult, ToolStatus, count_tool_calls
from rstar2.records.trace import ANSWER_CLOSE, ANSWER_OPEN, Outcome, StopReason, Trace, Turn, Verdict, answer_blocks

__all__ = [
    "ANSWER_CLOSE",
    "ANSWER_OPEN",
    "EngineSample",
    "EngineUse",
    "Event",
    "Fault",
    "Group",
    "Outcome",
    "Problem",
    "RolloutSpan",
    "RunDirectory",
    "RunInfo",
    "RunStatus",
    "RunView",
    "Selection",
    "SpanKind",
    "StepMetrics",
    "StepRecord",
    "StopReason",
    "ToolCall",
    "ToolResult",
    "ToolStatus",
    "Trace",
    "Turn",
    "Verdict",
    "answer_blocks",
    "count_tool_calls",
    "make_run_folder",
]
