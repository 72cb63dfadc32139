"""`rstar2 data`: what sets there are, get them, look into them, prove their golds, curate one's own."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rstar2.cli import data_build
from rstar2.cli.download_bars import DownloadBars
from rstar2.cli.output import ExitCode, note, print_json, say
from rstar2.cli.tables import print_table
from rstar2.errors import InfrastructureError, UserError

if TYPE_CHECKING:
    from rstar2.data.validate import Failure
    from rstar2.records import Problem

app = typer.Typer(name="data", help="Data sets: list, get, show, validate, curate, build.", no_args_is_help=True)
app.add_typer(data_build.app, name="build")

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", help="A folder with data files, searched before the hub's cache. RSTAR2_DATA."),
]


@app.command("list")
def list_command(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show the catalog, and which of it is on this machine."""
    from rstar2.data import CATALOG, find_files

    files = {name: find_files(entry, data_dir) for name, entry in CATALOG.items()}
    if as_json:
        print_json(
            [
                {
                    "name": entry.name,
                    "kind": entry.kind,
                    "num_rows": entry.num_rows,
                    "grading": entry.grading,
                    "licence": entry.licence,
                    "repo": entry.hub.repo if entry.hub else None,
                    "revision": entry.hub.revision if entry.hub else None,
                    "summary": entry.summary,
                    "files": [str(path) for path in files[entry.name] or ()],
                }
                for entry in CATALOG.values()
            ]
        )
        return
    _print_table(
        ("name", "kind", "rows", "here", "what it is (licence)"),
        [
            (
                entry.name,
                entry.kind,
                f"{entry.num_rows:,}",
                "yes" if files[entry.name] else "no",
                f"{entry.summary} ({entry.licence})",
            )
            for entry in CATALOG.values()
        ],
        num_right=2,
    )


@app.command("get")
def get_command(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Names that `rstar2 data list` shows.")],
    as_json: AsJson = False,
) -> None:
    """Download sets from the Hugging Face hub, check them, and keep them."""
    from rstar2.data import find_set, get_set

    entries = [find_set(name) for name in names]
    fetched: dict[str, list[str]] = {}
    failures: list[str] = []
    for entry in entries:
        try:
            fetched[entry.name] = [str(path) for path in get_set(entry, DownloadBars())]
        except InfrastructureError as error:
            if len(entries) == 1:
                raise
            failures.append(entry.name)
            note(f"failed: {entry.name}: {error}")
            continue
        if not as_json:
            for path in fetched[entry.name]:
                say(path)
    if as_json:
        print_json({"files": fetched, "failed": failures})
    if failures:
        raise typer.Exit(ExitCode.INFRASTRUCTURE)


@app.command("show")
def show_command(
    name: Annotated[str, typer.Argument(help="A catalog name, a file, or a source as in a recipe.")],
    num_rows: Annotated[int, typer.Option("-n", "--num", min=1, help="How many rows.")] = 3,
    seed: Annotated[int, typer.Option("--seed", help="Of procedural sets.")] = 0,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Print the first rows of a set."""
    from dataclasses import asdict

    from rstar2.data import Conversation, load_any
    from rstar2.records import Problem

    rows = load_any(name, data_dir, num_generated=num_rows, seed=seed)
    shown: Sequence[Problem | Conversation] = rows[:num_rows]
    if as_json:
        print_json({"num_rows": len(rows), "rows": [asdict(row) for row in shown]})
        return
    for row in shown:
        say(f"── {row.id} ({row.source})")
        if isinstance(row, Conversation):
            for message in row.messages:
                calls = f" {message['tool_calls']}" if message.get("tool_calls") else ""
                say(f"{message['role']}: {message['content']}{calls}")
        else:
            say(f"{row.problem}\nanswer: {row.answer or '(none)'}")
    note(f"{len(shown)} of {len(rows):,} rows")


@app.command("validate")
def validate_command(
    names: Annotated[
        list[str],
        typer.Argument(metavar="NAME...|all", help="Catalog names, files, sources; or all sets that are here."),
    ],
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Prove that each gold answer scores as right under its set's own grader, and that conversations can be learnt
    from. Exit code 1 if one fails."""
    import asyncio

    from rstar2.data import CATALOG, find_files

    if names == ["all"]:
        names = [entry.name for entry in CATALOG.values() if find_files(entry, data_dir)]
        missing = [name for name in CATALOG if name not in names]
        if not names:
            raise UserError("no set of the catalog is on this machine: `rstar2 data get NAME` gets one")
        if missing:
            note(f"not on this machine: {', '.join(missing)}")
    reports = asyncio.run(_validate_all(names, data_dir))
    if as_json:
        print_json(reports)
    else:
        _print_validation(reports)
    if any(report["failures"] for report in reports.values()):
        raise typer.Exit(ExitCode.NO)


@app.command("curate")
def curate_command(
    inputs: Annotated[list[str], typer.Argument(metavar="IN...", help="Catalog names, files, or sources.")],
    output: Annotated[Path, typer.Option("-o", "--out", help="Where the kept rows go: a .jsonl or .jsonl.gz file.")],
    against: Annotated[
        str,
        typer.Option("--against", help="Benchmarks to decontaminate against: catalog names or files, by commas."),
    ] = "",
    min_overlap: Annotated[
        float,
        typer.Option(
            "--min-overlap",
            min=0.0,
            max=1.0,
            help="Share of a benchmark problem's 8-word runs that a row must hold to be dropped; 0: one is enough.",
        ),
    ] = 0.0,
    run: Annotated[
        Path | None, typer.Option("--run", help="Drop what this finished run solved every time it last tried.")
    ] = None,
    min_samples: Annotated[
        int, typer.Option("--min-samples", min=1, help="Pass rates over fewer rollouts decide nothing.")
    ] = 8,
    drop_unsolved: Annotated[
        bool, typer.Option("--drop-unsolved", help="With --run, drop what it never solved as well.")
    ] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Keep the problems that are fit for reinforcement learning; the others go to OUT.rejects with the reason."""
    from rstar2.data import BenchmarkGrams, CurationRules, curate, load_any_problems, read_pass_rates
    from rstar2.data.by_name import local_files_of
    from rstar2.data.write import (
        rejects_path,
        require_other_file,
        require_writable_name,
        write_problems,
        write_rejects,
    )

    if drop_unsolved and run is None:
        raise UserError("--drop-unsolved needs --run: only a run says what was never solved")
    require_writable_name(output)
    benchmark_names = [name for name in against.split(",") if name]
    files = [path for name in (*inputs, *benchmark_names) for path in local_files_of(name, data_dir)]
    for written in (output, rejects_path(output)):
        require_other_file(written, files)
    problems = _joined({name: load_any_problems(name, data_dir) for name in inputs})
    benchmarks = {name: load_any_problems(name, data_dir) for name in benchmark_names}
    curated = curate(
        problems,
        BenchmarkGrams(benchmarks) if benchmarks else None,
        read_pass_rates(run) if run else None,
        CurationRules(min_overlap, min_samples, drop_unsolved),
    )
    write_problems(output, curated.kept)
    write_rejects(rejects_path(output), curated.rejected)
    if as_json:
        print_json(
            {
                "num_in": len(problems),
                "num_kept": len(curated.kept),
                "num_rejected": curated.num_rejected,
                "out": output,
                "rejects": rejects_path(output),
            }
        )
        return
    rows = [(reason.value, f"{number:,}") for reason, number in curated.num_rejected.items()]
    _print_table(("rejected for", "rows"), rows, num_right=1)
    note(f"kept {len(curated.kept):,} of {len(problems):,} rows in {output}; the rest is in {rejects_path(output)}")
    if not curated.kept:
        raise typer.Exit(ExitCode.NO)


def _joined(sets: "dict[str, tuple[Problem, ...]]") -> "tuple[Problem, ...]":
    """All sets as one; where two have the same id, the set's name goes before it."""
    from dataclasses import replace

    seen: set[str] = set()
    joined: list[Problem] = []
    for name, problems in sets.items():
        for problem in problems:
            unique = problem if problem.id not in seen else replace(problem, id=f"{name}/{problem.id}")
            seen.add(unique.id)
            joined.append(unique)
    return tuple(joined)


async def _validate_all(names: list[str], data_dir: Path | None) -> dict[str, dict[str, Any]]:
    from rstar2.data import Conversation, load_any, validate_conversations
    from rstar2.data.mistakes import Mistakes

    mistakes = Mistakes()
    problems: dict[str, tuple[Problem, ...]] = {}
    conversations: dict[str, tuple[Conversation, ...]] = {}
    for name in names:
        with mistakes.noted():
            rows = load_any(name, data_dir)
            if rows and isinstance(rows[0], Conversation):
                conversations[name] = rows  # all rows are of one kind
            else:
                problems[name] = rows  # type: ignore[assignment]
    mistakes.raise_any()
    reports = await _grade_golds(problems) if problems else {}
    for name, talks in conversations.items():
        reports[name] = _report("conversations", len(talks), "form", validate_conversations(talks))
    return {name: reports[name] for name in names}


async def _grade_golds(sets: "dict[str, tuple[Problem, ...]]") -> dict[str, dict[str, Any]]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from rstar2.cli.console import Console
    from rstar2.data import grading_of, validate
    from rstar2.grading import Grader
    from rstar2.sandbox import LocalExecutor

    reports: dict[str, dict[str, Any]] = {}
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    async with LocalExecutor() as executor:
        with Progress(*columns, console=Console(stderr=True)) as bars:
            for name, problems in sets.items():
                task = bars.add_task(name, total=len(problems))
                grading = grading_of(name)
                failures: list[Failure] = await validate(
                    problems,
                    grading,
                    Grader(executor),
                    lambda task=task: bars.advance(task),  # type: ignore[misc]
                )
                reports[name] = _report("problems", len(problems), grading, failures)
    return reports


def _report(kind: str, num_rows: int, grading: str, failures: "list[Failure]") -> dict[str, Any]:
    from dataclasses import asdict

    return {f"num_{kind}": num_rows, "grading": grading, "failures": [asdict(failure) for failure in failures]}


def _print_validation(reports: dict[str, dict[str, Any]]) -> None:
    _print_table(
        ("set", "rows", "checked by", "failures"),
        [
            (
                name,
                f"{report.get('num_problems', report.get('num_conversations')):,}",
                report["grading"],
                str(len(report["failures"])),
            )
            for name, report in reports.items()
        ],
    )
    failures = [
        (name, failure["problem_id"], failure["answer"][:60], failure["reason"])
        for name, report in reports.items()
        for failure in report["failures"]
    ]
    if failures:
        typer.echo("")
        _print_table(("set", "row", "gold", "why"), failures)


def _print_table(columns: Sequence[str], rows: Sequence[tuple[str, ...]], num_right: int | None = None) -> None:
    from rstar2.cli.console import Console

    is_right = [index == num_right for index in range(len(columns))]
    print_table(Console(), columns, rows, is_right=is_right)
