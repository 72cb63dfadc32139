"""Draws the figures of an analysis, as SVG texts by file name. Figures without data are left out. Pure."""

from collections.abc import Iterable

from rstar2.analysis.after_error import Reaction
from rstar2.analysis.analyze import Analysis
from rstar2.analysis.classes import TokenClass
from rstar2.analysis.entropy import NUM_AFTER, NUM_BEFORE, EntropySummary, ResponseCurve
from rstar2.analysis.examine import HIGH_SHARE, Response
from rstar2.analysis.kind_words import KindWords
from rstar2.analysis.kinds import TokenKind
from rstar2.analysis.over_training import CallCount, StepErrors
from rstar2.analysis.svg import Plot, band, dot, label_at, legend, line, picture, polyline, rect

WIDTH = 860
MAX_SHOWN_WORDS, MAX_WORD_CHARS = 30, 24

CLASS_LABELS = {
    TokenClass.REASONING: "reasoning",
    TokenClass.AFTER_RESPONSE: "first after a response",
    TokenClass.CODE: "code",
    TokenClass.CALL_SYNTAX: "tool-call syntax",
    TokenClass.ANSWER: "answer",
    TokenClass.MARKUP: "markup",
}
REACTION_LABELS = {
    Reaction.FIXED: "fixed: the next calls succeed",
    Reaction.REPEATED: "repeated: same code or same error",
    Reaction.NEW_ERROR: "another error with other code",
    Reaction.GAVE_UP: "gave up: no further call",
    Reaction.CUT_OFF: "cut off before it could be seen",
}
_REACTION_COLOURS = dict(zip(Reaction, "ebcdf", strict=True))
_BAR_OPACITY = 0.45
"""The opacity of bars: light enough for text on them."""
_RESPONSE_COLOURS = {Response.SUCCESSFUL: "a", Response.FAILED: "b"}


def draw_figures(analysis: Analysis, source: str) -> dict[str, str]:
    """The figures by file name. `source` says where the traces are from, for the captions."""
    figures: dict[str, str] = {}
    measure, caption = str(analysis.measure), f"{source} · {analysis.num_measured_traces} traces"
    if analysis.entropy is not None and analysis.entropy.by_class:
        figures["entropy-by-class.svg"] = _by_class(analysis.entropy, measure, caption)
    if analysis.around_responses:
        figures["entropy-around-responses.svg"] = _around(analysis.around_responses, measure, caption)
    for kind, found in analysis.kinds.items():
        if found.words:
            figures[f"{kind}-words.svg"] = _word_bars(kind, found, measure, caption)
    if analysis.after_errors.num_errors:
        figures["after-errors.svg"] = _after_errors(analysis, f"{source} · {analysis.num_traces} traces")
    if any(row.right.num_calls or row.wrong.num_calls for row in analysis.over_training):
        figures["tool-errors-over-training.svg"] = _over_training(analysis.over_training, source)
    return figures


def _by_class(entropy: EntropySummary, measure: str, caption: str) -> str:
    rows = list(entropy.by_class.items())
    top, row_height = 104, 36
    height = top + row_height * len(rows) + 64
    highest = max(max(summary.quantiles[-1], summary.mean) for _, summary in rows) or 1.0
    values = Plot(190, top, 330, row_height * len(rows), (0, highest * 1.05), (0, 1))
    shares = Plot(580, top, 190, row_height * len(rows), (0, 1), (0, 1))
    parts = [
        label_at(values.left, 80, f"{measure.capitalize()} (nats): 10–90%, quartiles, mean", weight=600),
        label_at(shares.left, 80, f"Share in the top {HIGH_SHARE:.0%}", weight=600),
    ]
    for number, (found, summary) in enumerate(rows):
        y = top + row_height * number + row_height / 2
        p10, p25, p50, p75, p90 = (values.x(value) for value in summary.quantiles)
        parts += [
            label_at(178, y, CLASS_LABELS[found], anchor="end"),
            label_at(178, y + 14, f"{summary.num_tokens:,} tokens", name="faint", size=11, anchor="end"),
            line(p10, y, p90, y, "la", width=2),
            rect(p25, y - 8, p75 - p25, 16, "a", 0.35),
            line(p50, y - 8, p50, y + 8, "la", width=2),
            dot(values.x(summary.mean), y, "b", 4),
            rect(shares.left, y - 8, shares.x(summary.high_share) - shares.left, 16, "a"),
            label_at(shares.x(max(summary.high_share, HIGH_SHARE)) + 6, y + 4, f"{summary.high_share:.0%}"),
        ]
    bottom = top + row_height * len(rows)
    parts.append(line(shares.x(HIGH_SHARE), top, shares.x(HIGH_SHARE), bottom, "axis", dashed=True))
    parts.append(label_at(shares.x(HIGH_SHARE), bottom + 16, "by chance", name="faint", size=11, anchor="middle"))
    parts += values.x_axis(most_ticks=6)
    parts += [dot(values.left, bottom + 44, "b", 4), label_at(values.left + 10, bottom + 48, "mean", name="faint")]
    return picture(WIDTH, height, f"{measure.capitalize()} of each kind of token", caption, parts)


def _around(curves: Iterable[ResponseCurve], measure: str, caption: str) -> str:
    curves = list(curves)
    highest = max(max(point.high for point in curve.points) for curve in curves if curve.points) or 1.0
    plot = Plot(80, 92, 750, 270, (-NUM_BEFORE, NUM_AFTER), (0, highest * 1.05))
    parts = plot.axes("tokens before and after the response", f"{measure} (nats)")
    parts.append(line(plot.x(-0.5), plot.top, plot.x(-0.5), plot.top + plot.height, "axis", dashed=True))
    parts.append(label_at(plot.x(-0.5) + 6, plot.top + 12, "tool response", name="faint"))
    for curve in curves:
        colour = _RESPONSE_COLOURS[curve.response]
        # Two stretches: nothing was sampled in between, so no line is drawn across.
        for side in ([p for p in curve.points if p.offset < 0], [p for p in curve.points if p.offset >= 0]):
            upper = [(plot.x(p.offset), plot.y(p.high)) for p in side]
            lower = [(plot.x(p.offset), plot.y(max(p.low, 0.0))) for p in side]
            parts.append(band(upper, lower, colour))
            parts.append(polyline([(plot.x(p.offset), plot.y(p.mean)) for p in side], colour))
    names = [(_RESPONSE_COLOURS[c.response], f"{c.response} ({c.num_responses:,})") for c in curves]
    parts += legend(80, 76, names)
    parts.append(label_at(830, 76, "band: 95% interval of the mean", name="faint", anchor="end"))
    return picture(WIDTH, 420, f"{measure.capitalize()} around tool responses", caption, parts)


def _word_bars(kind: TokenKind, found: KindWords, measure: str, caption: str) -> str:
    """The most frequent words, with their number of occurrences as bars."""
    shown = found.words[:MAX_SHOWN_WORDS]
    top, row_height, left, width = 96, 18, 200, 560
    by_value = sorted(shown, key=lambda word: word.mean_value)
    colours = {word.text: "fca"[min(2, 3 * rank // len(by_value))] for rank, word in enumerate(by_value)}
    parts = legend(20, 76, [("a", f"highest third by mean {measure}"), ("c", "middle third"), ("f", "lowest third")])
    for number, word in enumerate(shown):
        y = top + row_height * number
        length = width * word.count / shown[0].count
        text = word.text if len(word.text) <= MAX_WORD_CHARS else f"{word.text[: MAX_WORD_CHARS - 1]}…"
        parts.append(label_at(left - 10, y + 12, text, anchor="end"))
        parts.append(rect(left, y + 2, length, row_height - 5, colours[word.text]))
        parts.append(label_at(left + length + 6, y + 12, f"{word.count:,}", name="faint"))
    about = f"{caption} · {found.num_tokens:,} {kind} tokens, most frequent words first"
    return picture(WIDTH, top + row_height * len(shown) + 16, f"Words of {kind} tokens", about, parts)


def _after_errors(analysis: Analysis, caption: str) -> str:
    errors = analysis.after_errors
    groups = {"all errors": errors.counts} | {str(s).replace("_", " "): c for s, c in errors.by_status.items()}
    top, row_height, left, width = 132, 30, 170, 600
    parts = legend(20, 76, [(_REACTION_COLOURS[r], REACTION_LABELS[r]) for r in list(Reaction)[:3]], _BAR_OPACITY)
    parts += legend(20, 98, [(_REACTION_COLOURS[r], REACTION_LABELS[r]) for r in list(Reaction)[3:]], _BAR_OPACITY)
    for number, (name, counts) in enumerate(groups.items()):
        y, x, total = top + row_height * number, float(left), sum(counts.values())
        parts.append(label_at(left - 10, y + 14, name, weight=600 if number == 0 else 400, anchor="end"))
        for reaction, count in counts.items():
            share = count / total
            parts.append(rect(x, y, width * share, 20, _REACTION_COLOURS[reaction], _BAR_OPACITY))
            if share >= 0.06:
                parts.append(label_at(x + width * share / 2, y + 14, f"{share:.0%}", size=11, anchor="middle"))
            x += width * share
        parts.append(label_at(left + width + 10, y + 14, f"n = {total:,}", name="faint"))
    height = top + row_height * len(groups) + 16
    return picture(WIDTH, height, "What the model does after a tool error", caption, parts)


def _over_training(rows: Iterable[StepErrors], source: str) -> str:
    rows = list(rows)
    shown: list[tuple[str, str, list[tuple[int, CallCount]]]] = [
        ("a", "right traces", [(row.step, row.right) for row in rows if row.right.num_calls]),
        ("b", "wrong traces", [(row.step, row.wrong) for row in rows if row.wrong.num_calls]),
    ]
    shares = [count.error_share or 0.0 for _, _, counts in shown for _, count in counts]
    highest = min(1.0, max(0.05, *shares) * 1.1)
    plot = Plot(80, 92, 750, 270, (rows[0].step, rows[-1].step), (0, highest))
    parts = plot.axes("training step", "failed tool calls", "{:.0%}".format)
    for colour, _, counts in shown:
        points = [(plot.x(step), plot.y(count.error_share or 0.0)) for step, count in counts]
        if len(points) > 1:
            parts.append(polyline(points, colour))
        if len(points) <= 40:
            parts += [dot(x, y, colour) for x, y in points]
    parts += legend(
        80, 76, [(c, f"{name} ({sum(n.num_calls for _, n in counts):,} calls)") for c, name, counts in shown]
    )
    num_traces = sum(row.right.num_traces + row.wrong.num_traces for row in rows)
    caption = f"{source} · {num_traces:,} traces of {len(rows)} steps"
    return picture(WIDTH, 420, "Tool errors in right and wrong traces", caption, parts)
