"""A second layer of file isolation, by Landlock where the kernel has it.

The mount namespace already shows programs only the read-only runtime and their scratch directory. Landlock enforces the
same in another part of the kernel: write only in the scratch directory, read elsewhere, signal no process outside.
"""

import ctypes
import os
import struct
from contextlib import suppress

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG, _PATH_BENEATH = 1, 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE, _IOCTL_DEVICE = (
    1 << 0,
    1 << 1,
    1 << 2,
    1 << 3,
    1 << 14,
    1 << 15,
)
_NUM_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}
"""The number of file access rights by version of the interface; later versions have 16."""
_BIND_AND_CONNECT = 3
_SCOPE_SOCKETS_AND_SIGNALS = 3

_libc = ctypes.CDLL(None, use_errno=True)


def version() -> int:
    """The version of the kernel's Landlock interface; 0 without Landlock."""
    return max(0, int(_libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION_FLAG)))


def restrict(scratch: str) -> None:
    """Restrict this process and its descendants. Needs no_new_privs. Does nothing without Landlock."""
    abi = version()
    if not abi:
        return
    handled = (1 << _NUM_FILE_RIGHTS.get(abi, 16)) - 1
    ruleset = struct.pack(
        "=QQQ", handled, _BIND_AND_CONNECT if abi >= 4 else 0, _SCOPE_SOCKETS_AND_SIGNALS if abi >= 6 else 0
    )[: 8 if abi < 4 else 16 if abi < 6 else 24]
    ruleset_fd = _check(_libc.syscall(_CREATE_RULESET, ruleset, ctypes.c_size_t(len(ruleset)), 0), "create a ruleset")
    try:
        _allow(ruleset_fd, "/", _EXECUTE | _READ_FILE | _READ_DIR)
        with suppress(FileNotFoundError):
            _allow(ruleset_fd, "/dev", (_READ_FILE | _WRITE_FILE | _TRUNCATE | _IOCTL_DEVICE) & handled)
        _allow(ruleset_fd, scratch, handled)
        _check(_libc.syscall(_RESTRICT_SELF, ruleset_fd, 0), "restrict this process")
    finally:
        os.close(ruleset_fd)


def _allow(ruleset_fd: int, folder: str, rights: int) -> None:
    folder_fd = os.open(folder, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = struct.pack("=Qi", rights, folder_fd)
        _check(_libc.syscall(_ADD_RULE, ruleset_fd, _PATH_BENEATH, rule, 0), f"allow {folder}")
    finally:
        os.close(folder_fd)


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"landlock: {what}: {os.strerror(number)}")
    return result
