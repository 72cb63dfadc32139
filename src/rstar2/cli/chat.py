"""`rstar2 chat`: a conversation that goes on; the model sees all of it, and a notebook keeps its variables."""

import sys

from rstar2.cli import agent_options as opt
from rstar2.cli.output import note
from rstar2.errors import InfrastructureError


def chat_command(
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
) -> None:
    """Talk with a model that runs Python. One line is one message; the end of the input (Ctrl-D) ends it. The limits
    hold for each answer."""
    import asyncio
    from contextlib import AsyncExitStack

    from rich.console import Console

    from rstar2.agent import Transcript
    from rstar2.cli.agent_display import AgentDisplay
    from rstar2.cli.agent_setup import ready_agent
    from rstar2.records import Outcome

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
    console = Console()
    # Between messages the event loop stands still, so that waiting for a line needs no thread and Ctrl-C ends it.
    with asyncio.Runner() as runner:
        opening = AsyncExitStack()
        try:
            ready = runner.run(opening.enter_async_context(ready_agent(options, Console(stderr=True))))
            used = runner.run(opening.enter_async_context(ready.tools()))
            agent, transcript = ready.agent, None
            while (message := _next_message()) is not None:
                if transcript is None:
                    transcript = Transcript.start(agent.chat, message, [tool.schema for tool in used])
                else:
                    transcript = transcript.with_user_turn(agent.chat, message)
                observer = AgentDisplay(console)
                answering = agent.converse(transcript, used, session="chat", observer=observer)
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
