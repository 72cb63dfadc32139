"""What this machine can give a sandbox, found out by trying, and told as a table of guarantees."""

import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from functools import cache

from rstar2.sandbox import cgroup, confine, linux, rootfs, seccomp
from rstar2.sandbox.execution import MIB

SCRATCH_BYTES, NUM_SCRATCH_FILES = 64 * MIB, 4096


@dataclass(frozen=True, slots=True)
class Guarantee:
    """One promise to whoever runs untrusted code here. `how` it is kept, or what would `fix` its absence."""

    name: str
    provided: bool
    how: str
    fix: str
    required: bool
    """Part of the minimum below which the sandbox refuses to start."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The facts that decide which layers can be put on."""

    is_linux: bool
    is_privileged: bool
    can_make_user_namespace: bool
    seccomp: bool
    memory_groups: cgroup.Hierarchy | None


@cache
def detect() -> Capabilities:
    if sys.platform != "linux":
        return Capabilities(False, False, False, False, None)
    has_admin = bool(linux.effective_capabilities() >> linux.CAP_SYS_ADMIN & 1)
    is_privileged = has_admin and os.geteuid() == 0 and _can_unshare(confine.NAMESPACES)
    can_make_user_namespace = is_privileged or _can_unshare(confine.NAMESPACES | linux.CLONE_NEWUSER)
    return Capabilities(
        is_linux=True,
        is_privileged=is_privileged,
        can_make_user_namespace=can_make_user_namespace,
        seccomp=seccomp.is_supported(),
        memory_groups=cgroup.find_hierarchy(),
    )


def _can_unshare(flags: int) -> bool:
    """Try it in a throw-away process: there is no other way to know."""
    program = "import sys; from rstar2.sandbox import linux; linux.unshare(int(sys.argv[1]))"
    attempt = subprocess.run([sys.executable, "-c", program, str(flags)], capture_output=True, timeout=30, check=False)
    return attempt.returncode == 0


def choose_layers(
    capabilities: Capabilities, *, scratch_bytes: int = SCRATCH_BYTES, num_scratch_files: int = NUM_SCRATCH_FILES
) -> confine.Layers:
    """Everything that the machine can give."""
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


def describe(capabilities: Capabilities) -> list[Guarantee]:
    """The table of guarantees for `rstar2 doctor` and `GET /status`."""
    namespaces = capabilities.is_privileged or capabilities.can_make_user_namespace
    kind = "namespaces made as root" if capabilities.is_privileged else "an unprivileged user namespace"
    fix_namespaces = (
        "run as root with CAP_SYS_ADMIN, or allow unprivileged user namespaces (kernel.unprivileged_userns_clone=1, "
        "kernel.apparmor_restrict_unprivileged_userns=0; in a container: --security-opt seccomp=unconfined)"
        if capabilities.is_linux
        else "run on Linux: this system has no namespaces"
    )

    def by_namespace(name: str, how: str) -> Guarantee:
        return Guarantee(name, namespaces, f"{how} ({kind})" if namespaces else "", fix_namespaces, required=True)

    groups = capabilities.memory_groups
    version = f"cgroup v{groups.version}" if groups else ""
    return [
        by_namespace("files of the machine are out of reach", "pivot_root on a read-only view of the Python runtime"),
        by_namespace("no network", "an empty network namespace"),
        by_namespace("other processes are invisible and all children end with the program", "a process namespace"),
        by_namespace("scratch directory of its own, bounded and empty", "a tmpfs of its own"),
        Guarantee(
            "system calls are filtered",
            capabilities.seccomp,
            "seccomp allow-list that answers with an errno" if capabilities.seccomp else "",
            f"the filter is written for x86_64; this machine is {platform.machine()}",
            required=True,
        ),
        Guarantee(
            "no capabilities, no way to gain privileges",
            namespaces,
            "empty bounding set, no_new_privs" if namespaces else "",
            fix_namespaces,
            required=True,
        ),
        Guarantee(
            "programs run under a uid of their own",
            capabilities.is_privileged,
            "one uid per slot, shared with nobody" if capabilities.is_privileged else "",
            "run as root; without it a program shares the uid of its slot's init, which the process namespace protects",
            required=False,
        ),
        Guarantee(
            "memory of a program and all its children is limited together",
            groups is not None,
            version,
            "let the service make memory cgroups (run as root, or delegate a cgroup v2 subtree to its user); "
            "without them each process is limited on its own",
            required=False,
        ),
        Guarantee("time, output, files and processes are limited", True, "rlimits and deadlines", "", required=True),
    ]
