"""`rstar2 sandbox bench`: what the sandbox does on this machine, beside what one would use without it."""

from typing import Annotated

import typer

from rstar2.cli.output import ExitCode, note, print_json
from rstar2.errors import UserError


def bench(
    quick: Annotated[bool, typer.Option("--quick", help="A few seconds; the numbers are rough.")] = False,
    only: Annotated[str | None, typer.Option(help="Comma-separated measurements; `--only list` names them.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the measurements as JSON.")] = False,
) -> None:
    """Measure throughput and latency in one run, against plain subprocesses on the same cores."""
    import asyncio
    from dataclasses import asdict

    from rstar2.sandbox.bench import MEASUREMENTS, measure, print_table

    if only == "list":
        for name in MEASUREMENTS:
            typer.echo(name)
        return
    names = [name.strip() for name in only.split(",")] if only else list(MEASUREMENTS)
    for name in names:
        if name not in MEASUREMENTS:
            raise UserError(f"--only {name}: there is no such measurement; there are {', '.join(MEASUREMENTS)}")
    report = asyncio.run(measure({name: MEASUREMENTS[name] for name in names}, quick=quick, say=note))
    if as_json:
        print_json(asdict(report))
    else:
        print_table(report)
    if not report.is_clean:
        raise SystemExit(ExitCode.INFRASTRUCTURE)
