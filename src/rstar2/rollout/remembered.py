"""Rollouts that had ended before their run was interrupted: each is given back once, and not rolled out again."""

from collections.abc import Mapping, Sequence

from rstar2.records import Outcome, Trace, Verdict
from rstar2.rollout.request import RolloutRequest


class Remembered:
    """Those that our fault spoilt are not among them."""

    def __init__(self, traces: Mapping[str, Trace] | None = None) -> None:
        self._traces = {
            trace_id: trace
            for trace_id, trace in (traces or {}).items()
            if trace.outcome is not Outcome.INFRASTRUCTURE_FAULT and trace.verdict is not Verdict.UNDECIDED
        }

    def recall(self, requests: Sequence[RolloutRequest]) -> dict[str, Trace]:
        """By id, those of the requests that are known."""
        found = {}
        for request in requests:
            trace = self._traces.pop(request.trace_id, None)
            if trace is not None and (trace.problem_id, trace.step) == (request.problem.id, request.step):
                found[request.trace_id] = trace
        return found
