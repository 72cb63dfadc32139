"""`rstar2 solve`: one problem, from question to answer, on the terminal or as a trace."""

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from rstar2.cli.agent_flags import BRIEF, AgentFlags, asked_recipe
from rstar2.cli.flag_groups import with_flags
from rstar2.cli.output import ExitCode, note, say
from rstar2.cli.solve_tree import Vote, solve_tree, vote
from rstar2.errors import UserError

if TYPE_CHECKING:
    from rstar2.cli.agent_setup import AgentRequest
    from rstar2.records import Trace


@with_flags
def solve_command(
    problem: Annotated[
        str,
        typer.Argument(
            help="The problem, or for an environment that needs more a JSON object: a row of its data. `-` reads it "
            "from standard input."
        ),
    ],
    flags: AgentFlags,
    as_json: Annotated[bool, typer.Option("--json", help="Print the trace as one line of JSON, at the end.")] = False,
    num_leaves: Annotated[
        int | None,
        typer.Option(
            "--tree",
            metavar="LEAVES",
            min=1,
            help="Attempt the problem this many times, as a tree: a quarter begin at the prompt, the others fork after "
            "a tool result. The answer is the one that most attempts give. With --json each attempt is a line.",
        ),
    ] = None,
    num_tokens: Annotated[
        int | None,
        typer.Option(
            "--tree-tokens",
            metavar="TOKENS",
            min=1,
            help="With --tree: begin no further attempt that is expected to exceed this many generated tokens.",
        ),
    ] = None,
) -> None:
    """Solve a problem: reason, call tools, read the result, answer. Exit code 0 if there is an answer, 1 if the model
    gave none, 3 if something failed that is not its doing."""
    import asyncio

    from rstar2.cli.agent_setup import AgentRequest
    from rstar2.records import Outcome
    from rstar2.records.codec import encode

    question = (sys.stdin.read() if problem == "-" else problem).strip()
    if not question:
        raise UserError("the problem is empty: write what is to be solved")
    if num_tokens is not None and num_leaves is None:
        raise UserError("--tree-tokens needs --tree: how many attempts are there at most?")
    asked = AgentRequest(asked_recipe(flags, BRIEF), flags.num_threads)
    solving = _solve(question, asked, is_shown=not as_json, num_leaves=num_leaves, num_tokens=num_tokens)
    leaves, chosen = asyncio.run(solving)
    if as_json:
        for leaf in leaves:
            say(encode(leaf).decode())
    trace = chosen.trace
    if num_leaves is not None:
        note(
            f"{chosen.num_votes} of {chosen.num_leaves} attempts agree; {chosen.num_generated} tokens generated, "
            f"{chosen.num_shared} shared"
        )
    if trace.outcome is Outcome.INFRASTRUCTURE_FAULT:
        note(f"failed: {trace.note}")
        raise typer.Exit(ExitCode.INFRASTRUCTURE)
    is_answered = trace.outcome is Outcome.ANSWERED and trace.answer is not None
    if is_answered and not as_json:
        note(f"answer: {trace.answer}")
    if trace.reward is not None and not as_json:
        parts = "".join(f", {name} {value}" for name, value in trace.score_parts.items())
        note(f"reward: {trace.reward:g}{parts}")
    if not is_answered:
        note(f"no answer: {trace.note or 'the model wrote no <answer> with a box in it'}")
        raise typer.Exit(ExitCode.NO)


async def _solve(
    question: str, asked: "AgentRequest", *, is_shown: bool, num_leaves: int | None, num_tokens: int | None
) -> "tuple[list[Trace], Vote]":
    from rstar2.agent.events import ignore_event
    from rstar2.cli.agent_display import AgentDisplay
    from rstar2.cli.agent_setup import ready_agent
    from rstar2.cli.console import Console
    from rstar2.environments.begin import asked_problem
    from rstar2.evals.votes import graders_equality
    from rstar2.grading import Grader
    from rstar2.rollout.trees import TreeSettings

    problem = asked_problem(question)
    async with ready_agent(asked, Console(stderr=True)) as ready, ready.environment() as environment:
        observer = AgentDisplay(Console()) if is_shown else ignore_event
        is_math = ready.section.source == "math"
        # A row of data has what its reward needs; a question alone has not.
        is_scored = not is_math and problem.problem.startswith("{")
        if num_leaves is None:
            leaves = [await ready.solve(environment, problem, observer, is_scored=is_scored)]
        else:
            tree = TreeSettings.for_search(num_leaves, num_tokens)
            leaves = await solve_tree(ready, environment, problem, num_leaves, tree)
        leaves = [_with_answer(leaf, is_math=is_math) for leaf in leaves]
        same = graders_equality(Grader(ready.services.executor)) if is_math else None
        return leaves, await vote(leaves, same)


def _with_answer(trace: "Trace", *, is_math: bool) -> "Trace":
    from rstar2.grading import extract_answer

    if is_math:
        return replace(trace, answer=extract_answer(*trace.turn_texts))
    return trace if trace.answer is not None or not trace.turns else replace(trace, answer=trace.final_text)
