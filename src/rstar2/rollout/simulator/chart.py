"""The picture of a simulation: what every engine did, and how full its cache was. One SVG file.

Time runs to the right, on one scale for all policies. In each policy's panel every engine is a row: dark where it
decoded, red where it recomputed lost tokens, empty where it was idle. Below is the share of the cache that running
rollouts held: the mean over the engines, and the band between the emptiest and the fullest engine.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from rstar2.analysis.svg import Plot, area, band, label_at, legend, line, picture, polyline, rect, ticks
from rstar2.rollout.kv_need import Floats, Ints
from rstar2.rollout.simulator.engine import EngineTimeline
from rstar2.rollout.simulator.simulate import SimulationResult

WIDTH = 1000
LEFT, RIGHT, TOP = 150, 24, 84
ROWS_HEIGHT, CACHE_HEIGHT, GAP = 128, 56, 34
NUM_COLUMNS = 400
"""Columns of time: finer than a reader sees, coarse enough for a small file."""
NUM_SHADES = 8
BUSY, RECOMPUTING = "a", "b"


@dataclass(frozen=True, slots=True)
class _Columns:
    """What one engine did in each column of time: the shares spent busy and recomputing, and the cache in use."""

    busy: Floats
    recomputing: Floats
    used: Floats


def draw(title: str, results: Mapping[str, SimulationResult], num_cache_tokens: int, lower_bound_s: float) -> str:
    """One panel for each policy, in the order given."""
    end_s = max(result.makespan_s for result in results.values())
    panel_height = ROWS_HEIGHT + CACHE_HEIGHT + GAP
    bottom = TOP + len(results) * panel_height
    time = Plot(LEFT, TOP, WIDTH - LEFT - RIGHT, bottom - TOP - GAP, (0, end_s), (0, 1))
    parts = legend(LEFT, 68, [(BUSY, "busy, and cache in use"), (RECOMPUTING, "recomputing"), ("empty", "idle")])
    for number, (name, result) in enumerate(results.items()):
        parts += _panel(name, result, TOP + number * panel_height, end_s, num_cache_tokens)
    for at_s in ticks(0, end_s, most=10):
        parts.append(label_at(time.x(at_s), bottom - GAP + 20, f"{at_s:g} s", name="faint", anchor="middle"))
    x = time.x(lower_bound_s)
    parts.append(line(x, TOP - 4, x, bottom - GAP + 4, "axis", dashed=True))
    parts.append(label_at(x, bottom - GAP + 36, f"lower bound {lower_bound_s:.0f} s", anchor="middle"))
    about = "one row for each engine; below, the cache in use: mean, and band from the emptiest to the fullest engine"
    return picture(WIDTH, bottom + 40, title, about, parts)


def _panel(name: str, result: SimulationResult, top: float, end_s: float, num_cache_tokens: int) -> list[str]:
    engines = [_columns(timeline, end_s) for timeline in result.timelines]
    facts = (
        f"{result.makespan_s:.0f} s",
        f"idle {result.idle_share:.0%}",
        f"recomputed {result.recomputed_tokens / result.generated_tokens:.1%}",
    )
    return [
        label_at(12, top + 14, name, weight=600),
        *(label_at(12, top + 31 + 17 * row, fact) for row, fact in enumerate(facts)),
        label_at(LEFT - 8, top + ROWS_HEIGHT + 16, "100% cache", name="faint", anchor="end"),
        *_rows(engines, top),
        *_cache(engines, top + ROWS_HEIGHT + 6, num_cache_tokens),
    ]


def _columns(timeline: EngineTimeline, end_s: float) -> _Columns:
    width_s = end_s / NUM_COLUMNS
    busy, recomputing, used = np.zeros(NUM_COLUMNS), np.zeros(NUM_COLUMNS), np.zeros(NUM_COLUMNS)
    for begin_s, span_end_s, recompute_s, num_used in timeline.spans:
        first, last = int(begin_s / width_s), min(NUM_COLUMNS - 1, int(span_end_s / width_s))
        recompute_share = recompute_s / (span_end_s - begin_s) if span_end_s > begin_s else 0.0
        for column in range(first, last + 1):
            share = (min(span_end_s, (column + 1) * width_s) - max(begin_s, column * width_s)) / width_s
            busy[column] += share
            recomputing[column] += share * recompute_share
            used[column] += share * num_used
    return _Columns(busy, recomputing, used)


def _rows(engines: Sequence[_Columns], top: float) -> list[str]:
    row_height = ROWS_HEIGHT / len(engines)
    column_width = (WIDTH - LEFT - RIGHT) / NUM_COLUMNS
    parts = [rect(LEFT, top, WIDTH - LEFT - RIGHT, ROWS_HEIGHT, "empty")]
    busy, recomputing = [engine.busy for engine in engines], [engine.recomputing for engine in engines]
    for colour, rows in (BUSY, busy), (RECOMPUTING, recomputing):
        boxes: dict[int, list[tuple[float, float, float, float]]] = {}
        for row, shares in enumerate(rows):
            for first, count, shade in _runs(np.rint(shares * NUM_SHADES).astype(np.int64)):
                box = LEFT + first * column_width, top + row * row_height, count * column_width, row_height
                boxes.setdefault(shade, []).append(box)
        parts += [area(of_shade, colour, shade / NUM_SHADES) for shade, of_shade in sorted(boxes.items())]
    return parts


def _runs(shades: Ints) -> list[tuple[int, int, int]]:
    """Stretches of equal shade: first column, number of columns, shade; without those of shade 0."""
    edges = [0, *(np.flatnonzero(np.diff(shades)) + 1).tolist(), len(shades)]
    runs = [(first, after - first, int(shades[first])) for first, after in pairwise(edges)]
    return [run for run in runs if run[2] > 0]


def _cache(engines: Sequence[_Columns], top: float, num_cache_tokens: int) -> list[str]:
    plot = Plot(LEFT, top, WIDTH - LEFT - RIGHT, CACHE_HEIGHT - 6, (0, NUM_COLUMNS), (0, 1))
    shares = np.clip(np.stack([engine.used for engine in engines]) / num_cache_tokens, 0, 1)

    def points(values: Floats) -> list[tuple[float, float]]:
        return [(plot.x(column + 0.5), plot.y(value)) for column, value in enumerate(values.tolist())]

    frame = [line(LEFT, y, WIDTH - RIGHT, y, "grid") for y in (top, top + plot.height)]
    return [
        *frame,
        band(points(shares.max(axis=0)), points(shares.min(axis=0)), BUSY),
        polyline(points(shares.mean(axis=0)), BUSY),
    ]
