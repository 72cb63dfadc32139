"""`rstar2 analyze`: where a model is unsure, what it does with tool results, and how it meets errors."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rstar2.cli.output import note, print_json
from rstar2.errors import UserError

if TYPE_CHECKING:
    from rstar2.analysis import Analysis


def analyze_command(
    run: Annotated[Path, typer.Argument(help="A run directory: of a training, an evaluation, or any other verb.")],
    step: Annotated[int | None, typer.Option("--step", help="This step alone.")] = None,
    steps: Annotated[
        str | None, typer.Option("--steps", metavar="A:B", help="The steps from A to B; either may be left out.")
    ] = None,
    max_traces: Annotated[
        int, typer.Option("--max-traces", min=1, help="Traces whose tokens are looked at: the newest.")
    ] = 64,
    tokenizer: Annotated[
        Path | None,
        typer.Option("--tokenizer", help="A tokenizer.json, or a model's folder; if the run holds none."),
    ] = None,
    surprisal: Annotated[
        bool, typer.Option("--surprisal", help="Look at -log p of each token: for runs that recorded no entropies.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for figures and analysis.json. RUN/figures/analysis.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document; files are written only where -o says.")
    ] = False,
) -> None:
    """Entropy of tokens, forking and reflection tokens, reactions to errors; figures and one JSON file."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from rstar2.analysis import Measure, analyze_run, draw_figures, find_token_texts
    from rstar2.analysis import as_json as document_of
    from rstar2.cli.console import Console
    from rstar2.records import RunView

    view = RunView(run)
    chosen = _choose_steps(view.trace_steps(), step, steps, run)
    token_texts, why_not = find_token_texts(run, tokenizer)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), disable=as_json) as bars:
        task = bars.add_task("reading traces", total=None)
        analysis = analyze_run(
            view,
            chosen,
            token_texts=token_texts,
            measure=Measure.SURPRISAL if surprisal else Measure.ENTROPY,
            max_traces=max_traces,
            on_progress=lambda done, total: bars.update(task, completed=done, total=total),
        )
    source = run.resolve().name
    document = {"run": source, "steps": [chosen[0], chosen[-1]] if chosen else [], **document_of(analysis)}
    document["notes"] = notes = [*analysis.notes, *([why_not] if why_not and analysis.num_traces else [])]
    if output is not None or not as_json:
        folder = output or view.layout.figures / "analysis"
        _write(folder, document, draw_figures(analysis, source))
        note(f"wrote analysis.json and figures to {folder}")
    if as_json:
        print_json(document)
    else:
        _print(analysis, notes)


def _choose_steps(held: Sequence[int], step: int | None, span: str | None, run: Path) -> list[int]:
    if step is not None and span is not None:
        raise UserError("--step and --steps exclude each other; give one of them")
    first, last = (step, step) if span is None else _span(span)
    chosen = [number for number in held if (first is None or number >= first) and (last is None or number <= last)]
    if not chosen and (step is not None or span is not None):
        has = f"it has steps {held[0]} to {held[-1]}" if held else "it has none"
        raise UserError(f"{run} has no traces of step{'s' if span else ''} {span or step}; {has}")
    return chosen


def _span(text: str) -> tuple[int | None, int | None]:
    first, colon, last = text.partition(":")
    try:
        if not colon:
            raise ValueError
        return int(first) if first else None, int(last) if last else None
    except ValueError:
        raise UserError(f"--steps {text}: write two step numbers as A:B, such as 100:200, 100: or :200") from None


def _write(folder: Path, document: dict[str, Any], figures: dict[str, str]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, picture in figures.items():
            (folder / name).write_text(picture, encoding="utf-8")
        text = json.dumps(document, ensure_ascii=False, indent=1) + "\n"
        (folder / "analysis.json").write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"--output: cannot write to {folder}: {error.strerror}") from error


def _print(analysis: "Analysis", notes: Sequence[str]) -> None:
    from rich.table import Column, Table
    from rich.text import Text

    from rstar2.analysis.figures import CLASS_LABELS, REACTION_LABELS
    from rstar2.cli.console import Console

    console = Console()
    if analysis.looked_at is not None and analysis.looked_at.steps:
        console.print(f"Of {analysis.looked_at}; the viewer shows all traces of a step.")
    if analysis.calls.error_share is not None:
        share = f"{analysis.calls.error_share:.1%}"
        console.print(f"Tool errors: {analysis.calls.num_errors:,} of {analysis.calls.num_calls:,} calls, {share}")
    if analysis.entropy is not None:
        labelled = {CLASS_LABELS[found]: summary for found, summary in analysis.entropy.by_class.items()}
        numbers = [Column(name, justify="right") for name in ("tokens", "mean", "median", "90%", "in top 20%")]
        table = Table(f"{analysis.measure} (nats)", *numbers, box=None, pad_edge=False)
        for name, summary in {**labelled, "all": analysis.entropy.all_tokens}.items():
            values = (summary.mean, summary.quantiles[2], summary.quantiles[4])
            shown = [f"{value:.3f}" for value in values]
            table.add_row(name, f"{summary.num_tokens:,}", *shown, f"{summary.high_share:.1%}")
        console.print(f"\n[bold]Tokens[/] of {analysis.num_measured_traces} traces")
        console.print(table)
    for kind, found in analysis.kinds.items():
        most = ", ".join(f"{word.text} {word.count}" for word in found.words[:12]) or "no words"
        console.print(f"\n[bold]{kind.capitalize()}[/] tokens: {found.num_tokens:,}")
        console.print(Text(f"  {most}"))
    errors = analysis.after_errors
    if errors.num_errors:
        table = Table(
            f"after {errors.num_errors:,} turns with tool errors", Column("count", justify="right"), "share", box=None
        )
        for reaction, count in errors.counts.items():
            table.add_row(REACTION_LABELS[reaction], f"{count:,}", f"{errors.share(reaction):.1%}")
        console.print()
        console.print(table)
    for sentence in notes:
        console.print(Text(f"\nnote: {sentence}"))
