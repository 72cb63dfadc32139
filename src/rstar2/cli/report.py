"""`rstar2 report`: a run as one HTML file."""

from pathlib import Path
from typing import Annotated

import typer

from rstar2.cli.output import note
from rstar2.errors import UserError


def report_command(
    run: Annotated[Path, typer.Argument(help="The run directory.")],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Where to write it; report.html in the run directory if left out."),
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="The folder of the run's model or tokenizer, for the text of single tokens; a run that brings its own "
            "needs none.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write what `rstar2 view` shows into one file that needs no server: all curves, and a sample of the rollouts."""
    from rstar2.web import render_report

    html = render_report(run, tokenizer=tokenizer).encode("utf-8", "replace")
    file = output or run / "report.html"
    try:
        file.write_bytes(html)
    except OSError as error:
        raise UserError(f"--output: cannot write {file}: {error.strerror}") from error
    note(f"wrote {file}, {len(html) / 1e6:.1f} MB")
