"""`rstar2 sandbox mcp`: the sandbox as tools of any MCP client."""

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from rstar2.cli.output import note
from rstar2.cli.sandbox.service_token import (
    Port,
    ServiceToken,
    TokenFile,
    given_token,
    with_token,
    without_token,
)
from rstar2.errors import UserError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from rstar2.sandbox import Executor
    from rstar2.sandbox.mcp import McpLimits


def mcp(
    http: Annotated[
        bool, typer.Option("--http", help="Listen for clients over streamable HTTP instead of stdin and stdout.")
    ] = False,
    host: Annotated[str, typer.Option(help="With --http: the address to listen on.")] = "127.0.0.1",
    port: Port = 8767,
    token_file: TokenFile = None,
    no_token: Annotated[
        bool, typer.Option("--no-token", help="With --http: let every program of this machine in, on loopback alone.")
    ] = False,
    address: Annotated[
        str | None, typer.Option(help="A running sandbox service to use, instead of a sandbox of its own.")
    ] = None,
    max_sessions: Annotated[int, typer.Option(min=1, help="Notebooks that may be open at a time.")] = 64,
    idle_s: Annotated[
        float, typer.Option("--idle", min=1.0, help="Seconds after which an unused notebook is closed.")
    ] = 3600.0,
    max_wall_s: Annotated[
        float, typer.Option("--max-wall", min=0.1, help="The longest time limit in seconds that a call may ask for.")
    ] = 300.0,
    memory_mib: Annotated[int, typer.Option("--memory", min=16, help="Memory limit of a program in MiB.")] = 1024,
    max_output_chars: Annotated[
        int, typer.Option("--max-output", min=100, help="Characters of a result's stdout, stderr and value, each.")
    ] = 100_000,
    packages: Annotated[
        list[str] | None,
        typer.Option("--package", help="An installed package that programs may import besides the promised ones."),
    ] = None,
) -> None:
    """Offer the sandbox to an MCP client: programs, notebooks with fork and rollback, files. Ends when stdin is closed,
    or with SIGTERM or Ctrl-C, and leaves nothing behind."""
    import asyncio

    from rstar2.sandbox.execution import MIB

    try:
        from rstar2.sandbox.mcp import McpLimits
    except ModuleNotFoundError as error:
        raise UserError(f"the MCP server needs the extra `mcp`: pip install 'rstar2[mcp]' ({error})") from None
    if address is not None and packages:
        raise UserError("--package: the service at --address decides about its packages; leave one of them out")
    limits = McpLimits(max_sessions, idle_s, max_wall_s, memory_mib * MIB, max_output_chars)
    given = given_token(token_file)
    if not http:
        if no_token:
            raise UserError("--no-token is for --http: over stdin and stdout there is no other caller")
        asyncio.run(_serve_stdio(address, given, packages or [], limits))
        return
    token = without_token(given, host, is_isolated=True, gateway_url=None) if no_token else with_token(given)
    try:
        asyncio.run(_serve_http(address, given, packages or [], limits, host, port, token))
    finally:
        token.withdraw()


async def _serve_stdio(address: str | None, token: str | None, packages: list[str], limits: "McpLimits") -> None:
    from rstar2.sandbox.mcp import create_server, serve_stdio

    async with _executor(address, token, packages) as executor:
        await serve_stdio(create_server(executor, limits))


async def _serve_http(
    address: str | None,
    given: str | None,
    packages: list[str],
    limits: "McpLimits",
    host: str,
    port: int,
    token: ServiceToken,
) -> None:
    """A token that is given is also that of the service at `address`."""
    from rstar2.sandbox.http.supervisor import address_of, listen
    from rstar2.sandbox.mcp import create_server, serve_http

    listener = listen(host, port)

    def announce() -> None:
        own_address = address_of(listener)
        token.publish(own_address)
        note(f"serving MCP on {own_address}/mcp; Ctrl-C drains and stops")

    async with _executor(address, given, packages) as executor:
        server = create_server(executor, limits)
        await serve_http(server, listener, token=token.value, listening_host=host, on_ready=announce)


@asynccontextmanager
async def _executor(address: str | None, token: str | None, packages: list[str]) -> "AsyncIterator[Executor]":
    from rstar2.sandbox import LocalConfig, LocalExecutor
    from rstar2.sandbox.client import RemoteExecutor
    from rstar2.sandbox.slots.slot_factory import SlotConfig

    if address is None:
        async with LocalExecutor(LocalConfig(slots=SlotConfig(packages=tuple(packages)))) as local:
            yield local
        return
    async with RemoteExecutor(address, token) as remote:
        await remote.reach()
        yield remote
