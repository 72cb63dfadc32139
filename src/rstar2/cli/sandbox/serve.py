"""`rstar2 sandbox serve`: the execution service."""

from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from rstar2.cli.output import note
from rstar2.cli.sandbox.service_token import (
    Port,
    ServiceToken,
    TokenFile,
    given_token,
    is_every_address,
    of_node,
    with_token,
    without_token,
)
from rstar2.errors import UserError

if TYPE_CHECKING:
    from rstar2.sandbox.http.supervisor import ServeConfig
    from rstar2.sandbox.isolation.guarantees import Guarantee
    from rstar2.sandbox.subprocess_executor import SubprocessExecutor


class Backend(StrEnum):
    LINUX = "linux"
    GVISOR = "gvisor"


def serve(
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Port = 8765,
    token_file: TokenFile = None,
    no_token: Annotated[
        bool,
        typer.Option("--no-token", help="Let every program of this machine in: isolated, and on loopback alone."),
    ] = False,
    num_young: Annotated[
        int | None, typer.Option("--workers", help="Short executions at one time. Default: four for each core.")
    ] = None,
    max_slots: Annotated[int, typer.Option(help="Executions at one time, long ones included.")] = 256,
    queue: Annotated[
        int, typer.Option(help="Executions that may wait; beyond it callers get 503 and retry.")
    ] = 100_000,
    drain_s: Annotated[float, typer.Option("--drain", help="Seconds given to running executions at the end.")] = 30.0,
    allow_weak_isolation: Annotated[
        bool, typer.Option("--allow-weak-isolation", help="Start even where the machine cannot isolate.")
    ] = False,
    unsafe: Annotated[
        bool, typer.Option("--unsafe", help="Plain subprocesses, no isolation at all: for code that you trust.")
    ] = False,
    backend: Annotated[
        Backend, typer.Option(help="What isolates programs: Linux itself, or gVisor (slower, a kernel of its own).")
    ] = Backend.LINUX,
    packages: Annotated[
        list[str] | None,
        typer.Option("--package", help="An installed package that programs may import besides the promised ones."),
    ] = None,
    join: Annotated[str | None, typer.Option(help="A gateway to join while this service runs.")] = None,
    advertise: Annotated[
        str | None, typer.Option(help="With --join: the URL at which the gateway reaches this service.")
    ] = None,
) -> None:
    """Serve executions, sessions and grading over HTTP until SIGTERM or Ctrl-C, then drain. Callers must send the
    service's token; clients of this user on this machine find it by themselves."""
    import asyncio

    from rstar2.sandbox.http import ServiceSettings
    from rstar2.sandbox.http.supervisor import ServeConfig
    from rstar2.sandbox.local import LocalConfig
    from rstar2.sandbox.slots.slot_factory import SlotConfig

    if backend is Backend.GVISOR and (unsafe or allow_weak_isolation):
        raise UserError("--backend gvisor isolates always: leave --unsafe and --allow-weak-isolation out")
    if join is not None and unsafe:
        raise UserError("--join: a gateway takes no node that isolates nothing; leave --unsafe out")
    if join is not None and advertise is None and is_every_address(host):
        raise UserError(
            f"--join: the gateway cannot call --host {host}; say with --advertise where it reaches this node"
        )
    if advertise is not None and join is None:
        raise UserError("--advertise is the address for a gateway: give the gateway with --join")
    if (num_young is not None and num_young < 1) or max_slots < 1 or queue < 1:
        raise UserError("--workers, --max-slots and --queue must be at least 1")
    given = given_token(token_file)
    if no_token:
        is_isolated = not unsafe and not allow_weak_isolation
        token = without_token(given, host, is_isolated=is_isolated, gateway_url=join)
    else:
        token = of_node(given, join) if join is not None else with_token(given)
    settings = ServiceSettings(token=token.value, listening_host=host, max_in_flight=queue)
    defaults = LocalConfig()
    local = LocalConfig(
        slots=SlotConfig(allow_weak_isolation=allow_weak_isolation, packages=tuple(packages or ())),
        num_young=num_young or defaults.num_young,
        max_slots=max_slots,
        queue_capacity=queue,
    )
    config = ServeConfig(
        host=host,
        port=port,
        local=local,
        service=settings,
        drain_s=drain_s,
        server_entry="from rstar2.cli.sandbox.serve import run_server_process; run_server_process()",
    )
    announcement = _Announcement(join, advertise, token)
    try:
        if unsafe:
            note("warning: no isolation at all; run only code that you trust")
            asyncio.run(_serve_unsafe(config, announcement))
        elif backend is Backend.GVISOR:
            asyncio.run(_serve_gvisor(config, announcement))
        else:
            note("starting: loading the libraries that programs will find warm ...")
            asyncio.run(_serve_isolated(config, announcement))
    finally:
        token.withdraw()


class _Announcement:
    """Announces this service: to its users at the start, and to its gateway, if it has one, until the end."""

    def __init__(self, gateway_url: str | None, advertised_url: str | None, token: ServiceToken) -> None:
        from rstar2.sandbox.pool.remote_node import Membership

        self._token = token
        self._advertised_url = advertised_url
        self._membership: Membership | None = None
        if gateway_url is not None and token.value is not None:
            self._membership = Membership(gateway_url, token.value, note)

    def announce(self, address: str) -> None:
        self._token.publish(address)
        note(f"serving on {address} (OpenAPI: {address}/openapi.json); Ctrl-C drains and stops")
        if self._membership is not None:
            self._membership.start(self._advertised_url or address)

    def withdraw(self) -> None:
        if self._membership is not None:
            self._membership.start_leaving()

    async def end(self) -> None:
        if self._membership is not None:
            await self._membership.end()


def run_server_process() -> None:
    """What each server process runs: the service with a grader that uses its own executor."""
    from rstar2.grading import Grader
    from rstar2.sandbox.http.server_process import run_server

    run_server(Grader)


async def _serve_isolated(config: "ServeConfig", announcement: _Announcement) -> None:
    from rstar2.sandbox.http.supervisor import Supervisor

    try:
        await Supervisor(config, on_ready=announcement.announce, on_stopping=announcement.withdraw).run()
    finally:
        await announcement.end()


async def _serve_unsafe(config: "ServeConfig", announcement: _Announcement) -> None:
    from rstar2.sandbox.isolation import guarantees
    from rstar2.sandbox.unsafe.executor import UnsafeExecutor

    await _serve_here(config, announcement, UnsafeExecutor(), "none", guarantees.of_plain_subprocesses())


async def _serve_gvisor(config: "ServeConfig", announcement: _Announcement) -> None:
    from rstar2.sandbox.gvisor.executor import GvisorExecutor

    executor = GvisorExecutor(config.local.slots.packages, config.local.num_young, config.local.queue_capacity)
    await _serve_here(config, announcement, executor, Backend.GVISOR.value, executor.guarantees)


async def _serve_here(
    config: "ServeConfig",
    announcement: _Announcement,
    executor: "SubprocessExecutor",
    backend: str,
    guarantees: "list[Guarantee]",
) -> None:
    """Serve in this process, with no standby server."""
    from rstar2.grading import Grader
    from rstar2.sandbox.http import create_app, serve_forever
    from rstar2.sandbox.http.supervisor import address_of, listen

    listener = listen(config.host, config.port)
    async with executor:
        table = [asdict(guarantee) for guarantee in guarantees]
        app = create_app(executor, config.service, grader=Grader(executor), guarantees=lambda: table, backend=backend)
        address = address_of(listener)
        await serve_forever(app, [listener], drain_s=config.drain_s, on_ready=lambda: announcement.announce(address))
        await announcement.end()
