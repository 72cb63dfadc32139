"""The SVG elements of all figures: those of the analysis, the simulator and the benchmarks.

Invariant: these functions return well-formed XML whatever the texts hold. A figure needs no library, runs no script and
fetches nothing. Colours are classes with a light and a dark form, so a figure is readable on either background.
"""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr

PALETTE = {
    "a": ("#1f6f8b", "#62b6d1"),
    "b": ("#c43d51", "#f0848f"),
    "c": ("#8a6d1f", "#d9b95b"),
    "d": ("#6b4fa0", "#b79fe8"),
    "e": ("#3b7d4f", "#7cc893"),
    "f": ("#6b7280", "#9aa3af"),
}
"""For each name, the colour on a light and on a dark background. Each has a contrast of 4.5 or more, so it may colour
text."""
_TEXT, _FAINT, _GRID, _PAPER = (
    ("#1f2328", "#e6e8eb"),
    ("#5f6670", "#9aa3af"),
    ("#dfe3e8", "#333a42"),
    ("#fff", "#14181d"),
)

_TICK_DIGITS = 12
"""Digits of a tick after the point. Limits that are closer to each other count as equal."""
# Characters that XML 1.0 does not allow in a document, and marks that reverse the direction of text.
_UNWRITABLE = re.compile(
    "[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]|[\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)


def safe(text: str) -> str:
    """Text that is safe inside an element."""
    return escape(_UNWRITABLE.sub("\ufffd", text))


def picture(width: int, height: int, title: str, description: str, parts: Iterable[str]) -> str:
    """A complete file. The title is drawn; a screen reader reads it and the description."""
    label = quoteattr(_UNWRITABLE.sub("\ufffd", title))
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="rs" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-label={label} font-family="system-ui, sans-serif" font-size="12">',
        f"<title>{safe(title)}</title><desc>{safe(description)}</desc>",
        f"<style>{_style(0)} @media (prefers-color-scheme: dark) {{ {_style(1)} }}</style>",
        f'<rect class="paper" width="{width}" height="{height}"/>',
        label_at(20, 28, title, size=16, weight=600),
        label_at(20, 48, description, name="faint"),
    ]
    return "\n".join([*head, *parts, "</svg>", ""])


def _style(form: int) -> str:
    rules = [
        f".rs text{{fill:{_TEXT[form]}}}",
        f".rs .faint{{fill:{_FAINT[form]}}}",
        f".rs .grid{{stroke:{_GRID[form]}}}",
        f".rs .axis{{stroke:{_FAINT[form]}}}",
        f".rs .paper{{fill:{_PAPER[form]}}}",
        f".rs .empty{{fill:{_GRID[form]}}}",
    ]
    for name, colours in PALETTE.items():
        rules.append(f".rs .{name}{{fill:{colours[form]}}}.rs .l{name}{{stroke:{colours[form]};fill:none}}")
    return "".join(rules)


def label_at(
    x: float, y: float, text: str, *, name: str = "", size: int = 12, weight: int = 400, anchor: str = "start"
) -> str:
    """A text at a point. `name` is a colour's class, or `faint`."""
    style = (f' class="{name}"' if name else "") + (f' font-weight="{weight}"' if weight != 400 else "")
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}"{style}>{safe(text)}</text>'


def rect(x: float, y: float, width: float, height: float, name: str, opacity: float = 1.0) -> str:
    return (
        f'<rect class="{name}" x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{height:.1f}" '
        f'fill-opacity="{opacity:g}"/>'
    )


def area(boxes: Iterable[tuple[float, float, float, float]], name: str, opacity: float) -> str:
    """Many rectangles of one colour (left, top, width, height) in one element."""
    path = "".join(f"M{x:.1f} {y:.2f}h{width:.1f}v{height:.2f}H{x:.1f}z" for x, y, width, height in boxes)
    return f'<path class="{name}" fill-opacity="{opacity:g}" d="{path}"/>'


def line(x1: float, y1: float, x2: float, y2: float, name: str, *, width: float = 1, dashed: bool = False) -> str:
    dash = ' stroke-dasharray="4 3"' if dashed else ""
    return (
        f'<line class="{name}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke-width="{width}"{dash}/>'
    )


def polyline(points: Sequence[tuple[float, float]], name: str) -> str:
    return f'<polyline class="l{name}" stroke-width="1.8" stroke-linejoin="round" points="{_points(points)}"/>'


def band(upper: Sequence[tuple[float, float]], lower: Sequence[tuple[float, float]], name: str) -> str:
    return f'<polygon class="{name}" fill-opacity="0.2" points="{_points([*upper, *reversed(lower)])}"/>'


def dot(x: float, y: float, name: str, radius: float = 3) -> str:
    return f'<circle class="{name}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}"/>'


def legend(x: float, y: float, items: Iterable[tuple[str, str]], opacity: float = 1.0) -> list[str]:
    """A legend of colours and labels, from left to right."""
    parts = []
    for name, label in items:
        parts += [rect(x, y - 10, 12, 12, name, opacity), label_at(x + 18, y, label)]
        x += 36 + 6.6 * len(label)
    return parts


def _points(points: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


@dataclass(frozen=True, slots=True)
class Plot:
    """A rectangle of the picture with a linear scale in each direction."""

    left: float
    top: float
    width: float
    height: float
    x_range: tuple[float, float]
    y_range: tuple[float, float]

    def x(self, value: float) -> float:
        return self.left + self.width * _share(value, self.x_range)

    def y(self, value: float) -> float:
        return self.top + self.height * (1 - _share(value, self.y_range))

    def x_axis(self, most_ticks: int = 10) -> list[str]:
        bottom = self.top + self.height
        parts = [line(self.left, bottom, self.left + self.width, bottom, "axis")]
        for value in ticks(*self.x_range, most_ticks):
            parts.append(line(self.x(value), bottom, self.x(value), bottom + 4, "axis"))
            parts.append(label_at(self.x(value), bottom + 18, f"{value:g}", name="faint", anchor="middle"))
        return parts

    def axes(self, x_label: str, y_label: str, show_y: Callable[[float], str] = "{:g}".format) -> list[str]:
        bottom, right = self.top + self.height, self.left + self.width
        parts = []
        for value in ticks(*self.y_range):
            parts.append(line(self.left, self.y(value), right, self.y(value), "grid"))
            parts.append(label_at(self.left - 8, self.y(value) + 4, show_y(value), name="faint", anchor="end"))
        parts += self.x_axis()
        parts.append(label_at((self.left + right) / 2, bottom + 38, x_label, anchor="middle"))
        middle = self.top + self.height / 2
        turned = f'transform="rotate(-90 {self.left - 44:.1f} {middle:.1f})"'
        parts.append(f"<g {turned}>{label_at(self.left - 44, middle, y_label, anchor='middle')}</g>")
        return parts


def _share(value: float, limits: tuple[float, float]) -> float:
    low, high = limits
    return (value - low) / (high - low) if high > low else 0.5


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers within the limits, about `most` of them."""
    if high - low < 10**-_TICK_DIGITS:
        return [low]
    step = 10.0 ** math.floor(math.log10((high - low) / most))
    step = next(step * factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= most)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(number * step, _TICK_DIGITS) for number in range(first, last + 1)]
