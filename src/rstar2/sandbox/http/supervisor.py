"""The parent process of a service: it owns the listening socket and the templates, and keeps one server process serving
and one on standby.

Nothing that callers send reaches this process, so no caller can crash it. If it is killed all the same, its servers
exit with it, the slots see their sockets close, and the last template removes the cgroups.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from rstar2.errors import InfrastructureError, UserError
from rstar2.sandbox.http import ServiceSettings
from rstar2.sandbox.http.server_process import ServingConfig
from rstar2.sandbox.isolation import cgroup
from rstar2.sandbox.local import LocalConfig
from rstar2.sandbox.slots.slot_factory import decide_layers, make_service_group, template_config
from rstar2.sandbox.slots.templates import ReadyTemplate, TemplatePool

_NUM_TEMPLATES = 2
_FIRST_READY_S = 120.0
_MAX_DELAY_S = 5.0
_BACKLOG = 4096


@dataclass(frozen=True, slots=True)
class ServeConfig:
    host: str = "127.0.0.1"
    port: int = 8765
    local: LocalConfig = field(default_factory=LocalConfig)
    service: ServiceSettings = field(default_factory=ServiceSettings)
    drain_s: float = 30.0
    server_entry: str = "from rstar2.sandbox.http.server_process import run_server; run_server(None)"
    """A server process's code; the command line passes one with a grader."""


@dataclass(eq=False)
class _Server:
    process: subprocess.Popen[bytes]
    channel: socket.socket
    is_serving: bool = False
    started_at: float = field(default_factory=time.monotonic)

    def send(self, content: dict[str, object], fds: list[int] | None = None) -> None:
        with contextlib.suppress(OSError):  # if it has exited, the supervisor notices that elsewhere
            socket.send_fds(self.channel, [json.dumps(content).encode()], fds or [])


class Supervisor:
    def __init__(
        self,
        config: ServeConfig,
        *,
        on_ready: Callable[[str], None] = lambda _: None,
        on_stopping: Callable[[], None] = lambda: None,
    ) -> None:
        self._config = config
        self._on_ready = on_ready
        self._on_stopping = on_stopping
        self._loop = asyncio.get_running_loop()
        layers = decide_layers(config.local.slots)
        self._listener = listen(config.host, config.port)
        self._group = make_service_group(config.local.slots)
        template = template_config(config.local.slots, layers, self._group)
        self._templates: list[ReadyTemplate] = []
        self._pool = TemplatePool(template, _NUM_TEMPLATES, self._on_template)
        self._servers: list[_Server] = []
        self._stopping = asyncio.Event()
        self._ended = asyncio.Event()
        self._first_ready = asyncio.Event()
        self._delay_s = 0.0
        self._failure: str | None = None
        self.num_server_deaths = 0

    @property
    def address(self) -> str:
        return address_of(self._listener)

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT, drain, and leave nothing behind."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._on_signal)
        try:
            for _ in range(2):
                self._start_server()
            self._promote()
            first = asyncio.create_task(self._pool.start_first())
            ready = asyncio.create_task(self._first_ready.wait())
            ended = asyncio.create_task(self._ended.wait())
            done, _ = await asyncio.wait([first, ended], timeout=_FIRST_READY_S, return_when=asyncio.FIRST_COMPLETED)
            if first in done:
                first.result()
            await asyncio.wait([ready, ended], timeout=_FIRST_READY_S, return_when=asyncio.FIRST_COMPLETED)
            if not ready.done() and not ended.done():
                raise InfrastructureError(f"the service was not ready after {_FIRST_READY_S:g} s")
            await self._ended.wait()
            if self._failure is not None:
                raise InfrastructureError(self._failure)
        finally:
            await self._clean_up()

    # ---- templates ----

    def _on_template(self, started: ReadyTemplate) -> None:
        self._templates.append(started)
        self._watch(started.process.pid, lambda: self._on_template_death(started))
        for server in self._servers:
            self._lend(server, started)

    def _on_template_death(self, started: ReadyTemplate) -> None:
        self._templates.remove(started)
        if not self._stopping.is_set():
            self._pool.replace(started)

    def _lend(self, server: _Server, started: ReadyTemplate) -> None:
        # A standby must not hold a template's socket: it could receive answers meant for the serving process.
        if server.is_serving:
            server.send({"kind": "template", "facts": started.facts}, [started.control.fileno()])

    # ---- servers ----

    def _start_server(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        config = ServingConfig(
            listen_fd=self._listener.fileno(),
            supervisor_pid=os.getpid(),
            service_group=str(self._group.path) if self._group else None,
            local=self._config.local,
            service=self._config.service,
            drain_s=self._config.drain_s,
        )
        ours.send(config.to_message())
        process = subprocess.Popen(
            [sys.executable, "-c", self._config.server_entry, str(theirs.fileno())],
            pass_fds=[self._listener.fileno(), theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        ours.setblocking(False)
        server = _Server(process, ours)
        self._servers.append(server)
        self._loop.add_reader(ours.fileno(), self._on_server_message, server)
        self._watch(process.pid, lambda: self._on_server_death(server))

    def _promote(self) -> None:
        """Let the first standby server serve if no server is serving."""
        if self._servers and not any(server.is_serving for server in self._servers):
            server = self._servers[0]
            server.is_serving = True
            server.send({"kind": "serve"})
            for started in self._templates:
                self._lend(server, started)

    def _on_server_message(self, server: _Server) -> None:
        try:
            message = server.channel.recv(64)
        except OSError:
            message = b""
        if not message:
            self._loop.remove_reader(server.channel.fileno())
        elif not self._first_ready.is_set():
            self._first_ready.set()
            self._on_ready(self.address)

    def _on_server_death(self, server: _Server) -> None:
        self._loop.remove_reader(server.channel.fileno())
        server.channel.close()
        code = server.process.wait()
        self._servers.remove(server)
        if self._group is not None:
            cgroup.remove_slots_of(self._group.path, server.process.pid, deadline_s=0.5)
        if self._stopping.is_set():
            if server.is_serving or not self._servers:
                self._ended.set()
            return
        self.num_server_deaths += 1
        if not self._first_ready.is_set():
            self._failure = f"a server process ended while starting, with exit code {code}; its reason is above"
            self._ended.set()
            return
        print(f"rstar2 sandbox: a server process ended ({code}); another takes over", file=sys.stderr, flush=True)
        lived_s = time.monotonic() - server.started_at
        self._delay_s = 0.0 if lived_s > 10.0 else min(max(0.1, self._delay_s * 2), _MAX_DELAY_S)
        self._promote()
        self._loop.call_later(self._delay_s, self._replenish)

    def _replenish(self) -> None:
        if not self._stopping.is_set() and len(self._servers) < 2:
            self._start_server()
            self._promote()

    # ---- the end ----

    def _on_signal(self) -> None:
        """The first signal starts to drain; the second is passed on and ends the draining."""
        if not self._stopping.is_set():
            self._on_stopping()
        self._stopping.set()
        serving = [server for server in self._servers if server.is_serving]
        for server in serving:
            server.process.send_signal(signal.SIGTERM)
        if not serving:
            self._ended.set()

    async def _clean_up(self) -> None:
        self._stopping.set()
        self._listener.close()
        for server in list(self._servers):
            server.process.kill()
            server.process.wait()
        await self._pool.close()
        if self._group is not None:
            cgroup.remove_slots_of(self._group.path, None, deadline_s=2.0)
            self._group.close()

    def _watch(self, pid: int, on_end: Callable[[], None]) -> None:
        """Call `on_end` when a child process has ended."""
        fd = os.pidfd_open(pid)

        def ended() -> None:
            self._loop.remove_reader(fd)
            os.close(fd)
            on_end()

        self._loop.add_reader(fd, ended)


def listen(host: str, port: int) -> socket.socket:
    if not 0 <= port <= 65535:
        raise UserError(f"port: {port} is none; they go from 1 to 65535, and 0 takes a free one")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        raise UserError(f"cannot listen on {host}:{port}: {error.strerror or error}; choose another --port") from None
    return listener


def address_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
