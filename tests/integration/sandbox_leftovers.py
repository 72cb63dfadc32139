"""What a sandbox leaves on a machine, seen from outside: processes, memory groups, mounts, folders."""

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

_GROUP_ROOTS = ("/sys/fs/cgroup/memory", "/sys/fs/cgroup")


def descendants(pid: int) -> set[int]:
    """All processes below this one, by the kernel's own word."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(entry.parent.name)] = int(entry.read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue
    found: set[int] = set()
    while new := {child for child, parent in parents.items() if parent in found | {pid}} - found:
        found |= new
    return found


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


@dataclass(frozen=True, slots=True)
class Traces:
    """Everything that belongs to the sandboxes of one host process at one moment."""

    processes: frozenset[int]
    groups: frozenset[Path]
    mounts: frozenset[str]
    folders: frozenset[Path]

    def __sub__(self, other: "Traces") -> "Traces":
        """What came after `other` was seen."""
        return Traces(
            self.processes - other.processes,
            self.groups - other.groups,
            self.mounts - other.mounts,
            self.folders - other.folders,
        )

    def still_there(self) -> list[str]:
        groups = [str(group) for group in self.groups if group.exists()]
        processes = [str(pid) for pid in self.processes if is_running(pid)]
        return [
            *processes,
            *groups,
            *(str(folder) for folder in self.folders if folder.exists()),
            *self.mounts & mounts(),
        ]

    def left_after(self, deadline_s: float) -> list[str]:
        """What is still there at the deadline; returns at once when nothing is."""
        until = time.monotonic() + deadline_s
        while (left := self.still_there()) and time.monotonic() < until:
            time.sleep(0.02)
        return left


def mounts() -> frozenset[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return frozenset(line for line in lines if "rstar2" in line)


def traces_of(host_pid: int) -> Traces:
    """Of the sandboxes that `host_pid` runs. Mounts and folders are short-lived and may be anybody's: they count only
    if they stay."""
    groups = {
        group
        for root in _GROUP_ROOTS
        for parent in Path(root).glob(f"**/rstar2-sandbox-{host_pid}-*")
        for group in (parent, *(child for child in parent.iterdir() if child.is_dir()))
    }
    folders = frozenset(Path(tempfile.gettempdir()).glob("rstar2-root-*"))
    return Traces(frozenset(descendants(host_pid)), frozenset(groups), mounts(), folders)
