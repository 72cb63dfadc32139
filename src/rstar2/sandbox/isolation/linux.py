"""Linux calls that Python does not wrap, as thin functions that raise OSError.

`confine.py` decides which of them are called, and in which order.
"""

import ctypes
import errno
import os
import signal
import struct

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_NOATIME, MS_BIND, MS_REC, MS_PRIVATE = 32, 1024, 4096, 16384, 1 << 18
MNT_DETACH = 2
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000

PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 4, 24, 38, 47
PR_CAP_AMBIENT_CLEAR_ALL = 4

CAP_KILL, CAP_SETGID, CAP_SETUID, CAP_SETPCAP, CAP_SYS_ADMIN, CAP_SYS_NICE = 5, 6, 7, 8, 21, 23
CAP_CHECKPOINT_RESTORE = 40
_CAP_VERSION_3 = 0x20080522
# System call numbers of x86_64, the only architecture that the filter supports.
_SYS_SECCOMP, _SYS_PIVOT_ROOT, _SYS_CLONE, _SYS_MOUNT_SETATTR = 317, 155, 56, 442
_SECCOMP_SET_MODE_FILTER = 1

_libc = ctypes.CDLL(None, use_errno=True)
_libc_holding_gil = ctypes.PyDLL(None, use_errno=True)


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def unshare(flags: int) -> None:
    _check(_libc.unshare(flags), f"unshare({flags:#x})")


def fork_into_new_pid_namespace() -> int:
    """Fork, with the child as the init of a new process namespace. After `unshare`, an unprivileged process could not
    return to its own."""
    ctypes.pythonapi.PyOS_BeforeFork()
    pid: int = _libc_holding_gil.syscall(_SYS_CLONE, CLONE_NEWPID | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
    else:
        ctypes.pythonapi.PyOS_AfterFork_Parent()
    return _check(pid, "clone")


def mount(source: str | None, target: str, kind: str | None, flags: int, options: str = "") -> None:
    names = [None if name is None else os.fsencode(name) for name in (source, target, kind)]
    result = _libc.mount(*names, ctypes.c_ulong(flags), os.fsencode(options))
    _check(result, f"mount {source or kind} on {target}")


def bind_read_only(source: str, target: str) -> None:
    """Bind read-only, with everything mounted below; on old kernels, which protect only the top, without it."""
    mount(source, target, None, MS_BIND | MS_REC)
    attributes = struct.pack("=QQQQ", MS_RDONLY | MS_NOSUID, 0, 0, 0)
    result = _libc.syscall(
        _SYS_MOUNT_SETATTR, _AT_FDCWD, os.fsencode(target), _AT_RECURSIVE, attributes, ctypes.c_size_t(len(attributes))
    )
    if result == 0:
        return
    if ctypes.get_errno() != errno.ENOSYS:
        _check(result, f"mount_setattr {target}")
    unmount_detached(target)
    mount(source, target, None, MS_BIND)
    kept = os.statvfs(target).f_flag & (MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_NOATIME)
    mount(None, target, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | kept)


def unmount_detached(target: str) -> None:
    _check(_libc.umount2(os.fsencode(target), MNT_DETACH), f"umount {target}")


def pivot_root(new_root: str, put_old: str) -> None:
    _check(_libc.syscall(_SYS_PIVOT_ROOT, os.fsencode(new_root), os.fsencode(put_old)), "pivot_root")


def sethostname(name: str) -> None:
    encoded = name.encode()
    _check(_libc.sethostname(encoded, len(encoded)), "sethostname")


def prctl(option: int, argument: int = 0) -> None:
    zero = ctypes.c_ulong(0)
    _check(_libc.prctl(option, ctypes.c_ulong(argument), zero, zero, zero), f"prctl({option})")


def effective_capabilities() -> int:
    """The effective capability set as a bit mask, read without /proc."""
    header = struct.pack("=Ii", _CAP_VERSION_3, 0)
    data = ctypes.create_string_buffer(24)
    _check(_libc.capget(header, data), "capget")
    low, _, _, high, _, _ = struct.unpack("=6I", data.raw)
    return int(low | (high << 32))


def keep_only_capabilities(kept: frozenset[int]) -> None:
    """Drop all other capabilities permanently from the bounding, ambient, inheritable, permitted and effective sets."""
    for capability in range(64):
        if capability not in kept:
            try:
                prctl(PR_CAPBSET_DROP, capability)
            except OSError:
                break  # past the last capability that this kernel knows
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    mask = sum(1 << capability for capability in kept)
    low, high = mask & 0xFFFFFFFF, mask >> 32
    header = struct.pack("=Ii", _CAP_VERSION_3, 0)
    _check(_libc.capset(header, struct.pack("=6I", low, low, 0, high, high, 0)), "capset")


def install_seccomp_filter(program: bytes) -> None:
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    instructions = ctypes.create_string_buffer(program, len(program))
    descriptor = struct.pack("@HP", len(program) // 8, ctypes.addressof(instructions))
    _check(_libc.syscall(_SYS_SECCOMP, _SECCOMP_SET_MODE_FILTER, 0, descriptor), "seccomp")
