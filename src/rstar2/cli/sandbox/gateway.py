"""`rstar2 sandbox gateway`: one address for the sandboxes of many machines."""

from typing import Annotated

import typer

from rstar2.cli.output import note
from rstar2.cli.sandbox.exposure import check_exposure
from rstar2.errors import UserError


def gateway(
    node: Annotated[
        list[str] | None,
        typer.Option(help="The address of a sandbox service; repeat it. Others may join by themselves."),
    ] = None,
    host: Annotated[
        str, typer.Option(help="The address to listen on. Anything but loopback needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen on; 0 takes a free one.")] = 8766,
    token: Annotated[
        str | None, typer.Option(envvar="RSTAR2_SANDBOX_TOKEN", help="The token of callers, and of all nodes.")
    ] = None,
    queue: Annotated[
        int, typer.Option(help="Executions that may wait; beyond it callers are told to come back.")
    ] = 100_000,
    drain_s: Annotated[float, typer.Option("--drain", help="Seconds given to running executions at the end.")] = 30.0,
) -> None:
    """Serve the API of `rstar2 sandbox serve` over many such services, until SIGTERM or Ctrl-C, then drain."""
    import asyncio

    check_exposure(host, token)
    if queue < 1:
        raise UserError("--queue must be at least 1")
    asyncio.run(_serve(node or [], host, port, token, queue, drain_s))


async def _serve(urls: list[str], host: str, port: int, token: str | None, queue: int, drain_s: float) -> None:
    from rstar2.grading import Grader
    from rstar2.sandbox.http import ServiceSettings, serve_forever
    from rstar2.sandbox.pool import PoolExecutor
    from rstar2.sandbox.pool.gateway import Gateway, create_gateway
    from rstar2.sandbox.supervisor import listen

    async with PoolExecutor(max_queued=queue) as pool:
        keeper = Gateway(pool, token)
        for url in urls:
            keeper.join(url, is_fixed=True)
        settings = ServiceSettings(token=token, max_in_flight=queue)
        app = create_gateway(pool, keeper, settings, Grader(pool))
        listener = listen(host, port)
        bound_host, bound_port = listener.getsockname()[:2]
        address = f"http://[{bound_host}]:{bound_port}" if ":" in bound_host else f"http://{bound_host}:{bound_port}"
        await serve_forever(
            app,
            [listener],
            drain_s=drain_s,
            on_ready=lambda: note(f"serving on {address} over {len(urls)} nodes, and those that join; Ctrl-C drains"),
        )
