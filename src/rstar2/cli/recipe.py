"""`rstar2 recipe`: list the shipped recipes, explain the fields, check recipes, show what one resolves to."""

from pathlib import Path
from typing import Annotated

import typer

from rstar2.cli.output import ExitCode, note, print_json
from rstar2.errors import UserError

app = typer.Typer(help="List, explain, check and show recipes.", no_args_is_help=True)

Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change one value, as in --set train.lr=1e-6. May be repeated."),
]


@app.command(name="list")
def list_shipped(as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False) -> None:
    """List the recipes that come with rstar2. Commands that take a recipe take their names."""
    from rstar2.config import shipped_recipes

    recipes = shipped_recipes()
    if as_json:
        print_json([{"name": recipe.name, "summary": recipe.summary} for recipe in recipes.values()])
        return
    width = max(map(len, recipes))
    for recipe in recipes.values():
        typer.echo(f"{recipe.name:{width}}  {recipe.summary}")


@app.command(name="explain")
def explain_fields(
    key: Annotated[
        str, typer.Argument(metavar="[SECTION|KEY]", help="Only this section (train) or key (train.lr).")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="As a Markdown page.")] = False,
) -> None:
    """Say what every field does, its type and its default."""
    from dataclasses import asdict

    from rstar2.config import explain as reference

    if as_json and as_markdown:
        raise UserError("--json and --markdown exclude each other; give one of them")
    sections = reference.explain(key)
    if as_json:
        print_json([asdict(field) for section in sections for field in section.fields])
    elif as_markdown:
        typer.echo(reference.as_markdown(sections))
    else:
        typer.echo(reference.as_text(sections))


@app.command()
def check(
    files: Annotated[list[Path], typer.Argument(metavar="RECIPE", help="Files, or names of `recipe list`.")],
    overrides: Overrides = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Check recipes and name all their mistakes."""
    from rstar2.config import load_recipe

    mistakes: dict[str, str | None] = {}
    for file in files:
        try:
            load_recipe(file, overrides or ())
        except UserError as error:
            mistakes[str(file)] = str(error)
            note(f"error: {error}")
        else:
            mistakes[str(file)] = None
            if not as_json:
                typer.echo(f"{file}: ok")
    if as_json:
        print_json([{"file": file, "ok": error is None, "error": error} for file, error in mistakes.items()])
    if any(mistakes.values()):
        raise typer.Exit(ExitCode.USAGE)


@app.command()
def show(
    file: Annotated[Path, typer.Argument(metavar="RECIPE", help="A file, or a name of `recipe list`.")],
    overrides: Overrides = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    as_written: Annotated[
        bool, typer.Option("--as-written", help="Print the file itself, with its comments: to copy and change.")
    ] = False,
) -> None:
    """Print a recipe with every field resolved, as TOML that is itself a recipe."""
    from rstar2.config import load_recipe, recipe_text, to_toml

    if as_written:
        if overrides or as_json:
            raise UserError("--as-written prints the file as it is: leave --set and --json out")
        typer.echo(recipe_text(file), nl=False)
        return
    recipe = load_recipe(file, overrides or ())
    if as_json:
        print_json(recipe.model_dump(mode="json"))
    else:
        typer.echo(to_toml(recipe), nl=False)
