"""`rstar2 solve`: one problem, from question to answer, on the terminal or as a trace."""

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from rstar2.cli import agent_options as opt
from rstar2.cli.output import ExitCode, note
from rstar2.errors import UserError

if TYPE_CHECKING:
    from rstar2.records import Trace


def solve_command(
    problem: Annotated[str, typer.Argument(help="The problem; `-` reads it from standard input.")],
    engine: opt.Engine = None,
    model: opt.Model = None,
    base_url: opt.BaseUrl = None,
    api_key_env: opt.ApiKeyEnv = None,
    tokenizer: opt.TokenizerFolder = None,
    script: opt.Script = None,
    template: opt.Template = "model",
    tools: opt.Tools = None,
    sandbox: opt.SandboxUrl = None,
    max_turns: opt.MaxTurns = 10,
    max_tokens: opt.MaxTokens = 4096,
    temperature: opt.Temperature = 0.6,
    seed: opt.Seed = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the trace as one line of JSON, at the end.")] = False,
) -> None:
    """Solve a problem: reason, run Python, read the result, answer. Exit code 0 if there is an answer, 1 if the model
    gave none, 3 if something failed that is not its doing."""
    import asyncio

    from rstar2.grading import extract_answer
    from rstar2.records import Outcome
    from rstar2.records.codec import encode

    question = (sys.stdin.read() if problem == "-" else problem).strip()
    if not question:
        raise UserError("the problem is empty: write what is to be solved")
    options = opt.AgentOptions(
        engine=engine,
        model=model,
        base_url=base_url,
        api_key_env=api_key_env,
        tokenizer=tokenizer,
        script=script,
        template=template,
        tools=tuple(tools or ()),
        sandbox=sandbox,
        max_turns=max_turns,
        max_tokens=max_tokens,
        temperature=temperature,
        seed=seed,
    )
    trace = asyncio.run(_solve(question, options, is_shown=not as_json))
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


async def _solve(question: str, options: opt.AgentOptions, *, is_shown: bool) -> "Trace":
    from rich.console import Console

    from rstar2.agent.events import nobody
    from rstar2.cli.agent_display import AgentDisplay
    from rstar2.cli.agent_setup import ready_agent
    from rstar2.records import Problem

    async with ready_agent(options, Console(stderr=True)) as ready, ready.tools() as tools:
        observer = AgentDisplay(Console()) if is_shown else nobody
        trace = await ready.agent.rollout(Problem("solve", question, answer=""), tools, observer=observer)
    return replace(trace, model=ready.model)
