"""`rstar2 view`: run directories as a local web page."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rstar2.cli.agent_flags import BRIEF, AskFlags, asked_recipe
from rstar2.cli.flag_groups import with_flags
from rstar2.cli.output import note
from rstar2.errors import UserError

if TYPE_CHECKING:
    from rstar2.cli.agent_setup import AgentRequest
    from rstar2.web.run_reader import RunReader

DEFAULT_PORT = 8760


@with_flags
def view_command(
    flags: AskFlags,
    runs: Annotated[
        list[Path] | None, typer.Argument(metavar="RUN...", help="Run directories; several can be compared.")
    ] = None,
    demo: Annotated[bool, typer.Option("--demo", help="A small run that comes with the package.")] = False,
    host: Annotated[
        str, typer.Option(help="The address to listen on; others than this machine's own can then look.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port to listen on; 0 takes a free one.")
    ] = DEFAULT_PORT,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="The folder of the runs' model or tokenizer, for the text of single tokens; a run that brings its own "
            "needs none.",
            show_default=False,
        ),
    ] = None,
    models: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            metavar="NAME",
            help="Turns the playground on, with this model: as for `rstar2 solve`. May be repeated to choose from.",
            rich_help_panel="Model and engine",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Look at runs: curves, rollouts side by side, single traces, engines and tool calls. Read-only, on this machine
    alone unless --host says otherwise. With --model, --recipe, --base-url or --script there is a playground, too."""
    import asyncio

    from rstar2.cli.agent_setup import AgentRequest
    from rstar2.sandbox.http.access import is_loopback
    from rstar2.web.run_reader import open_runs

    # A server may have one model only, a script needs none, and a recipe names its own.
    is_one_named = any(each is not None for each in (flags.base_url, flags.script, flags.recipe))
    unnamed: list[str | None] = [None] if is_one_named else []
    asked = [AgentRequest(asked_recipe(flags, BRIEF, model=model), flags.num_threads) for model in models or unnamed]
    if asked and not is_loopback(host):
        raise UserError(f"--host {host} with an engine would let other machines use it: leave one of them out")
    if not runs and not demo:
        raise UserError("which run? give one or more run directories, or --demo")
    with _demo_run(wanted=demo) as demo_runs:
        readers = open_runs([*(runs or ()), *demo_runs], tokenizer)
        asyncio.run(_serve(readers, asked, flags.seed, host, port, opens_browser=browser))


@contextmanager
def _demo_run(*, wanted: bool) -> Iterator[list[Path]]:
    """The bundled run, unpacked for as long as it is looked at."""
    from tempfile import TemporaryDirectory

    from rstar2.web.demo import unpack_demo

    if not wanted:
        yield []
        return
    with TemporaryDirectory(prefix="rstar2-demo-") as folder:
        yield [unpack_demo(Path(folder))]


async def _serve(
    readers: "list[RunReader]",
    asked: "list[AgentRequest]",
    seed: int | None,
    host: str,
    port: int,
    *,
    opens_browser: bool,
) -> None:
    import webbrowser

    from rstar2.cli.playground import AgentPlayground
    from rstar2.sandbox.http.access import is_loopback
    from rstar2.web.server import create_app, serving

    async with AgentPlayground(asked, seed) as playground:
        app = create_app(readers, host=host, playground=playground if asked else None)
        async with serving(app, host, port) as url:
            note(f"looking at {', '.join(reader.key for reader in readers)}: {url} (Ctrl-C ends)")
            if not is_loopback(host):
                note("anyone who can reach this address can read these runs")
            if opens_browser:
                webbrowser.open(url)
            await _until_signal()


async def _until_signal() -> None:
    import asyncio
    import signal

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    await stop.wait()
