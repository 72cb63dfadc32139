"""Statistics of the tool calls of a step: how they ended, and how long they took. Pure."""

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from rstar2.records import count_tool_calls
from rstar2.web.step_reader import RolloutRow
from rstar2.web.summary import CallSummary

FIRST_BIN_S, BINS_PER_DECADE, NUM_BINS = 1e-4, 4, 28
"""Logarithmic bins from a tenth of a millisecond to a thousand seconds."""
NUM_SLOWEST = 12


def tool_call_statistics(rows: Sequence[RolloutRow]) -> dict[str, Any]:
    walls: dict[str, list[float]] = defaultdict(list)
    by_tool: dict[str, list[CallSummary]] = defaultdict(list)
    bins: dict[str, list[int]] = {"none": [0] * NUM_BINS, "policy": [0] * NUM_BINS, "infrastructure": [0] * NUM_BINS}
    all_calls = [(call, row) for row in rows for call in row.summary.calls]
    for call, _ in all_calls:
        walls[call.status.value].append(call.wall_s)
        by_tool[call.tool].append(call)
        bins[call.status.fault.value][_bin(call.wall_s)] += 1
    num_own_calls, num_errors = count_tool_calls(call.status for call, _ in all_calls)
    slowest = sorted(all_calls, key=lambda item: -item[0].wall_s)[:NUM_SLOWEST]
    return {
        "num_rollouts": len(rows),
        "num_without": sum(not row.summary.num_calls for row in rows),
        "num_calls": len(all_calls),
        "num_own_calls": num_own_calls,
        "num_errors": num_errors,
        "num_retried": sum(call.num_attempts > 1 for call, _ in all_calls),
        "statuses": [
            {"status": status, "count": len(times), **_spread(times)}
            for status, times in sorted(walls.items(), key=lambda item: -len(item[1]))
        ],
        "tools": [
            {"name": name, "count": len(calls), "num_errors": _num_errors(calls), **_spread([c.wall_s for c in calls])}
            for name, calls in sorted(by_tool.items(), key=lambda item: -len(item[1]))
        ],
        "all": _spread([call.wall_s for call, _ in all_calls]),
        "bin_edges_s": [FIRST_BIN_S * 10 ** (n / BINS_PER_DECADE) for n in range(NUM_BINS + 1)],
        "bins": bins,
        "slowest": [
            {"at": row.start, "id": row.summary.id, "status": call.status.value, "wall_s": call.wall_s}
            for call, row in slowest
        ],
    }


def _num_errors(calls: Sequence[CallSummary]) -> int:
    return count_tool_calls(call.status for call in calls)[1]


def _bin(wall_s: float) -> int:
    if wall_s <= FIRST_BIN_S:
        return 0
    return min(NUM_BINS - 1, int(math.log10(wall_s / FIRST_BIN_S) * BINS_PER_DECADE))


def _spread(times: Sequence[float]) -> dict[str, float | None]:
    ordered = sorted(times)
    if not ordered:
        return {"mean_s": None, "p50_s": None, "p90_s": None, "p99_s": None, "max_s": None}

    def quantile(share: float) -> float:
        return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]

    return {
        "mean_s": sum(ordered) / len(ordered),
        "p50_s": quantile(0.5),
        "p90_s": quantile(0.9),
        "p99_s": quantile(0.99),
        "max_s": ordered[-1],
    }
