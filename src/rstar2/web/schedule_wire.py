"""Condenses the engines' activity in one step for drawing: time is cut into columns. Pure."""

from typing import Any

from rstar2.records import StepRecord

NUM_COLUMNS = 240
"""The number of time columns in a chart: finer than a reader sees."""
MAX_ENGINES = 256
MAX_PATH_SPANS = 500


def schedule_json(record: StepRecord) -> dict[str, Any]:
    duration_s = max([record.duration_s, *(sample.at_s for sample in record.samples)]) or 1.0
    turns: dict[str, list[float | None]] = {}
    shares: dict[str, list[float | None]] = {}
    for sample in record.samples:
        column = min(NUM_COLUMNS - 1, int(sample.at_s / duration_s * NUM_COLUMNS))
        for table, value in ((turns, float(sample.num_turns)), (shares, sample.kv_share)):
            row = table.setdefault(sample.engine, [None] * NUM_COLUMNS)
            row[column] = max(value, row[column] or 0.0)
    engines = [
        {
            "engine": use.engine,
            "joined_s": use.joined_s,
            "left_s": use.left_s,
            "busy_s": use.busy_s,
            "idle_s": use.idle_s,
            "mean_turns": use.mean_turns,
            "peak_kv_share": use.peak_kv_share,
            "num_preemptions": use.num_preemptions,
            "num_new_tokens": use.num_new_tokens,
            "num_prefill_tokens": use.num_prefill_tokens,
            "num_generated_tokens": use.num_generated_tokens,
            "turns": _held(turns.get(use.engine), use.joined_s / duration_s, use.left_s / duration_s),
            "kv_shares": _held(shares.get(use.engine), use.joined_s / duration_s, use.left_s / duration_s),
        }
        for use in record.engines[:MAX_ENGINES]
    ]
    return {
        "step": record.step,
        "duration_s": duration_s,
        "num_engines": len(record.engines),
        "engines": engines,
        "facts": [
            ["rollouts", record.num_rollouts],
            ["starts", record.num_starts],
            ["moves", record.num_moves],
            ["tokens moved", record.num_moved_tokens],
            ["turns cancelled", record.num_cancels],
            ["caches evicted", record.num_evictions],
            ["engines lost", record.num_engines_lost],
        ],
        "times": [["queued", record.queued_s], ["generating", record.generating_s], ["tool", record.tool_s]],
        "critical_rollout": record.critical_rollout,
        "critical_path": [
            [span.kind.value, span.start_s, span.end_s, span.engine] for span in record.critical_path[:MAX_PATH_SPANS]
        ],
    }


def _held(row: list[float | None] | None, joined: float, left: float) -> list[float | None]:
    """Fill columns without a sample with the last value; None before the engine joined and after it left."""
    last, held = 0.0, list[float | None]()
    for column, value in enumerate(row or [None] * NUM_COLUMNS):
        last = last if value is None else value
        inside = joined * NUM_COLUMNS <= column + 1 and column <= left * NUM_COLUMNS
        held.append(round(last, 3) if inside else None)
    return held
