"""The server process: HTTP, queue and slots, with templates that its supervisor started.

A server process starts in advance and waits on standby, with everything imported, until the supervisor lets it serve.
So when the serving one dies, another answers within milliseconds. It ends when its supervisor does.
"""

import asyncio
import ctypes
import gc
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rstar2.sandbox.http import Load, ServiceSettings, create_app, serve_forever
from rstar2.sandbox.http.service import AnswerGrader
from rstar2.sandbox.isolation import guarantees
from rstar2.sandbox.isolation.cgroup import ServiceGroup
from rstar2.sandbox.local import LocalConfig, LocalExecutor
from rstar2.sandbox.slots.slot_factory import SlotConfig, SlotFactory
from rstar2.sandbox.slots.templates import READY_DEADLINE_S, Template, TemplateSource

MAX_MESSAGE_BYTES = 1 << 16
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class ServingConfig:
    """The configuration of a server process, sent as the first message on its supervisor's channel. It is not an
    argument, because every user of the machine can read arguments, and it holds the token."""

    listen_fd: int
    supervisor_pid: int
    service_group: str | None
    local: LocalConfig
    service: ServiceSettings
    drain_s: float

    def to_message(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_message(cls, message: bytes) -> "ServingConfig":
        fields = json.loads(message)
        local = LocalConfig(**{**fields["local"], "slots": SlotConfig(**fields["local"]["slots"])})
        return cls(**{**fields, "local": local, "service": ServiceSettings(**fields["service"])})


class LentTemplates(TemplateSource):
    """The templates that the supervisor started. The first live one is used."""

    def __init__(self, supervisor: socket.socket) -> None:
        super().__init__()
        self._supervisor = supervisor
        self._controls: list[socket.socket] = []
        self._first = asyncio.Event()
        self.may_serve = asyncio.Event()
        asyncio.get_running_loop().add_reader(supervisor.fileno(), self._on_message)

    async def start(self) -> None:
        async with asyncio.timeout(READY_DEADLINE_S):
            await self._first.wait()

    def _on_message(self) -> None:
        message, fds, _, _ = socket.recv_fds(self._supervisor, MAX_MESSAGE_BYTES, 1)
        if not message:
            os._exit(0)  # the supervisor has exited
        content: dict[str, Any] = json.loads(message)
        if content["kind"] == "serve":
            self.may_serve.set()
            return
        control = socket.socket(fileno=fds[0])
        self._controls.append(control)
        self._ready.append(Template(control, content["facts"], self._on_death))
        self._first.set()
        if len(self._ready) == 1:
            self.on_ready()

    def _on_death(self, template: Template) -> None:
        self._ready.remove(template)
        self.num_deaths += 1
        if self._ready:
            self.on_ready()

    async def close(self) -> None:
        await super().close()
        for control in self._controls:
            control.close()


async def serve(
    config: ServingConfig, supervisor: socket.socket, make_grader: Callable[[LocalExecutor], AnswerGrader] | None
) -> None:
    supervisor.setblocking(False)
    templates = LentTemplates(supervisor)
    await templates.may_serve.wait()

    def make_factory(host_config: SlotConfig) -> SlotFactory:
        hierarchy = guarantees.detect().memory_groups
        group = ServiceGroup(hierarchy, Path(config.service_group)) if hierarchy and config.service_group else None
        return SlotFactory(host_config, lent_templates=templates, lent_group=group)

    async with LocalExecutor(config.local, make_factory) as executor:

        def load() -> Load:
            status = executor.status()
            return Load(num_queued=status["queued"], num_slots=status["slots"], num_busy_slots=status["running"])

        app = create_app(
            executor,
            config.service,
            grader=make_grader(executor) if make_grader else None,
            guarantees=lambda: [asdict(guarantee) for guarantee in executor.guarantees],
            load=load,
        )
        listener = socket.socket(fileno=config.listen_fd)
        await serve_forever(app, [listener], drain_s=config.drain_s, on_ready=lambda: supervisor.send(b"ready"))


def run_server(make_grader: Callable[[LocalExecutor], AnswerGrader] | None) -> None:
    """The entry point of a server process; the one argument of its command line is the channel's descriptor."""
    supervisor = socket.socket(fileno=int(sys.argv[1]))
    message = supervisor.recv(MAX_MESSAGE_BYTES)
    if not message:
        return  # the supervisor has exited
    config = ServingConfig.from_message(message)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != config.supervisor_pid:
        return
    # The standby process ignores signals to the process group: it follows its supervisor.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Garbage collection would scan tens of thousands of waiting requests, all reachable, and free nothing.
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)
    asyncio.run(serve(config, supervisor, make_grader))
