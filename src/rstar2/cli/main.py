"""`rstar2`: the table of verbs."""

import gc
from typing import Annotated

import typer

import rstar2
from rstar2.cli import (
    analyze,
    chat,
    data,
    doctor,
    env,
    eval,
    export,
    models,
    plan,
    recipe,
    report,
    sandbox,
    serve,
    simulate,
    solve,
    train,
    view,
)
from rstar2.cli.output import errors_as_sentences
from rstar2.cli.threads import bound_spinning

NEW_OBJECTS_PER_COLLECTION = 50_000
"""Importing torch makes a million objects that stay. With Python's own 700 they are searched for cycles many times."""

app = typer.Typer(
    name="rstar2",
    help="Teach a language model to reason, run Python, read the result and answer.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rstar2 {rstar2.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    pass


app.command("doctor")(doctor.doctor_command)
app.command("solve")(solve.solve_command)
app.command("chat")(chat.chat_command)
app.command("train")(train.train_command)
app.command("export")(export.export_command)
app.command("eval")(eval.eval_command)
app.command("analyze")(analyze.analyze_command)
app.command("serve")(serve.serve_command)
app.command("view")(view.view_command)
app.command("report")(report.report_command)
app.command("plan")(plan.plan_command)
app.command("simulate")(simulate.simulate_command)
app.add_typer(data.app, name="data")
app.add_typer(env.app, name="env")
app.add_typer(models.app, name="models")
app.add_typer(recipe.app, name="recipe")
app.add_typer(sandbox.app, name="sandbox")


def main() -> None:
    bound_spinning()
    gc.set_threshold(NEW_OBJECTS_PER_COLLECTION)
    try:
        with errors_as_sentences():
            app()
    finally:
        gc.freeze()  # or the interpreter would search all objects of torch for cycles before it ends
