"""`rstar2 env`: list the environments, and try one without training."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rstar2.cli.output import ExitCode, note, print_json, say
from rstar2.errors import UserError
from rstar2.extensions import ENVIRONMENTS

if TYPE_CHECKING:
    from rstar2.config import DataSet, Recipe
    from rstar2.records import Problem
    from rstar2.rollout.validate_environment import EnvironmentReport

app = typer.Typer(help="List and try environments: the tasks that a model is trained on.", no_args_is_help=True)
PARTS = ("begin", "tools of a turn", "reward", "close")
MAX_SHOWN = 3


@app.command(name="list")
def list_environments() -> None:
    """List what a recipe may name as `environment.source`."""
    width = max(map(len, ENVIRONMENTS))
    for name, entry in ENVIRONMENTS.items():
        say(f"{name:{width}}  {entry.summary}")
    typer.echo(
        f"{'file':{width}}  file:PATH.py:NAME is a class or a reward function of yours; so is package.module:NAME"
    )


@app.command()
def validate(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="[SOURCE]", help="math, code, file:PATH.py:NAME, … By default the environment of --recipe."
        ),
    ] = None,
    recipe: Annotated[
        Path | None, typer.Option("--recipe", metavar="FILE", help="A recipe: its environment and its data.")
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change one value of the recipe, as environment.settings.x=1."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(metavar="SOURCE", help="A data file, or a source as in a recipe. By default the environment's."),
    ] = None,
    num_played: Annotated[int, typer.Option("--episodes", metavar="N", min=1, help="Problems that are played.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Try an environment without a model. Gold answers must score 1, an empty answer 0; every tool is called once. Exit
    code 0 if nothing is wrong, 1 if something is."""
    import asyncio

    from rstar2.cli.agent_flags import BRIEF, AgentFlags, asked_recipe

    flags = AgentFlags(recipe=recipe, overrides=overrides, environment=source)
    made = asked_recipe(flags, BRIEF)
    problems = _problems(made, data)
    report = asyncio.run(_validate(made, problems, num_played))
    if as_json:
        print_json({**asdict(report), "complaints": report.complaints})
    else:
        _print(report, made.environment.source)
    if report.complaints:
        raise typer.Exit(ExitCode.NO)


def _problems(recipe: "Recipe", data: str | None) -> "tuple[Problem, ...]":
    """Those of the sets that are asked for. UserError names all rows that the environment cannot use."""
    from rstar2.data import load_problems
    from rstar2.data.row_checker import require_usable_rows

    found: list[Problem] = []
    for name, spec in _sets(recipe, data).items():
        problems = load_problems(name, spec, recipe.seed, recipe.environment)
        require_usable_rows(name, spec, problems, recipe.environment, recipe)
        found += problems
    return tuple(found)


def _sets(recipe: "Recipe", data: str | None) -> "dict[str, DataSet]":
    """That of --data, else the recipe's sets that belong to its environment, else the environment's own."""
    from rstar2.config import DataSet
    from rstar2.data.by_name import source_of

    if data is not None:
        source = data if data == "environment" else source_of(data)
        return {"data": DataSet(source=source, num_problems=100 if source.startswith("procedural:") else None)}
    if own := {name: spec for name, spec in recipe.data.items() if spec.environment is None}:
        return own
    if recipe.environment.source == "math":
        raise UserError("--data is needed: math has no problems of its own; procedural:gcd would do")
    return {"data": DataSet(source="environment")}


async def _validate(recipe: "Recipe", problems: "tuple[Problem, ...]", num_played: int) -> "EnvironmentReport":
    from rstar2.agent import AgentLimits
    from rstar2.cli.agent_setup import open_executor
    from rstar2.cli.progress import waiting
    from rstar2.environments import Services
    from rstar2.environments.open import open_environment
    from rstar2.rollout.setup import require_working
    from rstar2.rollout.validate_environment import validate_environment

    limits = AgentLimits.of(recipe, recipe.eval)
    with waiting("playing episodes"):
        async with (
            open_executor(recipe) as executor,
            open_environment(recipe.environment, Services(recipe, executor)) as environment,
        ):
            await require_working(executor)
            return await validate_environment(environment, problems, limits, num_played)


def _print(report: "EnvironmentReport", source: str) -> None:
    tools = ", ".join(report.tools) or "none"
    say(f"{source}: {report.num_problems:,} problems, tools: {tools}")
    num_episodes, num_faults = len(report.played), sum(bool(each.fault) for each in report.played)
    say(f"{num_episodes} episodes played, {num_faults} lost to faults, {report.num_gold} with a gold answer")
    for part in PARTS:
        if report.longest_s(part):
            median_ms, longest_ms = 1000 * report.median_s(part), 1000 * report.longest_s(part)
            say(f"  {part}: {median_ms:.1f} ms, at most {longest_ms:.1f} ms")
    if not report.num_gold:
        note("no gold answer is known: give the class a solution(row), so that the reward can be tried")
    for complaint, ids in report.complaints.items():
        shown = ", ".join(ids[:MAX_SHOWN]) + (f" and {len(ids) - MAX_SHOWN} more" if len(ids) > MAX_SHOWN else "")
        say(f"wrong: {complaint} ({shown})")
    if not report.complaints:
        say("nothing is wrong")
