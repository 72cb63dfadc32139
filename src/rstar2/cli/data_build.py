"""`rstar2 data build`: the report's training sets, made of their public sources."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rstar2.cli.download_bars import DownloadBars
from rstar2.cli.output import ExitCode, note, print_json
from rstar2.cli.progress import counted
from rstar2.cli.tables import print_table
from rstar2.errors import UserError

if TYPE_CHECKING:
    from rstar2.data.build import BuildOptions, BuildReport

app = typer.Typer(name="build", help="Build the report's training sets from public sources.", no_args_is_help=True)

Out = Annotated[
    Path, typer.Option("-o", "--out", help="The folder for the sets and the report; made if it is not there.")
]
From = Annotated[
    Path | None,
    typer.Option("--from", help="A folder with copies of the sources, one file or folder each. Nothing is downloaded."),
]
Sources = Annotated[str, typer.Option("--sources", help="Only these sources, by commas. `data build sources` has all.")]
Revisions = Annotated[
    list[str] | None,
    typer.Option("--revision", metavar="SOURCE=COMMIT", help="Another commit than the pinned one. Can be repeated."),
]
Against = Annotated[
    str, typer.Option("--against", help="Test sets to decontaminate against: catalog names or files, by commas.")
]
MinOverlap = Annotated[
    float,
    typer.Option(
        "--min-overlap",
        min=0.0,
        max=1.0,
        help="Share of a test problem's 8-word runs that a row must hold to be dropped; 0: one is enough.",
    ),
]
DataDir = Annotated[
    Path | None, typer.Option("--data-dir", help="A folder with the test sets, searched before the hub's cache.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


@app.command("sft")
def sft_command(
    out: Out,
    from_folder: From = None,
    sources: Sources = "",
    revision: Revisions = None,
    against: Against = "",
    min_overlap: MinOverlap = 0.0,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Function calls, instructions and chat for the warm-up: three files of conversations."""
    from rstar2.data.build import build_sft

    options = _options(from_folder, sources, revision, against, min_overlap, data_dir)
    _show(build_sft(out, options), out, as_json)


@app.command("rl")
def rl_command(
    out: Out,
    from_folder: From = None,
    sources: Sources = "",
    revision: Revisions = None,
    against: Against = "math500,aime24,aime25,hmmt_feb25",
    min_overlap: MinOverlap = 0.0,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Problems with positive integer answers for reinforcement learning: one file, and what was rejected."""
    from rstar2.data.build import build_rl

    options = _options(from_folder, sources, revision, against, min_overlap, data_dir)
    _show(build_rl(out, options), out, as_json)


@app.command("sources")
def sources_command(as_json: AsJson = False) -> None:
    """Show every source: its repository, commit, licence and number of rows."""
    from rstar2.cli.console import Console
    from rstar2.data.build import sources_of

    all_sources = [(kind, source) for kind in ("sft", "rl") for source in sources_of(kind)]
    if as_json:
        print_json(
            [
                {
                    "kind": kind,
                    "name": source.name,
                    "file": f"{source.file}.jsonl",
                    "repo": source.hub.repo,
                    "revision": source.hub.revision,
                    "files": source.hub.files,
                    "is_gated": source.hub.is_gated,
                    "num_rows": source.num_rows,
                    "licence": source.licence,
                }
                for kind, source in all_sources
            ]
        )
        return
    rows = [
        (
            kind,
            source.name,
            source.hub.repo + (" (gated)" if source.hub.is_gated else ""),
            (source.hub.revision or "newest")[:8],
            f"{source.num_rows:,}",
            source.licence,
        )
        for kind, source in all_sources
    ]
    columns = ("for", "name", "repository", "commit", "rows", "licence")
    print_table(Console(), columns, rows, is_right=[column == "rows" for column in columns])


def _options(
    from_folder: Path | None,
    sources: str,
    revisions: list[str] | None,
    against: str,
    min_overlap: float,
    data_dir: Path | None,
) -> "BuildOptions":
    from rstar2.data.build import BuildOptions

    if from_folder is not None and not from_folder.is_dir():
        raise UserError(f"--from: there is no folder {from_folder}")
    pairs = [each.partition("=") for each in revisions or ()]
    if wrong := [name for name, _, commit in pairs if not (name and commit)]:
        raise UserError(f"--revision {wrong[0]}: write SOURCE=COMMIT, as in --revision toolace=6bda777c")
    return BuildOptions(
        from_folder=from_folder,
        source_names=[name for name in sources.split(",") if name],
        revisions={name: commit for name, _, commit in pairs},
        against=[name for name in against.split(",") if name],
        min_overlap_share=min_overlap,
        data_dir=data_dir,
        progress=DownloadBars(),
        counting=counted,
    )


def _show(report: "BuildReport", out: Path, as_json: bool) -> None:
    from dataclasses import asdict

    from rstar2.cli.console import Console

    if as_json:
        print_json(asdict(report))
    else:
        rows = [
            (source.name, reason, f"{number:,}")
            for source in report.sources
            for reason, number in (("rows", source.num_in), *source.left_out.items(), ("kept", source.num_kept))
        ]
        print_table(Console(), ("source", "", "rows"), rows, is_right=[False, False, True])
    for each in report.sets:
        reported = f" (the report has {each.num_in_report:,})" if each.num_in_report else ""
        note(f"{out / each.file}: {each.num_rows:,} rows{reported}")
    note(f"every filter, with examples: {out / f'build-{report.kind}.json'}")
    if not all(each.num_rows for each in report.sets):
        raise typer.Exit(ExitCode.NO)
