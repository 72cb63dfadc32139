"""Finds by trying what isolation this machine supports, as a table of guarantees."""

import os
import platform
import resource
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from rstar2.sandbox.execution import MIB
from rstar2.sandbox.isolation import cgroup, confine, landlock, linux, rootfs, seccomp
from rstar2.sandbox.isolation.uids import FIRST_UID, LAST_UID

SCRATCH_BYTES, NUM_SCRATCH_FILES = 64 * MIB, 4096

_NEEDED_CAPABILITIES = ("CAP_SYS_ADMIN", "CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP", "CAP_KILL", "CAP_SYS_NICE")
"""What root needs to make namespaces, to give programs their own uid and no privileges, and to kill and renice them."""


@dataclass(frozen=True, slots=True)
class Guarantee:
    """One promise about isolation: `how` it is kept, or what would `fix` its absence."""

    name: str
    provided: bool
    how: str
    fix: str
    required: bool
    """Whether the sandbox refuses to start without this guarantee."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The facts that decide which layers can be applied."""

    is_linux: bool
    is_privileged: bool
    can_make_user_namespace: bool
    seccomp: bool
    memory_groups: cgroup.Hierarchy | None
    to_be_privileged: str = "run as root"
    """The instruction that would allow privileged isolation; empty if it is allowed."""
    is_machine_root: bool = False
    """True if the single id of an unprivileged user namespace would be the machine's root, whose processes Linux does
    not limit."""
    landlock_version: int = 0
    can_raise_priority: bool = False
    """Whether a lowered priority can be raised again without root."""


_NO_CAPABILITIES = Capabilities(False, False, False, False, None)


@cache
def detect() -> Capabilities:
    if sys.platform != "linux":
        return _NO_CAPABILITIES
    uid_map, gid_map = (Path(f"/proc/self/{name}").read_text() for name in ("uid_map", "gid_map"))
    obstacle = what_privilege_needs(os.geteuid(), linux.effective_capabilities(), uid_map, gid_map)
    if not obstacle and not _succeeds(f"linux.unshare({confine.NAMESPACES})"):
        obstacle = "let root make namespaces (in a container: --security-opt seccomp=unconfined)"
    return Capabilities(
        is_linux=True,
        is_privileged=not obstacle,
        can_make_user_namespace=not obstacle or _can_make_user_namespace(),
        seccomp=seccomp.is_supported(),
        memory_groups=cgroup.find_hierarchy(),
        to_be_privileged=obstacle,
        is_machine_root=os.geteuid() == 0 and uid_map.split()[:2] == ["0", "0"],
        landlock_version=landlock.version(),
        can_raise_priority=not obstacle or processes_can_be_reniced(),
    )


def processes_can_be_reniced() -> bool:
    """Whether the limit RLIMIT_NICE lets an ordinary user raise a priority to the default, which is 20 in its units."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NICE)
    return soft == resource.RLIM_INFINITY or soft >= 20


def what_privilege_needs(euid: int, effective_capabilities: int, uid_map: str, gid_map: str) -> str:
    """An instruction that says what this process lacks for privileged isolation; empty if nothing."""
    if euid != 0:
        return "run as root"
    lacking = [name for name in _NEEDED_CAPABILITIES if not effective_capabilities >> getattr(linux, name) & 1]
    if lacking:
        return f"give root {', '.join(lacking)}"
    if not all(_is_mapped(FIRST_UID, LAST_UID, id_map) for id_map in (uid_map, gid_map)):
        return f"map the uids and gids {FIRST_UID} to {LAST_UID} into this user namespace"
    return ""


def _is_mapped(first: int, last: int, id_map: str) -> bool:
    """Whether a user namespace has all these ids. A line of its map: first id inside, first id outside, count."""
    ranges = [(int(line.split()[0]), int(line.split()[2])) for line in id_map.splitlines()]
    return any(start <= first and last < start + count for start, count in ranges)


def _can_make_user_namespace() -> bool:
    """Whether a user namespace with one id can be made; root needs CAP_SETFCAP."""
    return _succeeds(
        f"uid, gid, proc = os.getuid(), os.getgid(), os.open('/proc', os.O_PATH); "
        f"linux.unshare({confine.NAMESPACES | linux.CLONE_NEWUSER}); confine.map_single_id(uid, gid, proc)"
    )


def _succeeds(statements: str) -> bool:
    """Whether statements succeed in a throw-away process."""
    program = f"import os; from rstar2.sandbox.isolation import confine, linux; {statements}"
    attempt = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=30, check=False)
    return attempt.returncode == 0


def choose_layers(
    capabilities: Capabilities, *, scratch_bytes: int = SCRATCH_BYTES, num_scratch_files: int = NUM_SCRATCH_FILES
) -> confine.Layers:
    """Choose every layer that the machine supports."""
    namespaces = capabilities.is_privileged or capabilities.can_make_user_namespace
    return confine.Layers(
        namespaces=namespaces,
        user_namespace=namespaces and not capabilities.is_privileged,
        seccomp=capabilities.seccomp,
        distinct_uid=capabilities.is_privileged,
        scratch=rootfs.scratch_path(),
        scratch_bytes=scratch_bytes,
        num_scratch_files=num_scratch_files,
    )


def probe() -> list[Guarantee]:
    return describe(detect())


def of_plain_subprocesses() -> list[Guarantee]:
    """The table of `--unsafe`: nothing is guaranteed."""
    fix = "start the service without --unsafe"
    return [replace(row, provided=False, how="", fix=fix) for row in describe(_NO_CAPABILITIES)]


COUNTS_OF_THE_MACHINE = "programs cannot read counters that others move"
_BY_GVISOR = {
    COUNTS_OF_THE_MACHINE: "a kernel of its own counts",
    "files of the machine are out of reach": "its own file system: a read-only view of the Python runtime",
    "no network": "no network stack",
    "other processes are invisible and all children end with the program": "its own processes",
    "private scratch directory, bounded and empty": "its own tmpfs",
    "system calls are filtered": "a kernel of its own answers them; few reach the machine's",
    "no capabilities, no way to gain privileges": "no capabilities, no_new_privs",
    "programs run under a separate uid": "a user of its own kernel",
    "memory of a program and all its children is limited together": "a watchdog that adds up the pages of its sandbox",
    "a second wall around files, besides the mount namespace": "gVisor's own seccomp filter and file server",
    "time, output, files and processes are limited": "deadlines, and limits of its own kernel",
}


def describe_gvisor() -> list[Guarantee]:
    """The table of `--backend gvisor`."""
    fix = "use the default backend"
    return [
        replace(row, provided=row.name in _BY_GVISOR, how=_BY_GVISOR.get(row.name, ""), fix=fix)
        for row in describe(_NO_CAPABILITIES)
    ]


def lacking(table: Sequence[Guarantee]) -> list[str]:
    """The required guarantees that a table does not list as provided."""
    held = {row.name for row in table if row.provided}
    return [row.name for row in describe(_NO_CAPABILITIES) if row.required and row.name not in held]


def weakest(tables: Sequence[Sequence[Guarantee]]) -> list[Guarantee]:
    """The guarantees that hold on every node: those that every table lists as provided."""
    rows: dict[str, Guarantee] = {}
    for row in (row for table in tables for row in table):
        if row.name not in rows or not row.provided:
            rows[row.name] = row
    unsaid = {name for name in rows for table in tables if all(row.name != name for row in table)}
    fix = "a node does not say whether it holds there"
    return [replace(row, provided=False, how="", fix=fix) if row.name in unsaid else row for row in rows.values()]


def describe(capabilities: Capabilities) -> list[Guarantee]:
    """The table of guarantees for `rstar2 doctor` and `GET /status`."""
    namespaces = capabilities.is_privileged or capabilities.can_make_user_namespace
    kind = "namespaces made as root" if capabilities.is_privileged else "an unprivileged user namespace"
    fix_namespaces = (
        f"run as root with {', '.join(_NEEDED_CAPABILITIES)}, or allow unprivileged user namespaces "
        "(kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0; "
        "in a container: --security-opt seccomp=unconfined)"
        if capabilities.is_linux
        else "run on Linux: this system has no namespaces"
    )

    def row(name: str, provided: bool, how: str, fix: str, *, required: bool = True) -> Guarantee:
        return Guarantee(name, provided, how if provided else "", fix, required)

    def by_namespace(name: str, how: str) -> Guarantee:
        return row(name, namespaces, f"{how} ({kind})", fix_namespaces)

    groups = capabilities.memory_groups
    return [
        by_namespace("files of the machine are out of reach", "pivot_root on a read-only view of the Python runtime"),
        by_namespace("no network", "an empty network namespace"),
        by_namespace("other processes are invisible and all children end with the program", "a process namespace"),
        by_namespace("private scratch directory, bounded and empty", "a private tmpfs"),
        row(
            "system calls are filtered",
            capabilities.seccomp,
            "seccomp allow-list that answers with an errno",
            f"the filter is written for x86_64; this machine is {platform.machine()}",
        ),
        row(
            "no capabilities, no way to gain privileges", namespaces, "empty bounding set, no_new_privs", fix_namespaces
        ),
        row(
            "programs run under a separate uid",
            capabilities.is_privileged,
            "one uid per slot, never shared",
            f"{capabilities.to_be_privileged}; without it a program shares the uid of its slot's init, which the "
            "process namespace protects, and a program that opens thousands of pipes makes those of others smaller",
            required=False,
        ),
        row(
            "memory of a program and all its children is limited together",
            groups is not None or capabilities.is_linux,
            f"cgroup v{groups.version}"
            if groups
            else "a watchdog that adds up the pages and sockets of all its processes",
            "run on Linux",
            required=False,
        ),
        row(
            "long programs and long notebook cells give way to short ones",
            capabilities.is_privileged or capabilities.can_raise_priority,
            "a low priority after a tenth of a second",
            f"{capabilities.to_be_privileged}, or let the user raise a priority again (RLIMIT_NICE of 20); without it "
            "notebook cells keep their share",
            required=False,
        ),
        row(
            "a second wall around files, besides the mount namespace",
            capabilities.landlock_version > 0 and namespaces,
            f"Landlock, version {capabilities.landlock_version}",
            "a Linux kernel with Landlock (5.13 or newer, with `landlock` among its security modules)",
            required=False,
        ),
        row(
            COUNTS_OF_THE_MACHINE,
            False,
            "",
            "use --backend gvisor, or one machine for each user whose programs must not meet: inode numbers of pipes "
            "and the figures of sysinfo count what all programs of the machine do, and the branches of a notebook can "
            "count each other's processes",
            required=False,
        ),
        row(
            "time, output, files and processes are limited",
            capabilities.is_privileged or not capabilities.is_machine_root,
            "rlimits and deadlines",
            f"{capabilities.to_be_privileged}, or run as an ordinary user: Linux does not limit the processes of root",
        ),
    ]
