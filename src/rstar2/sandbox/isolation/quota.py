"""Reads how many cores and how much memory the control groups (v1 or v2) leave this process.

A group's limit holds for all groups below it, so the tightest limit from the process's own group up to the mount point
counts. `root` is the file system to look in; tests pass a folder that looks like one.
"""

from collections.abc import Iterator
from pathlib import Path

_UNLIMITED_BYTES = 1 << 60
"""Without a limit cgroup v1 shows the largest multiple of the page size, close to 2^63."""


def core_quota(root: Path = Path("/")) -> float | None:
    """CPU time per wall time that the groups allow; None without a limit."""
    quotas = []
    for folder in _own_groups(root, "cpu"):
        of_v1 = _read_words(folder / "cpu.cfs_quota_us")[0], _read_words(folder / "cpu.cfs_period_us")[0]
        for quota, period in (_read_words(folder / "cpu.max"), of_v1):
            if quota.isdigit() and period.isdigit() and int(period) > 0:
                quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def memory_limit_bytes(root: Path = Path("/")) -> int | None:
    """The lowest memory limit of this process's groups; None without a limit."""
    limits = []
    for folder in _own_groups(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            text, _ = _read_words(folder / name)
            if text.isdigit() and int(text) < _UNLIMITED_BYTES:
                limits.append(int(text))
    return min(limits, default=None)


def _read_words(path: Path) -> tuple[str, str]:
    """The first two fields of a file; a missing field is empty."""
    try:
        fields = path.read_text().split()
    except OSError:
        fields = []
    first, second, *_ = [*fields, "", ""]
    return first, second


def _own_groups(root: Path, controller: str) -> Iterator[Path]:
    """The folder of this process's group and those above it, in each hierarchy that has the controller."""
    for mount_point, is_v2 in mounts(root, controller):
        folder = mount_point / group_path(root, "" if is_v2 else controller)
        if not folder.is_dir():
            # Inside a container the path may be the host's, while the mount shows the container's part alone.
            folder = mount_point
        while True:
            yield folder
            if folder == mount_point:
                break
            folder = folder.parent


def mounts(root: Path, controller: str) -> Iterator[tuple[Path, bool]]:
    """Mount points of the hierarchies that may have the controller, and whether each is v2."""
    for line in _lines(root / "proc/self/mounts"):
        _, mount_point, kind, options, *_ = line.split(" ")
        if kind == "cgroup2" or (kind == "cgroup" and controller in options.split(",")):
            yield root / mount_point.lstrip("/"), kind == "cgroup2"


def group_path(root: Path, controller: str) -> str:
    """The path of this process's group below a mount point; for v2 the controller name is empty."""
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path.lstrip("/")
    return ""


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
