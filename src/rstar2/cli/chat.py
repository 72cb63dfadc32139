"""`rstar2 chat`: a conversation of several questions. The model sees all of it, and a notebook keeps its variables."""

import sys

from rstar2.cli.agent_flags import BRIEF, AgentFlags, asked_recipe
from rstar2.cli.flag_groups import with_flags
from rstar2.cli.output import note
from rstar2.errors import InfrastructureError


@with_flags
def chat_command(flags: AgentFlags) -> None:
    """Talk with a model that calls tools. One line is one message; the end of the input (Ctrl-D) ends it. The limits
    hold for each answer."""
    import asyncio
    from contextlib import AsyncExitStack

    from rstar2.cli.agent_display import AgentDisplay
    from rstar2.cli.agent_setup import AgentRequest, ready_agent
    from rstar2.cli.console import Console
    from rstar2.environments.begin import asked_problem, observed_start
    from rstar2.records import Outcome

    asked = AgentRequest(asked_recipe(flags, BRIEF), flags.num_threads)
    console = Console()
    # Between messages the event loop does not run, so that waiting for a line needs no thread and Ctrl-C ends it.
    with asyncio.Runner() as runner:
        opening = AsyncExitStack()
        try:
            ready = runner.run(opening.enter_async_context(ready_agent(asked, Console(stderr=True))))
            environment = runner.run(opening.enter_async_context(ready.environment()))
            agent, episode, transcript = ready.agent, None, None
            while (message := _next_message()) is not None:
                if episode is None or transcript is None:
                    problem = asked_problem(message)
                    start = environment.opening(problem)
                    episode = runner.run(environment.begin(problem))
                    opening.push_async_callback(episode.close)
                    transcript = observed_start(agent.chat, start, episode)
                else:
                    transcript = transcript.with_user_turn(agent.chat, message)
                observer = AgentDisplay(console)
                answering = agent.converse(transcript, episode.tools, session="chat", observer=observer)
                transcript, end = runner.run(answering)
                if end.outcome is Outcome.INFRASTRUCTURE_FAULT:
                    raise InfrastructureError(end.note)
                if end.outcome is not Outcome.ANSWERED:
                    note(f"cut short: {end.note}")
        finally:
            runner.run(opening.aclose())


def _next_message() -> str | None:
    """The next line with something in it; None at the end of the input."""
    prompt = "\n> " if sys.stdin.isatty() else ""
    while True:
        try:
            message = input(prompt).strip()
        except EOFError:
            return None
        if message:
            return message
