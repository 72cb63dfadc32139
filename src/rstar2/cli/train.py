"""`rstar2 train`: from a recipe to an agent, in one process or on a cluster. A killed run can be resumed."""

import json
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rstar2.cli.interrupts import Interrupts
from rstar2.cli.output import note, say
from rstar2.cli.progress import waiting
from rstar2.cli.threads import check_threads, use_threads
from rstar2.errors import UserError
from rstar2.extensions import ADVANTAGES, ENGINES, POLICIES, SELECTIONS

if TYPE_CHECKING:
    from rstar2.config import Recipe
    from rstar2.train import Observer, Prepared

MAX_HINT_CHARS = 200
"""A longer row would fill the terminal; the hint then shows braces alone."""


def train_command(
    recipe: Annotated[
        Path | None, typer.Argument(metavar="RECIPE", help="A file, or a name of `recipe list`; not with --resume.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a field (train.lr=1e-6).")
    ] = None,
    run: Annotated[
        Path | None, typer.Option(help="Folder of the run, new or empty; by default runs/<name>-<time>.")
    ] = None,
    resume: Annotated[Path | None, typer.Option(metavar="RUN", help="Resume a run that was stopped.")] = None,
    num_threads: Annotated[
        int | None, typer.Option("--threads", min=1, help="CPU threads of torch; by default the cores of the machine.")
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Train on Ray: `auto` (the one that runs here or in RAY_ADDRESS), `local` (a new one on this "
            "machine), HOST:PORT or ray://HOST:PORT. The recipe says how in \\[cluster].",
        ),
    ] = None,
    is_driver: Annotated[bool, typer.Option("--driver", hidden=True)] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Check recipe and data: all mistakes, or the recipe in full and what it would train."
        ),
    ] = False,
) -> None:
    """Train a model by a recipe. Everything is kept in the run folder: traces, metrics, checkpoints, a report."""
    check_threads(num_threads)
    if (recipe is None) == (resume is None):
        raise UserError("give a recipe to start a run, or --resume RUN to resume one")
    if resume is not None and (overrides or run is not None or dry_run):
        raise UserError("--resume uses the run's own recipe: leave --set, --run and --dry-run out")
    if dry_run:
        assert recipe is not None
        _dry_run(recipe, overrides or [])
        return
    from rstar2.models.storage import require_installed

    require_installed(("torch", "transformers"), "training")
    if cluster is not None and not is_driver:
        raise typer.Exit(_supervise(recipe, overrides or [], run, resume, cluster, num_threads))
    interrupts = Interrupts()
    with interrupts.watched():
        with waiting("reading recipe and data"):
            prepared = _prepare(recipe, overrides or [], run, resume, for_cluster=cluster is not None)
        _train(prepared, num_threads, cluster, interrupts)


def _dry_run(path: Path, overrides: list[str]) -> None:
    """All mistakes of the recipe and of its data at once; without any, the recipe on stdout and, on stderr, what it
    would train."""
    from rstar2.cli.train_outlook import outlook
    from rstar2.config import examine_recipe, to_toml
    from rstar2.data import examine_data
    from rstar2.data.mistakes import listed

    reading = examine_recipe(path, overrides)
    with waiting("reading the data"):
        data = examine_data(reading)
    mistakes = [*reading.mistakes, *data.mistakes]
    if reading.recipe is not None:
        mistakes += _own_code_mistakes(reading.recipe)
    if mistakes:
        raise UserError(listed(str(path), list(dict.fromkeys(mistakes))))  # data may be read with the recipe's own code
    assert reading.recipe is not None and data.curriculum is not None
    typer.echo(to_toml(reading.recipe), nl=False)
    for line in (*data.notes, *outlook(reading.recipe, data.curriculum)):
        note(line)


def _own_code_mistakes(recipe: "Recipe") -> list[str]:
    """About code that the recipe names as package.module:name. It is loaded now, so that a mistake costs no training
    time."""
    from rstar2.environments.open import check_environment

    mistakes = []
    for field, table, name in (
        ("algo.selection", SELECTIONS, recipe.algo.selection),
        ("algo.advantage", ADVANTAGES, recipe.algo.advantage),
        ("engine.kind", ENGINES, recipe.engine.kind),
        ("rollout.scheduler", POLICIES, recipe.rollout.scheduler),
    ):
        if name not in table:
            try:
                table.load(name)
            except UserError as error:
                mistakes.append(f"{field}: {error}")
    for section in (recipe.environment, *recipe.environments.values()):
        try:
            check_environment(section)
        except UserError as error:
            mistakes.append(str(error))
    return mistakes


def _supervise(
    recipe: Path | None,
    overrides: list[str],
    run: Path | None,
    resume: Path | None,
    cluster: str,
    num_threads: int | None,
) -> int:
    """The driver runs in a child, so that it can be started again if it is killed."""
    from rstar2.cluster.supervise import supervise
    from rstar2.config import load_recipe
    from rstar2.records.run_layout import make_run_folder

    if resume is None and run is None:
        assert recipe is not None
        run = make_run_folder(load_recipe(recipe, overrides).name)
    folder = resume or run
    assert folder is not None
    driver = ["train", "--driver", "--cluster", cluster]
    if num_threads is not None:
        driver += ["--threads", str(num_threads)]
    go_on = [*driver, "--resume", str(folder)]
    begin = [*driver, "--run", str(folder), str(recipe)]
    for override in overrides:
        begin += ["--set", override]
    return supervise(go_on if resume else begin, go_on, folder, note)


def _prepare(
    recipe: Path | None, overrides: list[str], run: Path | None, resume: Path | None, *, for_cluster: bool = False
) -> "Prepared":
    from rstar2.config import load_recipe
    from rstar2.records.run_layout import make_run_folder
    from rstar2.train import prepare_new, prepare_resumed
    from rstar2.train.run import check_cluster, check_solo

    check = check_cluster if for_cluster else check_solo
    if resume is not None:
        return prepare_resumed(resume, check)
    assert recipe is not None
    loaded = load_recipe(recipe, overrides)
    if mistakes := _own_code_mistakes(loaded):
        raise UserError("\n".join(mistakes))
    prepared = prepare_new(loaded, run or Path(), check)
    if run is None:
        from dataclasses import replace

        prepared = replace(prepared, folder=make_run_folder(loaded.name))
    return prepared


def _train(prepared: "Prepared", num_threads: int | None, cluster: str | None, interrupts: Interrupts) -> None:
    from rstar2.train import Observers
    from rstar2.train.reporting.metric_services import open_writers
    from rstar2.web.report import render_report

    use_threads(num_threads)
    note(f"run folder: {prepared.folder}")
    writers = open_writers(prepared.recipe.train.writers, prepared.folder, prepared.recipe.model_dump(mode="json"))
    try:
        with _shown() as display:
            _run(prepared, Observers(display, *writers), cluster, interrupts)
    except BaseException:
        if (prepared.folder / "run.json").exists():
            where = "" if cluster is None else f" --cluster {cluster}"
            note(f"to resume: rstar2 train --resume {prepared.folder}{where}")
        raise
    finally:
        for writer in writers:
            writer.close()
    report = prepared.folder / "report.html"
    report.write_text(render_report(prepared.folder), encoding="utf-8")
    _summary(prepared.folder)
    say(f"model:  {prepared.folder / 'final'}")
    say(f"report: {report}")
    first = next((problems[0] for problems in prepared.curriculum.stages if problems), None)
    say(f"try it: {_solve_hint(prepared.folder, first.row if first else {})}")


def _solve_hint(folder: Path, row: Mapping[str, Any]) -> str:
    """A command that asks what was trained. An environment that reads columns is asked with a row, such as `row`."""
    from rstar2.environments.messages import PROMPT_COLUMNS

    if not row or any(column in row for column in PROMPT_COLUMNS):
        return f'rstar2 solve --model {folder / "final"} "…"'
    text = json.dumps(row, ensure_ascii=False)
    return f"rstar2 solve --recipe {folder} {shlex.quote(text if len(text) <= MAX_HINT_CHARS else '{…}')}"


def _run(prepared: "Prepared", observer: "Observer", cluster: str | None, interrupts: Interrupts) -> None:
    if cluster is None:
        from rstar2.engine.process.child import make_garbage_collection_rare
        from rstar2.train import train

        make_garbage_collection_rare()
        interrupts.run(train(prepared, observer, argv=sys.argv))
        return
    from rstar2.cluster.connect import connected

    with connected(cluster):
        from rstar2.cluster.run import train_on_cluster

        interrupts.run(train_on_cluster(prepared, observer, argv=sys.argv))


def _summary(folder: Path) -> None:
    """What the evaluations said, one line each."""
    from rstar2.records import RunView

    for row in RunView(folder).metrics():
        if row.stage.startswith("eval:"):
            accuracy = row.values.get("accuracy") or 0.0
            say(f"held-out accuracy after {row.stage.removeprefix('eval:')}: {accuracy:.1%}")


@contextmanager
def _shown() -> "Iterator[Observer]":
    from rich.live import Live

    from rstar2.cli.console import Console
    from rstar2.cli.progress import every_so_often
    from rstar2.cli.train_display import Lines, LiveView, Progress

    console = Console(stderr=True)
    if not console.is_terminal:
        lines = Lines(console)
        with every_so_often(lines.tick):
            yield lines
        return
    progress = Progress()
    with Live(LiveView(progress), console=console, refresh_per_second=4):
        yield progress
