"""The share of tool calls that failed, in right and in wrong traces, step by step. Pure."""

from dataclasses import dataclass, replace

from rstar2.records import Fault, Trace, Verdict


@dataclass(frozen=True, slots=True)
class CallCount:
    num_traces: int = 0
    num_calls: int = 0
    """That came back; one that was pending when the rollout ended, or failed through our fault, is not counted."""
    num_errors: int = 0

    @property
    def error_share(self) -> float | None:
        """None without a call."""
        return self.num_errors / self.num_calls if self.num_calls else None


@dataclass(frozen=True, slots=True)
class StepErrors:
    step: int
    right: CallCount
    wrong: CallCount
    num_unscored: int
    """Traces that are neither: not graded, undecided, or ended by a fault of ours."""


def is_right(trace: Trace) -> bool | None:
    """By its reward; without one, by its verdict. None if nobody judged it."""
    if trace.reward is not None:
        return trace.reward > 0
    if trace.verdict is None or trace.verdict is Verdict.UNDECIDED:
        return None
    return trace.verdict is Verdict.RIGHT


class ErrorCollector:
    """Adds up traces, of any steps in any order."""

    def __init__(self) -> None:
        self._rows: dict[int, StepErrors] = {}

    def add(self, trace: Trace) -> None:
        row = self._rows.get(trace.step, StepErrors(trace.step, CallCount(), CallCount(), 0))
        match is_right(trace):
            case True:
                row = replace(row, right=_with(row.right, trace))
            case False:
                row = replace(row, wrong=_with(row.wrong, trace))
            case None:
                row = replace(row, num_unscored=row.num_unscored + 1)
        self._rows[trace.step] = row

    def rows(self) -> tuple[StepErrors, ...]:
        return tuple(self._rows[step] for step in sorted(self._rows))


def _with(count: CallCount, trace: Trace) -> CallCount:
    own = [result for result in trace.results if result.fault is not Fault.INFRASTRUCTURE]
    num_errors = sum(result.status.is_tool_error for result in own)
    return CallCount(count.num_traces + 1, count.num_calls + len(own), count.num_errors + num_errors)
