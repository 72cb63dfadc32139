"""The share of tool calls that failed, in right and in wrong traces, step by step. Pure."""

from dataclasses import dataclass, replace
from typing import Self

from rstar2.records import Trace


@dataclass(frozen=True, slots=True)
class CallCount:
    num_traces: int = 0
    num_calls: int = 0
    """Calls that returned; one that was pending when the rollout ended, or failed through our fault, is not counted."""
    num_errors: int = 0

    @property
    def error_share(self) -> float | None:
        """The share of failed calls; None without a call."""
        return self.num_errors / self.num_calls if self.num_calls else None

    def with_trace(self, trace: Trace) -> Self:
        num_calls, num_errors = trace.own_calls
        return replace(
            self,
            num_traces=self.num_traces + 1,
            num_calls=self.num_calls + num_calls,
            num_errors=self.num_errors + num_errors,
        )


@dataclass(frozen=True, slots=True)
class StepErrors:
    step: int
    right: CallCount
    wrong: CallCount
    num_unscored: int
    """Traces that are neither right nor wrong: not graded, undecided, or ended by our own fault."""


class ErrorCollector:
    """Adds up the calls of traces, of any steps in any order."""

    def __init__(self) -> None:
        self._rows: dict[int, StepErrors] = {}

    def add(self, trace: Trace) -> None:
        row = self._rows.get(trace.step, StepErrors(trace.step, CallCount(), CallCount(), 0))
        match trace.is_right:
            case True:
                row = replace(row, right=row.right.with_trace(trace))
            case False:
                row = replace(row, wrong=row.wrong.with_trace(trace))
            case None:
                row = replace(row, num_unscored=row.num_unscored + 1)
        self._rows[trace.step] = row

    def rows(self) -> tuple[StepErrors, ...]:
        return tuple(self._rows[step] for step in sorted(self._rows))
