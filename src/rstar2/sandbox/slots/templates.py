"""The host's side of the template processes: starts them, requests slots from them, replaces those that die.

Slots do not depend on the template that forked them; only making new slots does. A template that dies is replaced: at
once if a supervisor keeps a spare, else as soon as a new one has loaded its libraries.
"""

import array
import asyncio
import contextlib
import json
import random
import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rstar2.errors import InfrastructureError
from rstar2.sandbox.slots import wire
from rstar2.sandbox.slots.template_process import TemplateConfig

READY_DEADLINE_S = 120.0
_MAX_RESTART_DELAY_S = 5.0
_ENVIRONMENT = {
    "PATH": "",
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
class ReadyTemplate:
    """The process of a template that has loaded its libraries, and the socket that controls it."""

    process: subprocess.Popen[bytes]
    control: socket.socket
    facts: dict[str, Any]

    def kill(self) -> None:
        self.control.close()
        self.process.kill()
        self.process.wait()

    async def stop(self) -> None:
        """Ask the template to exit. Without the goodbye it would assume that its host was killed, and clean up after
        it."""
        with contextlib.suppress(OSError):
            self.control.send(wire.GOODBYE)
        self.control.close()
        try:
            await asyncio.to_thread(self.process.wait, 2.0)
        except subprocess.TimeoutExpired:
            self.kill()


def _spawn(config: TemplateConfig) -> tuple[subprocess.Popen[bytes], socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    program = "from rstar2.sandbox.slots.template_process import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(theirs.fileno()), config.to_argument()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env={**_ENVIRONMENT, "HOME": config.layers.scratch, "TMPDIR": config.layers.scratch},
        cwd="/",
        pass_fds=[theirs.fileno()],
        start_new_session=True,  # only the host handles Ctrl-C; it then closes its templates in order
    )
    theirs.close()
    ours.setblocking(False)
    return process, ours


async def start_template(config: TemplateConfig) -> ReadyTemplate:
    process, ours = _spawn(config)
    try:
        async with asyncio.timeout(READY_DEADLINE_S):
            message = await asyncio.get_running_loop().sock_recv(ours, 1 << 16)
    except BaseException as error:
        ours.close()
        process.kill()
        process.wait()
        if isinstance(error, TimeoutError):
            raise InfrastructureError(f"the sandbox template was not ready after {READY_DEADLINE_S:g} s") from None
        raise
    if not message:
        ours.close()
        code = process.wait(timeout=10)
        raise InfrastructureError(f"the sandbox template ended while starting, with exit code {code}; see its stderr")
    return ReadyTemplate(process, ours, json.loads(message))


class Template:
    """Requests slots from a ready template. No other holder of its control socket may read from it."""

    def __init__(self, control: socket.socket, facts: dict[str, Any], on_death: Callable[["Template"], None]) -> None:
        self.facts = facts
        self._control = control
        self._on_death = on_death
        self._waiting: dict[int, Callable[[int], None]] = {}
        # An earlier holder of the socket may have left answers in it: serial numbers distinguish them.
        self._serial = random.getrandbits(32)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(control.fileno(), self._on_readable)
        self.is_alive = True

    def fork_slot(self, kind: int, uid: int, fds: list[int], on_answer: Callable[[int], None]) -> None:
        """Request a slot. `on_answer` gets its process id, or minus an errno. OSError if the template has exited."""
        self._serial = (self._serial + 1) & 0xFFFFFFFF
        message = wire.SLOT_MESSAGE.pack(kind, uid, self._serial)
        rights = array.array("i", fds).tobytes()
        self._control.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        self._waiting[self._serial] = on_answer

    def _on_readable(self) -> None:
        try:
            data = self._control.recv(64)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if len(data) != wire.SLOT_ANSWER.size:
            self.detach()
            self._on_death(self)
            return
        serial, pid = wire.SLOT_ANSWER.unpack(data)
        on_answer = self._waiting.pop(serial, None)
        if on_answer is not None:
            on_answer(pid)

    def detach(self) -> None:
        """Stop listening; the owner of the socket closes it."""
        if self.is_alive:
            self.is_alive = False
            self._loop.remove_reader(self._control.fileno())
            waiting, self._waiting = self._waiting, {}
            for on_answer in waiting.values():
                on_answer(-1)


class TemplateSource(ABC):
    """A host's source of templates: it starts them itself, or a supervisor lends them."""

    def __init__(self) -> None:
        self._ready: list[Template] = []
        self.num_deaths = 0
        self.on_ready: Callable[[], None] = lambda: None
        """Called when a template is ready after there was none."""

    @property
    def current(self) -> Template | None:
        return self._ready[0] if self._ready else None

    @abstractmethod
    async def start(self) -> None:
        """Wait until the first template is ready."""

    async def close(self) -> None:
        for template in self._ready:
            template.detach()
        self._ready.clear()


class TemplatePool:
    """Starts template processes in the background up to the wanted number, and replaces those that die."""

    def __init__(self, config: TemplateConfig, num_wanted: int, on_start: Callable[[ReadyTemplate], None]) -> None:
        self._config = config
        self._num_wanted = num_wanted
        self._on_start = on_start
        self._alive: list[ReadyTemplate] = []
        self._starting: asyncio.Task[None] | None = None
        self._is_closed = False

    async def start_first(self) -> None:
        """Start the first template; fails at once if none can be started."""
        self._add(await start_template(self._config))
        self._replenish()

    def replace(self, dead: ReadyTemplate) -> None:
        if dead in self._alive:
            self._alive.remove(dead)
            dead.kill()
            self._replenish()

    def _add(self, started: ReadyTemplate) -> None:
        self._alive.append(started)
        self._on_start(started)

    def _replenish(self) -> None:
        is_busy = self._starting is not None and not self._starting.done()
        if len(self._alive) < self._num_wanted and not is_busy and not self._is_closed:
            self._starting = asyncio.create_task(self._start_missing(), name="start a sandbox template")

    async def _start_missing(self) -> None:
        delay_s = 0.1
        while len(self._alive) < self._num_wanted:
            try:
                self._add(await start_template(self._config))
            except (InfrastructureError, OSError):
                await asyncio.sleep(delay_s)
                delay_s = min(delay_s * 2, _MAX_RESTART_DELAY_S)

    async def close(self) -> None:
        self._is_closed = True
        if self._starting is not None:
            self._starting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._starting
        for template in self._alive:
            await template.stop()
        self._alive.clear()


class OwnTemplates(TemplateSource):
    """Templates that are children of this process."""

    def __init__(self, config: TemplateConfig) -> None:
        super().__init__()
        self._pool = TemplatePool(config, 1, self._on_start)
        self._is_closed = False

    async def start(self) -> None:
        await self._pool.start_first()

    def _on_start(self, started: ReadyTemplate) -> None:
        def on_death(template: Template) -> None:
            self._ready.remove(template)
            if not self._is_closed:
                self.num_deaths += 1
                self._pool.replace(started)

        self._ready.append(Template(started.control, started.facts, on_death))
        if len(self._ready) == 1:
            self.on_ready()

    async def close(self) -> None:
        self._is_closed = True
        await super().close()
        await self._pool.close()
