"""`rstar2 sandbox gateway`: one address for the sandboxes of many machines."""

from typing import Annotated

import typer

from rstar2.cli.output import note
from rstar2.cli.sandbox.service_token import Port, ServiceToken, TokenFile, given_token, with_token
from rstar2.errors import UserError


def gateway(
    node: Annotated[
        list[str] | None,
        typer.Option(help="The address of a sandbox service; repeat it. Others may join by themselves."),
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Port = 8766,
    token_file: TokenFile = None,
    queue: Annotated[
        int, typer.Option(help="Executions that may wait; beyond it callers get 503 and retry.")
    ] = 100_000,
    drain_s: Annotated[float, typer.Option("--drain", help="Seconds given to running executions at the end.")] = 30.0,
) -> None:
    """Serve the API of `rstar2 sandbox serve` over many such services, until SIGTERM or Ctrl-C, then drain. Callers and
    nodes have one token; nodes that isolate less than the minimum get no calls."""
    import asyncio

    if queue < 1:
        raise UserError("--queue must be at least 1")
    token = with_token(given_token(token_file))
    try:
        asyncio.run(_serve(node or [], host, port, token, queue, drain_s))
    finally:
        token.withdraw()


async def _serve(urls: list[str], host: str, port: int, token: ServiceToken, queue: int, drain_s: float) -> None:
    from rstar2.grading import Grader
    from rstar2.sandbox.http import ServiceSettings, serve_forever
    from rstar2.sandbox.http.supervisor import address_of, listen
    from rstar2.sandbox.pool import PoolExecutor
    from rstar2.sandbox.pool.gateway import Gateway, create_gateway

    assert token.value is not None
    settings = ServiceSettings(token=token.value, listening_host=host, max_in_flight=queue)
    async with PoolExecutor(max_queued=queue) as pool:
        gateway = Gateway(pool, token.value)
        for url in urls:
            gateway.join(url, is_fixed=True)
        app = create_gateway(pool, gateway, settings, Grader(pool))
        listener = listen(host, port)
        address = address_of(listener)
        token.publish(address)
        await serve_forever(
            app,
            [listener],
            drain_s=drain_s,
            on_ready=lambda: note(f"serving on {address} over {len(urls)} nodes, and those that join; Ctrl-C drains"),
        )
