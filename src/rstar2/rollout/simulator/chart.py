"""The picture of a simulation: what every engine did, and how full its cache was. One SVG file, no library, no script.

Time runs to the right, on one scale for all policies of the picture. In each policy's panel every engine is a row: dark
where it decoded, red where it recomputed lost tokens, empty where it was idle. Below, the share of the cache that
running rollouts held: the mean over the engines, and the band between the emptiest and the fullest.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from xml.sax.saxutils import escape

import numpy as np

from rstar2.rollout.kv_need import Floats, Ints
from rstar2.rollout.simulator.engine import EngineTimeline
from rstar2.rollout.simulator.simulate import SimulationResult

WIDTH = 1000
LEFT, RIGHT, TOP = 150, 24, 64
ROWS_HEIGHT, CACHE_HEIGHT, GAP = 128, 56, 34
NUM_COLUMNS = 400
"""Columns of time: finer than a reader sees, coarse enough for a small file."""
NUM_SHADES = 8
BUSY, RECOMPUTED, BAND, LINE, TEXT, AXIS = "#1f6f8b", "#d1495b", "#c8dde4", "#1f6f8b", "#222", "#999"


@dataclass(frozen=True, slots=True)
class _Columns:
    """Of one engine, in each column of time: the shares spent busy and recomputing, and the cache in use."""

    busy: Floats
    recomputed: Floats
    used: Floats


def draw(title: str, results: Mapping[str, SimulationResult], num_cache_tokens: int, lower_bound_s: float) -> str:
    """One panel for each policy, in the order given."""
    end_s = max(result.makespan_s for result in results.values())
    panel_height = ROWS_HEIGHT + CACHE_HEIGHT + GAP
    height = TOP + len(results) * panel_height + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'font-family="system-ui, sans-serif" font-size="12" fill="{TEXT}">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="{LEFT}" y="24" font-size="16" font-weight="600">{escape(title)}</text>',
        *_legend(),
    ]
    for number, (name, result) in enumerate(results.items()):
        parts += _panel(name, result, TOP + number * panel_height, end_s, num_cache_tokens)
    parts += _time_axis(TOP + len(results) * panel_height - GAP + 4, end_s, lower_bound_s)
    return "\n".join([*parts, "</svg>", ""])


def _x(at_s: float, end_s: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * at_s / end_s


def _legend() -> list[str]:
    items = [(BUSY, "busy"), (RECOMPUTED, "recomputing"), ("#f1f1f1", "idle"), (BAND, "cache in use, all engines")]
    parts, x = [], LEFT
    for colour, label in items:
        parts.append(
            f'<rect x="{x}" y="36" width="12" height="12" fill="{colour}" stroke="{AXIS}" stroke-width="0.5"/>'
        )
        parts.append(f'<text x="{x + 18}" y="46">{label}</text>')
        x += 40 + 7 * len(label)
    return parts


def _panel(name: str, result: SimulationResult, top: float, end_s: float, num_cache_tokens: int) -> list[str]:
    share = result.recomputed_tokens / result.generated_tokens
    engines = [_columns(timeline, end_s) for timeline in result.timelines]
    bottom = top + ROWS_HEIGHT + CACHE_HEIGHT
    labels = [(name, 'font-weight="600"'), (f"{result.makespan_s:.0f} s", ""), (f"idle {result.idle_share:.0%}", "")]
    labels.append((f"recomputed {share:.1%}", ""))
    texts = [
        f'<text x="12" y="{top + 14 + 17 * row}" {style}>{text}</text>' for row, (text, style) in enumerate(labels)
    ]
    return [
        *texts,
        f'<text x="{LEFT - 8}" y="{bottom - CACHE_HEIGHT + 16}" text-anchor="end" fill="{AXIS}">100% cache</text>',
        *_rows(engines, top),
        *_cache(engines, top + ROWS_HEIGHT + 6, CACHE_HEIGHT - 6, num_cache_tokens),
    ]


def _columns(timeline: EngineTimeline, end_s: float) -> _Columns:
    width_s = end_s / NUM_COLUMNS
    busy, recomputed, used = np.zeros(NUM_COLUMNS), np.zeros(NUM_COLUMNS), np.zeros(NUM_COLUMNS)
    for begin_s, span_end_s, recompute_s, num_used in timeline.spans:
        first, last = int(begin_s / width_s), min(NUM_COLUMNS - 1, int(span_end_s / width_s))
        recompute_share = recompute_s / (span_end_s - begin_s) if span_end_s > begin_s else 0.0
        for column in range(first, last + 1):
            inside_s = min(span_end_s, (column + 1) * width_s) - max(begin_s, column * width_s)
            busy[column] += inside_s / width_s
            recomputed[column] += inside_s / width_s * recompute_share
            used[column] += inside_s / width_s * num_used
    return _Columns(busy, recomputed, used)


def _rows(engines: Sequence[_Columns], top: float) -> list[str]:
    row_height = ROWS_HEIGHT / len(engines)
    column_width = (WIDTH - LEFT - RIGHT) / NUM_COLUMNS
    parts = [f'<rect x="{LEFT}" y="{top}" width="{WIDTH - LEFT - RIGHT}" height="{ROWS_HEIGHT}" fill="#f1f1f1"/>']
    for colour, rows in (
        (BUSY, [engine.busy for engine in engines]),
        (RECOMPUTED, [engine.recomputed for engine in engines]),
    ):
        paths: dict[int, list[str]] = {}
        for row, shares in enumerate(rows):
            shades = np.rint(shares * NUM_SHADES).astype(np.int64)
            for first, count, shade in _runs(shades):
                x, y = LEFT + first * column_width, top + row * row_height
                paths.setdefault(shade, []).append(
                    f"M{x:.1f} {y:.2f}h{count * column_width:.1f}v{row_height:.2f}H{x:.1f}z"
                )
        for shade, path in sorted(paths.items()):
            parts.append(f'<path fill="{colour}" fill-opacity="{shade / NUM_SHADES:.2f}" d="{"".join(path)}"/>')
    return parts


def _runs(shades: Ints) -> list[tuple[int, int, int]]:
    """Stretches of equal shade: first column, number of columns, shade; without those of shade 0."""
    edges = [0, *(np.flatnonzero(np.diff(shades)) + 1).tolist(), len(shades)]
    runs = [(first, after - first, int(shades[first])) for first, after in pairwise(edges)]
    return [run for run in runs if run[2] > 0]


def _cache(engines: Sequence[_Columns], top: float, height: float, num_cache_tokens: int) -> list[str]:
    shares = np.clip(np.stack([engine.used for engine in engines]) / num_cache_tokens, 0, 1)
    xs = LEFT + (WIDTH - LEFT - RIGHT) * (np.arange(NUM_COLUMNS) + 0.5) / NUM_COLUMNS

    def points(values: Floats, order: int = 1) -> str:
        ys = top + height * (1 - values)
        return " ".join(f"{x:.1f},{y:.1f}" for x, y in list(zip(xs, ys, strict=True))[::order])

    band = f"{points(shares.max(axis=0))} {points(shares.min(axis=0), -1)}"
    return [
        f'<rect x="{LEFT}" y="{top}" width="{WIDTH - LEFT - RIGHT}" height="{height}" fill="none" stroke="{AXIS}" '
        f'stroke-width="0.5"/>',
        f'<polygon points="{band}" fill="{BAND}"/>',
        f'<polyline points="{points(shares.mean(axis=0))}" fill="none" stroke="{LINE}" stroke-width="1.5"/>',
    ]


def _time_axis(y: float, end_s: float, lower_bound_s: float) -> list[str]:
    round_numbers = (mantissa * 10.0**power for power in range(-3, 7) for mantissa in (1, 2, 5))
    step_s = next(step for step in round_numbers if end_s / step <= 10)
    parts = []
    at_s = 0.0
    while at_s <= end_s:
        parts.append(
            f'<text x="{_x(at_s, end_s):.1f}" y="{y + 16}" text-anchor="middle" fill="{AXIS}">{at_s:g} s</text>'
        )
        at_s += step_s
    x = _x(lower_bound_s, end_s)
    parts.append(
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 4}" y2="{y}" stroke="{TEXT}" stroke-width="1" '
        f'stroke-dasharray="4 3"/>'
    )
    parts.append(f'<text x="{x:.1f}" y="{y + 32}" text-anchor="middle">lower bound {lower_bound_s:.0f} s</text>')
    return parts
