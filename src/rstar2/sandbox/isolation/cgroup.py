"""Memory limits for all processes of a slot together, by cgroup v1 or v2, where this process may create one.

A slot's group lives in a parent group of this service, inside the group that the service was started in, so the
operator's limits hold for all of it. The name of a parent group contains the process that made it, so that the next
service can find and remove groups that a kill -9 orphaned.

cgroup v2 gives controllers only to the children of a group that has no processes of its own. So the service moves into
a leaf beside its slots, unless processes that it did not start, and that did not start it, are in the same group.
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
    kills: str
    """The file with the count of processes that were killed for memory, as a line `oom_kill N`."""
    limit_with_swap: str | None
    """The file for the limit of memory and swap together."""
    settings: tuple[tuple[str, str], ...] = ()
    """Settings of each slot's group, where the file exists: no swap; out of memory kills the whole slot; a bound on
    processes of any user; the default CPU weight."""


MAX_PROCESSES = 2048
_V1 = Files("memory.limit_in_bytes", "memory.oom_control", "memory.memsw.limit_in_bytes")
_V2 = Files(
    "memory.max",
    "memory.events",
    None,
    (
        ("memory.swap.max", "0"),
        ("memory.oom.group", "1"),
        ("pids.max", str(MAX_PROCESSES)),
        ("cpu.weight", "100"),
    ),
)
_CONTROLLERS = ("memory", "pids", "cpu")
_LEAF = f"{_PREFIX}leaf"


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """A hierarchy in which this machine can make memory groups."""

    root: Path
    files: Files

    @property
    def version(self) -> int:
        return 1 if self.files is _V1 else 2


def find_hierarchy(root: Path = Path("/")) -> Hierarchy | None:
    """Find the first hierarchy with a memory controller in which a group can really be made. `root` is the file system
    to look in; tests pass a folder that looks like one."""
    for mount_point, is_v2 in mounts(root, "memory"):
        own = mount_point / group_path(root, "" if is_v2 else "memory")
        if own.name == _LEAF:  # an earlier call has moved this process there
            own = own.parent
        # Inside a container the path may be the host's, while the mount shows the container's part alone.
        found = Hierarchy(own if own.is_dir() else mount_point, _V2 if is_v2 else _V1)
        if _is_usable(found):
            return found
    return None


def _is_usable(hierarchy: Hierarchy) -> bool:
    probe = hierarchy.root / f"{_PREFIX}probe-{os.getpid()}"
    try:
        if hierarchy.files is _V2:
            _enable_controllers(hierarchy.root)
        _make(probe)
    except OSError:
        return False
    try:
        (probe / hierarchy.files.limit).write_text("1073741824")
        return os.access(probe / "cgroup.procs", os.W_OK)
    except OSError:
        return False
    finally:
        _remove(probe)


def _enable_controllers(group: Path) -> None:
    """Enable the controllers for the children of a v2 group. OSError if memory cannot be enabled."""
    control = group / "cgroup.subtree_control"
    if "memory" in control.read_text().split():
        return
    present = (group / "cgroup.controllers").read_text().split()
    if "memory" not in present:
        raise OSError(errno.ENOENT, "there is no memory controller", str(group))
    inside = [int(line) for line in (group / "cgroup.procs").read_text().split()]
    is_root = not (group / "cgroup.type").exists()  # the root of the hierarchy may have processes
    if inside and not is_root:
        family = _family(os.getpid(), inside)
        if foreign := set(inside) - family:
            raise OSError(errno.EBUSY, f"processes of others are in the group: {sorted(foreign)[:5]}", str(group))
        leaf = group / _LEAF
        with contextlib.suppress(FileExistsError):
            _make(leaf)
        for pid in inside:
            with contextlib.suppress(ProcessLookupError):
                _write(leaf / "cgroup.procs", str(pid))
    _write(control, "+memory")
    for controller in _CONTROLLERS[1:]:
        with contextlib.suppress(OSError):
            if controller in present:
                _write(control, f"+{controller}")


def _family(own_pid: int, pids: list[int]) -> set[int]:
    """The ancestors and descendants of this process among `pids`."""
    ancestors = {pid: _line_of(pid) for pid in {own_pid, *pids}}
    return {pid for pid in pids if own_pid in ancestors[pid] or pid in ancestors[own_pid]}


def _line_of(pid: int) -> list[int]:
    """A process and its ancestors, in order."""
    line = []
    while pid > 0 and pid not in line:
        line.append(pid)
        try:
            pid = int(_stat_fields(pid)[1])
        except (OSError, ValueError):
            break
    return line


def _make(group: Path) -> None:
    group.mkdir()


def _write(file: Path, text: str) -> None:
    file.write_text(text)


def _start_time(pid: int) -> str:
    """The start time of a process in clock ticks; together with the pid it identifies the process."""
    return _stat_fields(pid)[19]


def _stat_fields(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()


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
        self.is_killed_together = any(name == "memory.oom.group" for name, _ in files.settings)
        """Whether the kernel, once it kills a process for memory, kills all the others of the group too."""
        self._limit_bytes = 0
        with contextlib.ExitStack() as undo:  # a half-made group would block the next attempt
            _make(path)
            undo.callback(path.rmdir)

            def opened(name: str, flags: int) -> int:
                fd = os.open(path / name, flags | os.O_CLOEXEC)
                undo.callback(os.close, fd)
                return fd

            self.procs_fd = opened("cgroup.procs", os.O_WRONLY)
            self._limit_fd = opened(files.limit, os.O_WRONLY)
            self._kills_fd = opened(files.kills, os.O_RDONLY)
            self._swap_fd: int | None = None
            if files.limit_with_swap is not None and (path / files.limit_with_swap).exists():
                self._swap_fd = opened(files.limit_with_swap, os.O_WRONLY)
            for name, value in files.settings:
                if (path / name).exists():
                    _write(path / name, value)
            undo.pop_all()

    def set_limit(self, limit_bytes: int) -> None:
        if limit_bytes != self._limit_bytes:
            # The limit with swap may never be below the one without.
            fds = [self._limit_fd] if self._swap_fd is None else [self._limit_fd, self._swap_fd]
            is_raised = limit_bytes > self._limit_bytes and self._limit_bytes > 0
            for fd in reversed(fds) if is_raised else fds:
                os.pwrite(fd, str(limit_bytes).encode(), 0)
            self._limit_bytes = limit_bytes

    def num_kills(self) -> int:
        for line in os.pread(self._kills_fd, 4096, 0).decode().splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
        return 0

    def close(self) -> None:
        """Close the files; the parent's `remove_slots` removes the directory once its processes have exited."""
        for fd in (self.procs_fd, self._limit_fd, self._kills_fd, self._swap_fd):
            if fd is not None:
                os.close(fd)


class ServiceGroup:
    """The parent of all slots' groups of one service."""

    def __init__(self, hierarchy: Hierarchy, path: Path | None = None) -> None:
        """Make a new group or, if `path` is given, use the group that a supervisor made."""
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
                _make(self.path)
                break
            except FileExistsError:
                serial += 1
        if hierarchy.files is _V2:
            _enable_controllers(self.path)

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
    """Remove the slots' groups that the process `owner_pid` made (None: any process), after their processes have
    exited."""
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
