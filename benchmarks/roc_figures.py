"""What roc_ablation.py found: tables, paired tests and a figure. Pure: all is made from its JSON document alone.

After ± and in the bands is the standard deviation over seeds. What is measured in training is the mean of the last
quarter of an arm's steps; a point of a line is the mean of as many steps, so its right end is the number in the table.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, product
from statistics import fmean, stdev
from typing import Any, TypedDict

from rstar2.analysis.svg import PALETTE, Plot, band, dot, label_at, legend, line, picture, polyline

HELD_OUT = "held_out/"
"""Before a benchmark's name: its accuracy at the end."""
LAST_SHARE = 0.25
"""The share of an arm's steps, the last ones, whose mean is its final number."""
PRIMARY = "tool_error_share_right"
TO_LEVEL = "seconds_to_level"
LABELS = {
    PRIMARY: "failing calls in right rollouts",
    "held_out_error_share_right": "failing calls in right held-out rollouts",
    "accuracy": "accuracy in training",
    "response_tokens_mean": "response tokens",
    "held_out_response_tokens": "response tokens, held out",
    "trivial_calls_right": "trivial calls per right rollout",
    "held_out_trivial_calls_right": "trivial calls per right held-out rollout",
    "calls_right": "calls per right rollout",
    "trained_rollouts": "rollouts trained on",
    "sampled_tokens": "tokens sampled",
    "seconds": "seconds of all steps",
}
COSTS = ("trained_rollouts", "sampled_tokens", "seconds")
"""Totals of a full run: reported, not tested."""
STEP_MEASURES = (PRIMARY, "response_tokens_mean", "accuracy", "step_s", "sampled_tokens")
PANELS: dict[str, Callable[[float], str]] = {
    "accuracy": lambda share: f"{100 * share:g}%",
    PRIMARY: lambda share: f"{100 * share:g}%",
    "response_tokens_mean": "{:g}".format,
}
"""Measure: how a value is written at its axis."""
MAIN_ARMS = ("paper", "quotas", "random", "off_g", "off_2g")
PRIMARY_CONTRASTS = (("paper", "quotas"), ("paper", "random"))
SECONDARY_CONTRASTS = (("paper", "off_g"), ("paper", "off_2g"), ("quotas", "random"))
LEVEL_WINDOW = 3
"""Steps whose mean accuracy must reach the level."""
MIN_PAIRS = 3
SIGNIFICANT = 0.05
WIDTH, TOP, PANEL_HEIGHT, PANEL_PITCH, ROW_HEIGHT = 860, 100, 190, 260, 26


class Learnt(TypedDict):
    """What one run came to."""

    final: dict[str, float]
    """Held-out accuracies at the end; of every other measure, the mean of its last steps, or the run's total."""
    steps: dict[str, list[float]]


class Found(TypedDict):
    """The JSON document. Seeds are texts, as in JSON."""

    recipe: str
    settings: dict[str, Any]
    machine: str
    arms: dict[str, dict[str, Learnt]]


def num_last(num_steps: int) -> int:
    return math.ceil(LAST_SHARE * num_steps)


# Statistics.


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of two arms in one measure, paired by seed."""

    num_pairs: int
    mean: float
    low: float
    high: float
    """The 95% interval by Student's t."""
    p: float
    """Two-sided, of the exact test that flips the signs of the differences."""


def paired_difference(differences: Sequence[float]) -> Difference:
    from scipy.stats import t

    num, mean = len(differences), fmean(differences)
    half = float(t.ppf(0.975, num - 1)) * stdev(differences) / math.sqrt(num)
    return Difference(num, mean, mean - half, mean + half, sign_flip_p(differences))


def sign_flip_p(differences: Sequence[float]) -> float:
    """The share of all ways to give the differences signs whose mean is as far from 0 as the one that was seen: exact
    where, under the null hypothesis, which arm of a pair is which does not matter."""
    seen = abs(math.fsum(differences))
    tolerance = 1e-9 * math.fsum(map(abs, differences))
    sums = (
        math.fsum(sign * difference for sign, difference in zip(signs, differences, strict=True))
        for signs in product((1, -1), repeat=len(differences))
    )
    num_as_far = sum(abs(total) >= seen - tolerance for total in sums)
    return num_as_far / (1 << len(differences))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted for the number of tests (Holm, 1979), in the order given."""
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def seconds_to_levels(runs: Mapping[str, Learnt]) -> dict[str, float]:
    """When each run of a seed first reached the highest mean accuracy that all of them reached."""
    means = {arm: moving_means(run["steps"]["accuracy"], LEVEL_WINDOW) for arm, run in runs.items()}
    level = min(map(max, means.values()))
    return {
        arm: next(
            seconds
            for mean, seconds in zip(means[arm], accumulate(run["steps"]["step_s"]), strict=True)
            if mean >= level
        )
        for arm, run in runs.items()
    }


def moving_means(values: Sequence[float], width: int) -> list[float]:
    """The moving means, with those of fewer steps at the start."""
    return [fmean(values[max(0, end - width) : end]) for end in range(1, len(values) + 1)]


def values_of(found: Found, measure: str) -> dict[str, dict[str, float]]:
    """The values of each arm and seed."""
    if measure != TO_LEVEL:
        return {arm: {seed: run["final"][measure] for seed, run in runs.items()} for arm, runs in found["arms"].items()}
    main = {arm: runs for arm, runs in found["arms"].items() if arm in MAIN_ARMS and runs}
    seeds = set.intersection(*(set(runs) for runs in main.values())) if main else set()
    times = {seed: seconds_to_levels({arm: runs[seed] for arm, runs in main.items()}) for seed in seeds}
    return {arm: {seed: times[seed][arm] for seed in seeds} for arm in main}


def compare_arms(found: Found, measure: str, contrasts: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Difference]:
    """The differences of the contrasts that have enough pairs."""
    values = values_of(found, measure)
    compared = {}
    for one, other in contrasts:
        seeds = sorted(values.get(one, {}).keys() & values.get(other, {}).keys(), key=int)
        if len(seeds) >= MIN_PAIRS:
            compared[one, other] = paired_difference([values[one][seed] - values[other][seed] for seed in seeds])
    return compared


# Tables, in Markdown.


def labels_of(found: Found) -> dict[str, str]:
    names = [name for runs in found["arms"].values() for run in runs.values() for name in run["final"]]
    held_out = {name: f"accuracy: {name.removeprefix(HELD_OUT)}" for name in names if name.startswith(HELD_OUT)}
    return {PRIMARY: LABELS[PRIMARY], **held_out, **LABELS}


def draw_table(found: Found) -> str:
    arms = {arm: list(runs.values()) for arm, runs in found["arms"].items() if runs}
    rows = [["", *(f"`{arm}`" for arm in arms)], ["seeds", *(str(len(runs)) for runs in arms.values())]]
    for name, label in labels_of(found).items():
        spreads = [mean_and_spread([run["final"][name] for run in runs]) for runs in arms.values()]
        rows.append([label, *(f"{number(mean)} ± {number(spread, mean)}" for mean, spread in spreads)])
    return markdown(rows)


def draw_tests(found: Found) -> str:
    """The primary family first; then each secondary measure, a separate family."""
    primary = compare_arms(found, PRIMARY, PRIMARY_CONTRASTS)
    lines = ["Primary:", "", tests_table({LABELS[PRIMARY]: primary}), "", "Secondary:", ""]
    contrasts = (*PRIMARY_CONTRASTS, *SECONDARY_CONTRASTS)
    measures = {name: label for name, label in labels_of(found).items() if name not in COSTS}
    families = {
        label: compare_arms(found, name, SECONDARY_CONTRASTS if name == PRIMARY else contrasts)
        for name, label in {**measures, TO_LEVEL: "seconds to the seed's common accuracy"}.items()
    }
    lines += [tests_table(families)]
    others = [("paper", arm) for arm in found["arms"] if arm not in MAIN_ARMS]
    if described := {label: compare_arms(found, name, others) for name, label in measures.items() if others}:
        lines += ["", "Other arms, not tested for:", "", tests_table(described)]
    return "\n".join(lines)


def tests_table(families: Mapping[str, Mapping[tuple[str, str], Difference]]) -> str:
    rows = [["measure", "difference", "seeds", "mean", "95% interval", "p", "p, Holm"]]
    for label, compared in families.items():
        adjusted = holm([found.p for found in compared.values()])
        for ((one, other), found), p in zip(compared.items(), adjusted, strict=True):
            size = max(abs(found.low), abs(found.high))
            mean = number(found.mean, size)
            rows.append(
                [
                    label,
                    f"`{one}` − `{other}`",
                    str(found.num_pairs),
                    f"**{mean}**" if p < SIGNIFICANT else mean,
                    f"{number(found.low, size)} to {number(found.high, size)}",
                    f"{found.p:.3f}",
                    f"{p:.3f}",
                ]
            )
            label = ""
    return markdown(rows)


def number(value: float, beside: float | None = None) -> str:
    """Shares with three digits after the point, larger numbers with fewer; `beside`: the number that decides it."""
    size = abs(value if beside is None else beside)
    text = (
        f"{value:.4f}"
        if 0 < size < 0.01
        else f"{value:.3f}"
        if size < 3
        else f"{value:.1f}"
        if size < 1000
        else f"{value:,.0f}"
    )
    return text.lstrip("-") if not any(digit in text for digit in "123456789") else text.replace("-", "−")


def markdown(rows: Sequence[Sequence[str]]) -> str:
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([head, "|" + "---|" * len(rows[0]), *body])


# The figure.


def draw_figure(found: Found) -> str:
    arms = {arm: list(runs.values()) for arm, runs in found["arms"].items() if runs}
    main = {arm: runs for arm, runs in arms.items() if arm in MAIN_ARMS}
    arms = dict(list((main or arms).items())[: len(PALETTE)])
    colours = dict(zip(arms, PALETTE, strict=False))
    parts = legend(80, 78, [(colour, arm) for arm, colour in colours.items()])
    parts.append(label_at(830, 78, "line: mean over seeds; band: standard deviation", name="faint", anchor="end"))
    for index, (name, show) in enumerate(PANELS.items()):
        curves = {arm: curve([run["steps"][name] for run in runs]) for arm, runs in arms.items()}
        parts += panel(curves, colours, TOP + PANEL_PITCH * index, LABELS[name], show)
    rows = differences(found, PRIMARY, (*PRIMARY_CONTRASTS, *SECONDARY_CONTRASTS))
    parts += forest(rows, TOP + PANEL_PITCH * len(PANELS), LABELS[PRIMARY])
    num_seeds = " or ".join(str(number) for number in sorted({len(runs) for runs in arms.values()}))
    caption = f"{found['recipe']} · {num_seeds} seeds · each point: mean of a quarter of the steps, up to it"
    height = TOP + PANEL_PITCH * len(PANELS) + (ROW_HEIGHT * len(rows) + 80 if rows else 0)
    return picture(WIDTH, height, "GRPO-RoC and its controls", caption, parts)


def differences(
    found: Found, measure: str, contrasts: Sequence[tuple[str, str]]
) -> dict[str, tuple[list[float], Difference]]:
    """For each contrast: its seeds' differences, and their mean with its interval."""
    values = values_of(found, measure)
    return {
        f"{one} − {other}": (
            [values[one][seed] - values[other][seed] for seed in values[one].keys() & values[other]],
            mean,
        )
        for (one, other), mean in compare_arms(found, measure, contrasts).items()
    }


def forest(rows: Mapping[str, tuple[Sequence[float], Difference]], top: float, label: str) -> list[str]:
    if not rows:
        return []
    most = 1.1 * max(max(*map(abs, dots), abs(mean.low), abs(mean.high)) for dots, mean in rows.values())
    plot = Plot(180, top, 650, ROW_HEIGHT * len(rows), (-100 * most, 100 * most), (0, len(rows)))
    parts = [line(plot.x(0), top, plot.x(0), top + plot.height, "axis", dashed=True)]
    parts += plot.axes(f"{label}: difference in points; dot: a seed; line: 95% interval", "", lambda _: "")
    for index, (label, (dots, mean)) in enumerate(rows.items()):
        y = top + ROW_HEIGHT * (index + 0.5)
        parts.append(label_at(170, y + 4, label, anchor="end"))
        parts += [dot(plot.x(100 * value), y, "f") for value in sorted(dots)]
        parts.append(polyline([(plot.x(100 * mean.low), y), (plot.x(100 * mean.high), y)], "a"))
        parts.append(dot(plot.x(100 * mean.mean), y, "b", 4))
    return parts


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
        # An arm of half the steps learns from twice as much in each.
        places = [(plot.x(step * num_steps / len(points)), *point) for step, point in enumerate(points, 1)]
        upper = [(x, plot.y(mean + spread)) for x, mean, spread in places]
        lower = [(x, plot.y(max(mean - spread, 0.0))) for x, mean, spread in places]
        bands.append(band(upper, lower, colours[arm]))
        lines.append(polyline([(x, plot.y(mean)) for x, mean, _ in places], colours[arm]))
    return [*plot.axes("training step", label, show), *bands, *lines]


def curve(runs: Sequence[Sequence[float]]) -> list[tuple[float, float]]:
    """Mean and spread over the runs after each step that all of them reached."""
    num_steps = min(map(len, runs))
    means = [moving_means(run[:num_steps], num_last(num_steps)) for run in runs]
    return [mean_and_spread(values) for values in zip(*means, strict=True)]


def mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    return fmean(values), stdev(values) if len(values) > 1 else 0.0
