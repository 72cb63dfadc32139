"""`rstar2 solve`: one problem, from question to answer, on the terminal or as a trace."""

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from rstar2.cli.agent_flags import BRIEF, AgentFlags, asked_recipe
from rstar2.cli.flag_groups import with_flags
from rstar2.cli.output import ExitCode, note
from rstar2.errors import UserError

if TYPE_CHECKING:
    from rstar2.cli.agent_setup import Asked
    from rstar2.records import Trace


@with_flags
def solve_command(
    problem: Annotated[str, typer.Argument(help="The problem; `-` reads it from standard input.")],
    flags: AgentFlags,
    as_json: Annotated[bool, typer.Option("--json", help="Print the trace as one line of JSON, at the end.")] = False,
) -> None:
    """Solve a problem: reason, run Python, read the result, answer. Exit code 0 if there is an answer, 1 if the model
    gave none, 3 if something failed that is not its doing."""
    import asyncio

    from rstar2.cli.agent_setup import Asked
    from rstar2.grading import extract_answer
    from rstar2.records import Outcome
    from rstar2.records.codec import encode

    question = (sys.stdin.read() if problem == "-" else problem).strip()
    if not question:
        raise UserError("the problem is empty: write what is to be solved")
    asked = Asked(asked_recipe(flags, BRIEF), tuple(flags.tools or ()), flags.num_threads)
    trace = asyncio.run(_solve(question, asked, is_shown=not as_json))
    trace = replace(trace, answer=extract_answer(*trace.turn_texts))
    if as_json:
        typer.echo(encode(trace))
    if trace.outcome is Outcome.INFRASTRUCTURE_FAULT:
        note(f"failed: {trace.note}")
        raise typer.Exit(ExitCode.INFRASTRUCTURE)
    if trace.outcome is not Outcome.ANSWERED or trace.answer is None:
        note(f"no answer: {trace.note or 'the model wrote no <answer> with a box in it'}")
        raise typer.Exit(ExitCode.NO)
    if not as_json:
        note(f"answer: {trace.answer}")


async def _solve(question: str, asked: "Asked", *, is_shown: bool) -> "Trace":
    from rich.console import Console

    from rstar2.agent.events import ignore_event
    from rstar2.cli.agent_display import AgentDisplay
    from rstar2.cli.agent_setup import ready_agent
    from rstar2.records import Problem

    async with ready_agent(asked, Console(stderr=True)) as ready, ready.tools() as tools:
        observer = AgentDisplay(Console()) if is_shown else ignore_event
        trace = await ready.agent.rollout(Problem("solve", question, answer=""), tools, observer=observer)
    return replace(trace, model=ready.model.name)
