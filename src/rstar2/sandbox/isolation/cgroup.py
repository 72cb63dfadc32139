"""Memory limits over all processes of a slot together, by cgroup v1 or v2, where this process may make one.

A slot's group lives in a parent group of this service. Parents are named after the process that made them, so that
the next service can find those that a kill -9 orphaned, and remove them.
"""

import contextlib
import errno
import os
import time
from dataclasses import dataclass
from pathlib import Path

from rstar2.sandbox.isolation.quota import group_path, mounts

_PREFIX = "rstar2-sandbox-"


@dataclass(frozen=True, slots=True)
class Files:
    """The names of the files in one cgroup version."""

    limit: str
    swap_limit: str | None
    kills: str
    """The file with the count of processes that were killed for memory, as a line `oom_kill N`."""


_V1 = Files("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.oom_control")
_V2 = Files("memory.max", "memory.swap.max", "memory.events")


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """Where memory groups can be made on this machine."""

    root: Path
    files: Files

    @property
    def version(self) -> int:
        return 1 if self.files is _V1 else 2


def find_hierarchy() -> Hierarchy | None:
    """The first hierarchy with a memory controller in which a group can really be made."""
    root = Path("/")
    for mount_point, is_v2 in mounts(root, "memory"):
        found = Hierarchy(mount_point / group_path(root, ""), _V2) if is_v2 else Hierarchy(mount_point, _V1)
        if _is_usable(found):
            return found
    return None


def _is_usable(hierarchy: Hierarchy) -> bool:
    probe = hierarchy.root / f"{_PREFIX}probe-{os.getpid()}"
    try:
        if hierarchy.files is _V2:
            _enable_memory_controller(hierarchy.root)
        probe.mkdir()
    except OSError:
        return False
    try:
        (probe / hierarchy.files.limit).write_text("1073741824")
        return os.access(probe / "cgroup.procs", os.W_OK)
    except OSError:
        return False
    finally:
        _remove(probe)


def _enable_memory_controller(group: Path) -> None:
    """Children of a v2 group have a memory controller only if the group enables it for them."""
    control = group / "cgroup.subtree_control"
    if "memory" not in control.read_text().split():
        control.write_text("+memory")


def _start_time(pid: int) -> str:
    """Start time of a process in clock ticks; with the pid it identifies a process."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19]


def _remove(group: Path, deadline_s: float = 0.0) -> bool:
    """Remove an empty group; wait up to the deadline for its last process to exit."""
    until = time.monotonic() + deadline_s
    while True:
        try:
            group.rmdir()
            return True
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() >= until:
                return False
            time.sleep(0.01)


class SlotGroup:
    """The memory group of one slot."""

    def __init__(self, path: Path, files: Files) -> None:
        self.path = path
        self._limit_bytes = 0
        with contextlib.ExitStack() as undo:  # a half-made group would block the next attempt
            path.mkdir()
            undo.callback(path.rmdir)

            def opened(name: str, flags: int) -> int:
                fd = os.open(path / name, flags | os.O_CLOEXEC)
                undo.callback(os.close, fd)
                return fd

            self.procs_fd = opened("cgroup.procs", os.O_WRONLY)
            self._limit_fd = opened(files.limit, os.O_WRONLY)
            self._kills_fd = opened(files.kills, os.O_RDONLY)
            if files.swap_limit == "memory.swap.max" and (path / files.swap_limit).exists():
                (path / files.swap_limit).write_text("0")
            undo.pop_all()

    def set_limit(self, limit_bytes: int) -> None:
        if limit_bytes != self._limit_bytes:
            os.pwrite(self._limit_fd, str(limit_bytes).encode(), 0)
            self._limit_bytes = limit_bytes

    def num_kills(self) -> int:
        for line in os.pread(self._kills_fd, 4096, 0).decode().splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
        return 0

    def close(self) -> None:
        """Close the files; the parent's `remove_slots` removes the directory once its processes have exited."""
        for fd in (self.procs_fd, self._limit_fd, self._kills_fd):
            os.close(fd)


class ServiceGroup:
    """The parent of all slots' groups of one service."""

    def __init__(self, hierarchy: Hierarchy, path: Path | None = None) -> None:
        """Makes a new group, or, given its path, works in one that a supervisor made."""
        self._hierarchy = hierarchy
        self._leaving: list[Path] = []
        if path is not None:
            self.path = path
            return
        sweep_orphans(hierarchy)
        serial = 0
        while True:
            self.path = hierarchy.root / f"{_PREFIX}{os.getpid()}-{_start_time(os.getpid())}-{serial}"
            try:
                self.path.mkdir()
                break
            except FileExistsError:
                serial += 1
        if hierarchy.files is _V2:
            _enable_memory_controller(self.path)

    def make_slot(self, name: str) -> SlotGroup:
        self.remove_slots()
        return SlotGroup(self.path / name, self._hierarchy.files)

    def retire_slot(self, group: SlotGroup) -> None:
        group.close()
        self._leaving.append(group.path)

    def remove_slots(self, deadline_s: float = 0.0) -> None:
        self._leaving = [path for path in self._leaving if not _remove(path, deadline_s)]

    def close(self) -> None:
        self.remove_slots(deadline_s=2.0)
        _remove(self.path, deadline_s=1.0)


def remove_slots_of(service_group: Path, owner_pid: int | None, deadline_s: float) -> None:
    """Remove the slots' groups that one host process made (None: any), waiting for their processes to exit."""
    until = time.monotonic() + deadline_s
    with contextlib.suppress(FileNotFoundError):
        for child in service_group.iterdir():
            if child.is_dir() and (owner_pid is None or child.name.startswith(f"{owner_pid}-")):
                _remove(child, max(0.0, until - time.monotonic()))


def remove_tree(service_group: Path, deadline_s: float) -> None:
    """Remove a service's group and the slots' groups in it."""
    remove_slots_of(service_group, None, deadline_s)
    _remove(service_group)


def sweep_orphans(hierarchy: Hierarchy) -> None:
    """Remove the groups of services that are no longer alive."""
    for group in hierarchy.root.glob(f"{_PREFIX}*"):
        owner, _, start = group.name.removeprefix(_PREFIX).partition("-")
        if not owner.isdigit():
            continue
        with contextlib.suppress(OSError):
            if _start_time(int(owner)) == start.split("-")[0]:
                continue
        remove_tree(group, deadline_s=0.0)
