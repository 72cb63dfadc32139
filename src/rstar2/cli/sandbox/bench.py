"""`rstar2 sandbox bench`: what the sandbox does on this machine, beside what one would use without it."""

from typing import Annotated

import typer

from rstar2.cli.output import ExitCode, note, print_json


def bench(
    quick: Annotated[bool, typer.Option("--quick", help="A few seconds; the numbers are rough.")] = False,
    only: Annotated[str | None, typer.Option(help="Comma-separated measurements; `--only list` names them.")] = None,
    code_judge: Annotated[str | None, typer.Option(help="The address of a running code-judge to compare with.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the measurements as JSON.")] = False,
) -> None:
    """Measure throughput and latency in one run, against plain subprocesses on the same cores."""
    import asyncio
    from dataclasses import asdict

    from rstar2.sandbox import bench as measurements

    if only == "list":
        for name in measurements.NAMES:
            typer.echo(name)
        return
    chosen = measurements.choose(only)
    report = asyncio.run(measurements.measure(chosen, quick=quick, code_judge=code_judge, say=note))
    if as_json:
        print_json(asdict(report))
    else:
        measurements.print_table(report)
    if not report.is_clean:
        raise SystemExit(ExitCode.INFRASTRUCTURE)
