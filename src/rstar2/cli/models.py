"""`rstar2 models`: get a language model by name, list what is known and what is here, print where one is."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from rstar2.cli.download_bars import DownloadBars
from rstar2.cli.output import ExitCode, note, print_json

app = typer.Typer(name="models", help="Language models on this machine.", no_args_is_help=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


@app.command("get")
def get_command(
    name: Annotated[str, typer.Argument(help="A name that `rstar2 models list` shows.")],
    folder: Annotated[
        Path | None, typer.Option("--dir", help="Put the model into this folder, not into the data home.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Get it again even if it is there.")] = False,
    as_json: AsJson = False,
) -> None:
    """Download a model, check that it works, and put it in place. An agent of ours is here already: what is got is the
    model that it adapts."""
    from rstar2.models import AGENTS, Verification, get_model

    if name in AGENTS:
        note(f"{name} comes with rstar2: getting {AGENTS[name].base}, which it adapts")
        name = AGENTS[name].base
    result = get_model(name, folder=folder, force=force, progress=DownloadBars())
    if as_json:
        print_json({"folder": result.folder, "was_there": result.was_there, **asdict(result.card)})
        return
    if result.was_there:
        note("already there")
    elif result.card.verification is Verification.FILES_ONLY:
        note("its weights do not fit this machine's memory: the files were checked, but nothing was generated")
    typer.echo(result.folder)


@app.command("list")
def list_command(as_json: AsJson = False) -> None:
    """Show the catalog, and which of it is on this machine."""
    from rstar2.models import AGENTS, CATALOG, model_folder, read_card

    cards = {name: read_card(model_folder(name)) for name in CATALOG}
    if as_json:
        print_json(
            [
                {
                    "name": entry.name,
                    "repo": entry.repo,
                    "revision": entry.revision,
                    "num_params": entry.num_params,
                    "licence": entry.licence,
                    "is_chat": entry.is_chat,
                    "summary": entry.summary,
                    "folder": model_folder(entry.name) if (card := cards[entry.name]) else None,
                    "card": asdict(card) if card else None,
                }
                for entry in CATALOG.values()
            ]
            + [
                {"name": agent.name, "adapts": agent.base, "summary": agent.summary, "folder": agent.folder}
                for agent in AGENTS.values()
            ]
        )
        return
    from rich.table import Column, Table

    from rstar2.cli.console import Console

    table = Table(Column("name", no_wrap=True), "size", "licence", "here", "what it is", box=None, pad_edge=False)
    for entry in CATALOG.values():
        card = cards[entry.name]
        here = f"{card.num_bytes / 1e9:.2f} GB" if card else "no"
        table.add_row(entry.name, _count(entry.num_params), entry.licence, here, entry.summary)
    for agent in AGENTS.values():
        base = CATALOG[agent.base]
        here = "yes" if cards[agent.base] else f"needs {agent.base}"
        table.add_row(agent.name, _count(base.num_params), base.licence, here, agent.summary)
    Console().print(table)


@app.command("path")
def path_command(name: Annotated[str, typer.Argument(help="A name that `rstar2 models list` shows.")]) -> None:
    """Print the folder of a model that is on this machine; of an agent, the one with its adapters merged in."""
    from rstar2.models import AGENTS, find_entry, model_folder, read_card, resolve

    base = AGENTS[name].base if name in AGENTS else find_entry(name).name
    if read_card(model_folder(base)) is None:
        note(f"model {base!r} is not on this machine yet: run `rstar2 models get {base}`")
        raise typer.Exit(ExitCode.NO)
    typer.echo(resolve(name))


def _count(num_params: int) -> str:
    return f"{num_params / 1e9:.1f}B" if num_params >= 1e9 else f"{num_params / 1e6:.0f}M"
