"""`rstar2 serve`: a model as an HTTP server that OpenAI's clients, evaluation harnesses and trainers can ask."""

import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rstar2.cli.agent_flags import BRIEF, AskFlags, asked_recipe
from rstar2.cli.flag_groups import in_panel, with_flags
from rstar2.cli.output import note
from rstar2.errors import UserError

if TYPE_CHECKING:
    from rstar2.cli.agent_setup import AgentRequest
    from rstar2.serve import ServedAgent, ServedModel, ServeSettings

KEY_ENV = "RSTAR2_SERVE_KEY"
DEFAULT_PORT = 8767
MAX_SEQUENCES = 4096
MAX_EPISODES = 64
"""The most episodes at a time: each may hold a process of the sandbox."""
_OF_AGENTS = ("sandbox", "environment", "tools", "max_turns", "temperature")
_server = in_panel("Server")


@with_flags
def serve_command(
    flags: AskFlags,
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="A model folder, a name of `rstar2 models list`, or a training run; by default the agent that comes "
            "with rstar2. With --base-url one of the server's models.",
        ),
    ] = None,
    agent: Annotated[
        bool,
        _server("--agent", help="Run the tool loop inside: a chat request is answered by the agent, not by the model."),
    ] = False,
    name: Annotated[str | None, _server(help="What callers name the model; by default as it is given here.")] = None,
    host: Annotated[str, _server(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, _server(min=0, max=65535, help="The port to listen on; 0 takes a free one.")] = DEFAULT_PORT,
    key_file: Annotated[
        Path | None,
        _server(metavar="FILE", help=f"A file with one key a line, or set {KEY_ENV}. Callers must send one of them."),
    ] = None,
    allow_updates: Annotated[
        bool, _server("--allow-updates", help="Let callers pause, load adapters and update weights.")
    ] = False,
    max_in_flight: Annotated[
        int | None,
        _server(
            metavar="N",
            min=1,
            help="Sequences, or episodes of an agent, at one time; beyond it callers get 429. By default "
            f"{MAX_SEQUENCES}; {MAX_EPISODES} with --agent.",
        ),
    ] = None,
    max_body_mib: Annotated[int, _server("--max-body", metavar="MIB", min=1, help="The largest body.")] = 32,
    timeout_s: Annotated[float, _server("--timeout", metavar="S", min=0.001, help="Seconds for one request.")] = 600.0,
    drain_s: Annotated[float, _server("--drain", metavar="S", min=0, help="Seconds to finish at the end.")] = 30.0,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="With --base-url: the tokenizer of the server's model. Token ids and log-probabilities need it.",
            rich_help_panel="Model and engine",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Serve a model over HTTP: OpenAI's chat and text completions, and vLLM's token routes. With --agent it calls its
    tools inside the server, in the environment and within the limits that `rstar2 solve` has. SIGTERM or Ctrl-C drains
    and stops. On this machine alone unless --host and a key say otherwise."""
    import asyncio

    from rstar2.cli.agent_setup import AgentRequest
    from rstar2.records.run_layout import RunLayout
    from rstar2.sandbox.http.access import is_loopback
    from rstar2.serve import ServeSettings

    if not agent and any(getattr(flags, option) is not None for option in _OF_AGENTS):
        raise UserError("--env, --tool, --sandbox, --max-turns and --temperature are the agent's: add --agent")
    given_name = name
    if model is not None and RunLayout(Path(model)).info.is_file():
        if flags.recipe is not None:
            raise UserError(f"{model} is a training run, and --recipe names another: leave one of them out")
        flags, given_name, model = replace(flags, recipe=Path(model)), name or Path(model).absolute().name, None
    keys = given_keys(key_file)
    if not keys and not is_loopback(host):
        raise UserError(f"--host {host} can be reached from other machines: give a key with --key-file or {KEY_ENV}")
    settings = ServeSettings(
        keys=keys,
        listening_host=host,
        allows_updates=allow_updates,
        max_body_bytes=max_body_mib << 20,
        max_in_flight=max_in_flight or (MAX_EPISODES if agent else MAX_SEQUENCES),
        max_tokens=flags.max_tokens,
        request_timeout_s=timeout_s,
    )
    asked = AgentRequest(asked_recipe(flags, BRIEF, model=model, tokenizer=tokenizer), flags.num_threads)
    opening = _agent(asked, given_name, flags.seed) if agent else _model(asked, given_name)
    asyncio.run(_serve(opening, settings, port, drain_s))


def given_keys(file: Path | None) -> frozenset[str]:
    """The keys of the user's choice. They are taken out of the environment, so that no child process inherits them."""
    text, source = os.environ.pop(KEY_ENV, None), KEY_ENV
    if file is not None:
        source = f"--key-file {file}"
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{source}: it cannot be read: {error}") from None
    keys = frozenset(line.strip() for line in (text or "").splitlines() if line.strip())
    if text is not None and not keys:
        raise UserError(f"{source} is empty: put a key there, or leave it out")
    return keys


@asynccontextmanager
async def _model(asked: "AgentRequest", name: str | None) -> "AsyncIterator[tuple[ServedModel, ServedAgent | None]]":
    import asyncio
    from contextlib import suppress

    from rstar2.cli.threads import check_threads, use_threads
    from rstar2.rollout.engines import open_embedded, open_model
    from rstar2.serve import ServedModel

    check_threads(asked.num_threads)
    if asked.recipe.engine.kind == "embedded":
        with suppress(ImportError):  # the engine says what is missing
            await asyncio.to_thread(use_threads, asked.num_threads)
        opened = await open_embedded(asked.recipe, apart=True)
    else:
        opened = await open_model(asked.recipe)
    try:
        yield ServedModel(opened.engine, opened.chat, name or opened.name, opened.context_tokens), None
    finally:
        await opened.engine.close()


@asynccontextmanager
async def _agent(
    asked: "AgentRequest", name: str | None, seed: int | None
) -> "AsyncIterator[tuple[ServedModel, ServedAgent | None]]":
    from rstar2.cli.agent_setup import served_agent
    from rstar2.cli.console import Console

    async with served_agent(asked, Console(stderr=True), name, seed) as served:
        yield served


async def _serve(
    opening: "AbstractAsyncContextManager[tuple[ServedModel, ServedAgent | None]]",
    settings: "ServeSettings",
    port: int,
    drain_s: float,
) -> None:
    from rstar2.engine.process.child import make_garbage_collection_rare
    from rstar2.sandbox.http.supervisor import address_of, listen
    from rstar2.serve import Server, create_app

    listener = listen(settings.listening_host, port)
    address = address_of(listener)
    note("loading the model ...")
    async with opening as (model, agent):
        server = Server(create_app(model, settings, agent))
        make_garbage_collection_rare()
        await server.start([listener])
        what = f"the agent {model.name}" if agent else model.name
        note(f"serving {what} on {address}/v1 (OpenAPI: {address}/openapi.json); Ctrl-C drains and stops")
        await _until_signal()
        note(f"draining for at most {drain_s:g} s")
        if not await server.drain(drain_s):
            note("some requests were not finished")


async def _until_signal() -> None:
    import asyncio
    import signal

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    await stop.wait()
