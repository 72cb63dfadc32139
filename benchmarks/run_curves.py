"""A training run as a figure: accuracy, tool errors and length over the steps of all its stages.

    python benchmarks/run_curves.py RUN --figure FILE.svg

RUN is a run folder, or its metrics.jsonl alone. Each point is the mean of the last five steps.
"""

import argparse
from pathlib import Path

from roc_figures import LABELS, PANEL_PITCH, PANELS, TOP, WIDTH, curve, panel

from rstar2.analysis.svg import PALETTE, legend, picture
from rstar2.records import StepMetrics
from rstar2.records.record_file import iterate

RIGHT, ALL = "of right rollouts", "of all rollouts"
CURVES = {
    "accuracy": {ALL: "accuracy"},
    "tool_error_share_right": {RIGHT: "tool_error_share_right"},
    "response_tokens_mean": {ALL: "response_tokens_mean", RIGHT: "response_tokens_right"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--figure", type=Path, required=True)
    options = parser.parse_args()
    file = options.run / "metrics.jsonl" if options.run.is_dir() else options.run
    rows = [row for row in iterate(StepMetrics, file) if row.stage != "sft" and not row.stage.startswith("eval:")]
    options.figure.write_text(draw(rows), encoding="utf-8")


def draw(rows: list[StepMetrics]) -> str:
    colours = dict(zip((ALL, RIGHT), PALETTE, strict=False))
    parts = legend(80, 78, [(colour, label) for label, colour in colours.items()])
    for number, (name, show) in enumerate(PANELS.items()):
        curves = {
            label: curve([[row.values[measure] or 0.0 for row in rows]]) for label, measure in CURVES[name].items()
        }
        parts += panel(curves, colours, TOP + PANEL_PITCH * number, LABELS[name], show)
    first_steps: dict[str, int] = {}
    for row in rows:
        first_steps.setdefault(row.stage, row.step)
    caption = " · ".join(f"{stage} from step {step}" for stage, step in first_steps.items())
    return picture(WIDTH, TOP + PANEL_PITCH * len(PANELS), "A training run", caption, parts)


if __name__ == "__main__":
    main()
