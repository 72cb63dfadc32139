"""`rstar2 doctor`: what this machine can do, what is missing, and how to fix it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rstar2.cli.output import ExitCode, print_json

if TYPE_CHECKING:
    from rstar2.doctor import DoctorReport


def doctor_command(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Ask nothing over the network.")] = False,
    run_folder: Annotated[
        Path, typer.Option("--runs", help="The folder that runs will be written to.", show_default=True)
    ] = Path("runs"),
) -> None:
    """Report what this machine can do. Exit code 1 if something that the core needs is missing."""
    from rstar2.cli.console import Console
    from rstar2.doctor import examine

    with Console(stderr=True).status("looking at this machine"):
        report = examine(run_folder, offline=offline)
    if as_json:
        print_json(report.as_json())
    else:
        _print_table(report)
    raise typer.Exit(ExitCode.OK if report.ok else ExitCode.NO)


def _print_table(report: "DoctorReport") -> None:
    from rich.markup import escape
    from rich.table import Column, Table

    from rstar2.cli.console import Console
    from rstar2.doctor import State

    found_column = Column("found, and what to do about it", overflow="fold")
    table = Table("", Column("check", max_width=36), "state", found_column, box=None, pad_edge=False)
    section = ""
    for check in report.checks:
        colour = "green" if check.state is State.OK else "red" if check in report.blocking else "yellow"
        table.add_row(
            f"[bold]{check.section}[/]" if check.section != section else "",
            escape(check.name),
            f"[{colour}]{check.state}[/]",
            escape(check.found) + (f"\n[dim]→ {escape(check.fix)}[/]" if check.fix else ""),
        )
        section = check.section
    console = Console()
    console.print(table)
    if report.ok:
        console.print(f"\n[green]rstar2 {report.rstar2_version}: everything that the core needs is there[/]")
    else:
        lacking = escape(", ".join(check.name for check in report.blocking))
        console.print(f"\n[red]rstar2 {report.rstar2_version}: the core cannot do without: {lacking}[/]")
