"""Drops the privileges of a template and its slots, in order.

The template enters namespaces and the read-only root once; each slot adds a process namespace (made by the process that
forks the slot), a scratch file system, a memory group, no capabilities and the system-call filter. Executions inherit
all of it, which is why isolation costs an execution almost nothing.
"""

import contextlib
import os
import resource
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rstar2.sandbox.isolation import landlock, linux, rootfs, seccomp

NAMESPACES = linux.CLONE_NEWNS | linux.CLONE_NEWNET | linux.CLONE_NEWIPC | linux.CLONE_NEWUTS
NUM_OPEN_FILES = 256
NUM_PENDING_SIGNALS = 64
"""The limit of pending signals for one slot, including timers. Without separate uids, Linux counts the signals of all
slots against one user, whose limit is 10,000 or more."""
INSIDE_UID = 1000


@dataclass(frozen=True, slots=True)
class Layers:
    """Which layers of isolation are applied: all that the machine supports, unless fewer were requested."""

    namespaces: bool
    user_namespace: bool
    """Unprivileged isolation: a user namespace with a single uid owns the other namespaces."""
    seccomp: bool
    distinct_uid: bool
    """Each slot's programs run under a uid that is not the slot's own. Needs root."""
    scratch: str
    """The directory that the scratch file system is mounted on."""
    scratch_bytes: int
    num_scratch_files: int
    packages: tuple[str, ...] = ()
    """Installed packages that programs can import besides the promised ones."""


def enter_template(layers: Layers) -> None:
    """Confine the template, once, before any slot is forked."""
    if not layers.namespaces:
        return
    view = rootfs.runtime_view(layers.packages)
    mount_point = Path(tempfile.mkdtemp(prefix="rstar2-root-"))
    uid, gid = os.getuid(), os.getgid()
    linux.unshare(NAMESPACES | (linux.CLONE_NEWUSER if layers.user_namespace else 0))
    if layers.user_namespace:
        proc_fd = os.open("/proc", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        map_single_id(uid, gid, proc_fd)
        os.close(proc_fd)
    linux.sethostname("sandbox")
    rootfs.enter(view, mount_point, layers.scratch)


def map_single_id(uid: int, gid: int, proc_fd: int) -> None:
    """In a new user namespace, map our own id outside to `INSIDE_UID`, the only id inside."""
    for name, content in (
        ("setgroups", "deny"),
        ("uid_map", f"{INSIDE_UID} {uid} 1"),
        ("gid_map", f"{INSIDE_UID} {gid} 1"),
    ):
        fd = os.open(f"self/{name}", os.O_WRONLY | os.O_CLOEXEC, dir_fd=proc_fd)
        os.write(fd, content.encode())
        os.close(fd)


def enter_slot(layers: Layers, memory_group_fd: int | None, proc_fd: int) -> None:
    """Confine a slot, once, in the init of its process namespace. The caller installs the system-call filter last,
    since it cannot be undone. `proc_fd` is the machine's /proc, which no path reaches any more."""
    if memory_group_fd is not None:
        os.write(memory_group_fd, b"0")
        os.close(memory_group_fd)
    with contextlib.suppress(OSError):  # when the machine runs out of memory, the kernel kills programs first
        score_fd = os.open("self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC, dir_fd=proc_fd)
        try:
            os.write(score_fd, b"1000")
        finally:
            os.close(score_fd)
    os.setsid()
    os.umask(0o022)
    if layers.user_namespace:
        # Each slot has its own user namespace, because Linux counts processes by user: a fork bomb must not use up the
        # share of other slots.
        linux.unshare(linux.CLONE_NEWUSER)
        map_single_id(INSIDE_UID, INSIDE_UID, proc_fd)
    os.close(proc_fd)
    if layers.namespaces:
        linux.unshare(linux.CLONE_NEWNS)
        # The init owns the scratch root, so a program can fill it but not change its mode for the next program.
        options = f"mode=1777,size={layers.scratch_bytes},nr_inodes={layers.num_scratch_files}"
        # Access times would tell the next program when the last one read a file.
        flags = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOATIME
        linux.mount("tmpfs", layers.scratch, "tmpfs", flags, options)
        os.chdir(layers.scratch)
    if layers.distinct_uid:
        limit(resource.RLIMIT_NICE, 0)  # otherwise the host needs it to raise the priority of a notebook's next cell
        os.setgroups([])
        kept = frozenset({linux.CAP_KILL, linux.CAP_SETUID, linux.CAP_SETGID, linux.CAP_SYS_NICE})
        kept |= {linux.CAP_CHECKPOINT_RESTORE}  # to number processes from the start for each program
    else:
        kept = frozenset()
    for kind in (resource.RLIMIT_CORE, resource.RLIMIT_MSGQUEUE, resource.RLIMIT_MEMLOCK):
        resource.setrlimit(kind, (0, 0))
    limit(resource.RLIMIT_SIGPENDING, NUM_PENDING_SIGNALS)
    if layers.namespaces:
        linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
        landlock.restrict(layers.scratch)
        linux.keep_only_capabilities(kept)
    if layers.distinct_uid:
        linux.prctl(linux.PR_SET_DUMPABLE, 0)
    # Otherwise slots stay dumpable: the host measures their memory and has no other right to read it.


def limit(kind: int, value: int) -> None:
    """Set a limit; a lower one of the machine stays."""
    _, hard_limit = resource.getrlimit(kind)
    value = value if hard_limit == resource.RLIM_INFINITY else min(value, hard_limit)
    resource.setrlimit(kind, (value, value))


def limit_open_files() -> None:
    """Limit open files for programs and for processes that send no descriptors. Linux refuses to send a descriptor
    while those in flight of all the user's processes exceed the sender's limit, so senders keep a high limit."""
    limit(resource.RLIMIT_NOFILE, NUM_OPEN_FILES)


def seccomp_program(layers: Layers, role: seccomp.Role = seccomp.Role.PROGRAM) -> bytes:
    if not (layers.seccomp and seccomp.is_supported()):
        return b""
    return seccomp.compile_filter(distinct_uid=layers.distinct_uid, role=role)
