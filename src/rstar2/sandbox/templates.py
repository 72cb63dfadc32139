"""The host's side of the template processes: start them, keep a spare, ask them for slots.

Slots do not depend on the template that forked them; only the making of new slots does. A template that dies is
replaced: at once by the spare where one is kept, else as soon as a new one has loaded its libraries.
"""

import array
import asyncio
import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rstar2.errors import InfrastructureError
from rstar2.sandbox import confine, wire
from rstar2.sandbox.template import Settings

READY_DEADLINE_S = 120.0
_ANSWER = struct.Struct("=i")
_ENVIRONMENT = {
    "PATH": "",
    "HOME": "/tmp",
    "TMPDIR": "/tmp",
    "USER": "sandbox",
    "LANG": "C.UTF-8",
    "PYTHONDONTWRITEBYTECODE": "1",
    "MPLBACKEND": "Agg",
    # A template must be single-threaded: threads do not survive a fork.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
}


@dataclass(frozen=True, slots=True)
class TemplateConfig:
    layers: confine.Layers
    fast: bool = True
    warm: bool = True
    service_group: Path | None = None


def start_process(config: TemplateConfig) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """A template process and the control socket on which it will say that it is ready."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    settings = Settings(
        control_fd=theirs.fileno(),
        layers=config.layers,
        fast=config.fast,
        service_group=str(config.service_group) if config.service_group else None,
        warm=config.warm,
    )
    process = subprocess.Popen(
        [sys.executable, "-c", "from rstar2.sandbox.template import main; main()", settings.to_argument()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env=_ENVIRONMENT,
        cwd="/",
        pass_fds=[theirs.fileno()],
        start_new_session=True,  # a Ctrl-C in the terminal is for the host, which then closes its templates in order
    )
    theirs.close()
    ours.setblocking(False)
    return process, ours


class Template:
    """One template that is ready: a control socket, and the slots asked for and not yet confirmed."""

    def __init__(self, control: socket.socket, facts: dict[str, object]) -> None:
        self.facts = facts
        self._control = control
        self._waiting: list[Callable[[int], None]] = []
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(control.fileno(), self._on_readable)
        self.is_alive = True
        self.on_death: Callable[[], None] = lambda: None

    def fork_slot(self, kind: int, uid: int, fds: list[int], on_answer: Callable[[int], None]) -> None:
        """Ask for a slot. `on_answer` gets its process id, or minus an errno. OSError if the template is gone."""
        message = wire.SLOT_MESSAGE.pack(kind, uid)
        rights = array.array("i", fds).tobytes()
        self._control.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        self._waiting.append(on_answer)

    def _on_readable(self) -> None:
        try:
            data = self._control.recv(64)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if len(data) != _ANSWER.size:
            self.close()
            self.on_death()
            return
        self._waiting.pop(0)(_ANSWER.unpack(data)[0])

    def close(self) -> None:
        if self.is_alive:
            self.is_alive = False
            self._loop.remove_reader(self._control.fileno())
            self._control.close()
            for on_answer in self._waiting:
                on_answer(-1)
            self._waiting.clear()


async def wait_until_ready(control: socket.socket, process: subprocess.Popen[bytes]) -> Template:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(READY_DEADLINE_S):
            message = await loop.sock_recv(control, 1 << 16)
    except TimeoutError:
        process.kill()
        raise InfrastructureError(f"the sandbox template was not ready after {READY_DEADLINE_S:g} s") from None
    if not message:
        code = process.wait(timeout=10)
        raise InfrastructureError(
            f"the sandbox template ended while starting (exit code {code}); its reason is on stderr"
        )
    return Template(control, json.loads(message))


class TemplatePool:
    """Keeps one template in use, and a spare if asked to; replaces what dies."""

    def __init__(self, config: TemplateConfig, *, spare: bool) -> None:
        self._config = config
        self._wants_spare = spare
        self._processes: list[subprocess.Popen[bytes]] = []
        self._spare: Template | None = None
        self._starting: asyncio.Task[None] | None = None
        self._closing = False
        self.current: Template | None = None
        self.num_deaths = 0
        self.on_ready: Callable[[], None] = lambda: None

    async def start(self) -> None:
        self.current = await self._start_one()
        self._replenish()

    async def _start_one(self) -> Template:
        process, control = start_process(self._config)
        self._processes.append(process)
        try:
            template = await wait_until_ready(control, process)
        except BaseException:
            process.kill()
            process.wait()
            control.close()
            self._processes.remove(process)
            raise
        template.on_death = lambda: self._on_death(template, process)
        return template

    def _on_death(self, template: Template, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()
        self._processes.remove(process)
        if self._closing:
            return
        self.num_deaths += 1
        if template is self._spare:
            self._spare = None
        elif template is self.current:
            self.current, self._spare = self._spare, None
            if self.current is not None:
                self.on_ready()
        self._replenish()

    def _replenish(self) -> None:
        """Start what is missing, one at a time, in the background."""
        is_complete = self.current is not None and (self._spare is not None or not self._wants_spare)
        if is_complete or self._closing or (self._starting is not None and not self._starting.done()):
            return
        self._starting = asyncio.create_task(self._start_missing(), name="start a sandbox template")

    async def _start_missing(self) -> None:
        delay_s = 0.1
        while not self._closing:
            try:
                template = await self._start_one()
            except InfrastructureError:
                await asyncio.sleep(delay_s)
                delay_s = min(delay_s * 2, 5.0)
                continue
            if self.current is None:
                self.current = template
                self.on_ready()
            else:
                self._spare = template
            if self._spare is not None or not self._wants_spare:
                return

    async def close(self) -> None:
        self._closing = True
        if self._starting is not None:
            self._starting.cancel()
            with contextlib.suppress(asyncio.CancelledError, InfrastructureError):
                await self._starting
        for template in (self.current, self._spare):
            if template is not None:
                template.close()
        for process in self._processes:
            try:
                await asyncio.to_thread(process.wait, 2.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()
        self.current = self._spare = None


def descriptor_rights(slot_socket: socket.socket, group_fd: int | None) -> list[int]:
    return [slot_socket.fileno()] if group_fd is None else [slot_socket.fileno(), group_fd]


def close_quietly(fd: int) -> None:
    with contextlib.suppress(OSError):
        os.close(fd)
