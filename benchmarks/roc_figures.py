"""What roc_ablation.py found, as a table and as a figure. Pure: both are made from its JSON document alone.

After ± and in the bands is the standard deviation over seeds. A point of a line is the mean of the last five steps, so
its right end is the number in the table.
"""

from collections.abc import Callable, Sequence
from statistics import fmean, stdev
from typing import Any, TypedDict

from rstar2.analysis.svg import PALETTE, Plot, band, label_at, legend, picture, polyline

HELD_OUT = "held_out/"
"""Before a benchmark's name: its accuracy at the end."""
NUM_LAST_STEPS = 5
LABELS = {
    "tool_error_share_right": "tool errors in right rollouts",
    "response_tokens_mean": "response tokens",
    "accuracy": "accuracy in training",
}
PANELS: dict[str, Callable[[float], str]] = {
    "accuracy": lambda share: f"{100 * share:g}%",
    "tool_error_share_right": lambda share: f"{100 * share:g}%",
    "response_tokens_mean": "{:g}".format,
}
"""Measure: how a value is written at its axis."""
WIDTH, TOP, PANEL_HEIGHT, PANEL_PITCH = 860, 100, 190, 260


class Learnt(TypedDict):
    """What one run came to."""

    final: dict[str, float]
    """Held-out accuracies at the end; of every other measure, the mean of its last steps."""
    steps: dict[str, list[float]]


class Found(TypedDict):
    """The JSON document. Seeds are texts, as in JSON."""

    recipe: str
    settings: dict[str, Any]
    machine: str
    arms: dict[str, dict[str, Learnt]]


def draw_table(found: Found) -> str:
    arms = {arm: list(runs.values()) for arm, runs in found["arms"].items() if runs}
    names = [name for runs in arms.values() for run in runs for name in run["final"]]
    held_out = {name: f"held-out accuracy: {name.removeprefix(HELD_OUT)}" for name in names if name not in LABELS}
    lines = [f"{'':34}" + "".join(f"{arm:>18}" for arm in arms)]
    lines.append(f"{'seeds':34}" + "".join(f"{len(runs):>18}" for runs in arms.values()))
    for name, words in {**held_out, **LABELS}.items():
        cells = [
            "{:.3f} ± {:.3f}".format(*mean_and_spread([run["final"][name] for run in runs])) for runs in arms.values()
        ]
        lines.append(f"{words:34}" + "".join(f"{cell:>18}" for cell in cells))
    return "\n".join(lines)


def draw_figure(found: Found) -> str:
    arms = {arm: list(runs.values()) for arm, runs in found["arms"].items() if runs}
    colours = dict(zip(arms, PALETTE, strict=False))
    parts = legend(80, 78, [(colour, arm) for arm, colour in colours.items()])
    parts.append(label_at(830, 78, "line: mean over seeds; band: standard deviation", name="faint", anchor="end"))
    for number, (name, show) in enumerate(PANELS.items()):
        curves = {arm: curve([run["steps"][name] for run in runs]) for arm, runs in arms.items()}
        parts += panel(curves, colours, TOP + PANEL_PITCH * number, LABELS[name], show)
    num_seeds = " or ".join(str(number) for number in sorted({len(runs) for runs in arms.values()}))
    caption = f"{found['recipe']} · {num_seeds} seeds · each point: mean of the last {NUM_LAST_STEPS} steps"
    return picture(WIDTH, TOP + PANEL_PITCH * len(PANELS), "GRPO-RoC and its controls", caption, parts)


def panel(
    curves: dict[str, list[tuple[float, float]]],
    colours: dict[str, str],
    top: float,
    label: str,
    show: Callable[[float], str],
) -> list[str]:
    most = max(mean + spread for points in curves.values() for mean, spread in points) or 1.0
    num_steps = max(map(len, curves.values()))
    plot = Plot(80, top, 750, PANEL_HEIGHT, (1, num_steps), (0, most * 1.05))
    bands, lines = [], []
    for arm, points in curves.items():
        places = [(plot.x(step), mean, spread) for step, (mean, spread) in enumerate(points, 1)]
        upper = [(x, plot.y(mean + spread)) for x, mean, spread in places]
        lower = [(x, plot.y(max(mean - spread, 0.0))) for x, mean, spread in places]
        bands.append(band(upper, lower, colours[arm]))
        lines.append(polyline([(x, plot.y(mean)) for x, mean, _ in places], colours[arm]))
    return [*plot.axes("training step", label, show), *bands, *lines]


def curve(runs: Sequence[Sequence[float]]) -> list[tuple[float, float]]:
    """Mean and spread over the runs after each step that all of them reached."""
    ends = range(1, min(map(len, runs)) + 1)
    return [mean_and_spread([fmean(run[max(0, end - NUM_LAST_STEPS) : end]) for run in runs]) for end in ends]


def mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    return fmean(values), stdev(values) if len(values) > 1 else 0.0
