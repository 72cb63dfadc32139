"""The template process: loads the libraries once, confines itself, then forks slots on demand until its host exits.

`templates.py` starts it, with the control socket and its configuration as arguments. When ready, it sends its facts on
the control socket; then it answers each slot message there with the slot's process id.
"""

import contextlib
import errno
import fcntl
import gc
import json
import os
import resource
import select
import signal
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from rstar2.sandbox.isolation import confine
from rstar2.sandbox.isolation.seccomp import Role
from rstar2.sandbox.notebooks import session_tree
from rstar2.sandbox.slots import interpreter, portable_fork, warmup, wire

try:
    from rstar2.sandbox.slots import _fork as fast_fork  # type: ignore[attr-defined]
except ImportError:
    fast_fork = None

_PAGE_BYTES = resource.getpagesize()
_JANITOR_DEADLINE_S = 15.0
_IGNORED_BY_PYTHON = {signal.SIGPIPE, signal.SIGXFSZ}
_SLOT_BUFFER_BYTES = 33 << 20
_hidden_modules: list[ModuleType] = []
"""Kept, because freeing our modules would leave gaps in the heap for programs' objects, and each page costs them a
copy."""


@dataclass(frozen=True, slots=True)
class TemplateConfig:
    layers: confine.Layers
    fast: bool = True
    warm: bool = True
    service_group: str | None = None
    """The service's cgroup, which this process removes if the host was killed and could not do so."""

    def to_argument(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_argument(cls, text: str) -> "TemplateConfig":
        fields = json.loads(text)
        layers = confine.Layers(**{**fields["layers"], "packages": tuple(fields["layers"]["packages"])})
        return cls(**{**fields, "layers": layers})


def is_fast_path_built() -> bool:
    return fast_fork is not None


def main() -> None:
    config = TemplateConfig.from_argument(sys.argv[2])
    _forget_inherited_signals()
    control = _take_control_socket(int(sys.argv[1]))
    missing: tuple[str, ...] = ()
    if config.warm:
        missing = warmup.load_libraries()
        warmup.fill_caches()
    maps_fd = os.open("/proc/self/maps", os.O_RDONLY | os.O_CLOEXEC)
    proc_fd = os.open("/proc", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    group_fd = -1
    if config.service_group is not None:
        group_fd = os.open(Path(config.service_group).parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    num_threads = len(list(Path("/proc/self/task").iterdir()))
    can_rebase = config.fast and fast_fork is not None and num_threads == 1
    if num_threads > 1:
        print(f"sandbox: a library started {num_threads - 1} threads; programs will start slowly", file=sys.stderr)
    confine.enter_template(config.layers)
    tempfile.tempdir = None  # found outside the sandbox, invalid inside
    sys.path[:] = [path for path in sys.path if Path(path).exists()]
    program = confine.seccomp_program(config.layers)
    cell_program = confine.seccomp_program(config.layers, Role.CELL)
    controller_program = confine.seccomp_program(config.layers, Role.CONTROLLER)
    implementation: Any = fast_fork if config.fast and fast_fork is not None else portable_fork

    def slot_main(message: bytes, fds: tuple[int, ...]) -> tuple[int, int, bool, int, int]:
        """Confine a new slot. `park` installs the filter after the rehearsal; a session's slot does not return."""
        kind, uid, _ = wire.SLOT_MESSAGE.unpack(message)
        if group_fd >= 0:
            os.close(group_fd)
        base_data_bytes, base_address_bytes = _own_size(proc_fd)
        try:
            confine.enter_slot(config.layers, fds[1] if len(fds) > 1 else None, proc_fd)
        except OSError:
            if _is_abandoned(fds[0]):  # its host has exited, and removed the memory group that the slot needs
                os._exit(0)
            raise
        facts = (fds[0], uid, config.layers.namespaces, base_data_bytes, base_address_bytes)
        if kind == wire.KIND_SESSION:
            _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
            session_tree.serve(*facts, controller_filter=controller_program, cell_filter=cell_program)
        confine.limit_open_files()
        return facts

    interpreter.prepare()
    twisters = interpreter.find_twisters()
    _hide_own_modules()
    gc.collect()
    gc.freeze()
    facts = {"missing": missing, "fast": can_rebase, "pid": os.getpid()}
    try:
        os.write(control, json.dumps(facts).encode())
    except BrokenPipeError:  # the host was killed while this loaded
        _leave_abandoned(config, group_fd)
    if can_rebase:
        assert fast_fork is not None
        fast_fork.rebase(maps_fd)
    os.close(maps_fd)
    run = interpreter.run_program if twisters else interpreter.run_reseeded
    is_asked_to_end = implementation.park(
        control, proc_fd, config.layers.namespaces, slot_main, program, interpreter.rehearse, run, twisters
    )
    if not is_asked_to_end:
        _leave_abandoned(config, group_fd)
    os._exit(0)


def _leave_abandoned(config: TemplateConfig, group_fd: int) -> NoReturn:
    if config.service_group is not None:
        _remove_group(group_fd, Path(config.service_group).name)
    os._exit(0)


def _hide_own_modules() -> None:
    """Hide our modules: a program must not import them, and a cell must not patch code that runs later cells."""
    _hidden_modules.extend(sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "rstar2")


def _forget_inherited_signals() -> None:
    """Reset signals to the defaults for programs. Our parent may ignore some, as `nohup` and background jobs do, or
    block them."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in signal.valid_signals() - _IGNORED_BY_PYTHON:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def _take_control_socket(number: int) -> int:
    """Move the socket above the low descriptors, which become a program's own streams, and keep those taken."""
    moved = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 64)
    os.close(number)
    os.dup2(0, interpreter.VALUE_FD, inheritable=False)
    return moved


def _remove_group(parent_fd: int, name: str) -> None:
    """Remove the cgroup of a host that was killed, as soon as the last slot has ended."""
    deadline = time.monotonic() + _JANITOR_DEADLINE_S
    while time.monotonic() < deadline:
        try:
            service_fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=parent_fd)
            for entry in os.listdir(service_fd):  # noqa: PTH208 - by descriptor
                with contextlib.suppress(NotADirectoryError, FileNotFoundError):
                    os.rmdir(entry, dir_fd=service_fd)
            os.close(service_fd)
            os.rmdir(name, dir_fd=parent_fd)
            return
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno not in (errno.EBUSY, errno.ENOTEMPTY):
                raise
            time.sleep(0.02)


def _is_abandoned(caller_fd: int) -> bool:
    poller = select.poll()
    poller.register(caller_fd, select.POLLRDHUP)
    return bool(poller.poll(0))


def _own_size(proc_fd: int) -> tuple[int, int]:
    """The bytes of private writable memory and of address space that a slot inherits from its template, as the limits
    count them, plus room for its buffers."""
    statm_fd = os.open("self/statm", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc_fd)
    fields = os.read(statm_fd, 256).split()
    os.close(statm_fd)
    return int(fields[5]) * _PAGE_BYTES + _SLOT_BUFFER_BYTES, int(fields[0]) * _PAGE_BYTES + _SLOT_BUFFER_BYTES


if __name__ == "__main__":
    main()
