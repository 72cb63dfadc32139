"""The system calls that a program in the sandbox may make, compiled to a BPF filter.

An allow-list: every other call is refused with an errno, never with a kill, because a library that probes for a feature
must be able to fall back. A balanced search over ranges of call numbers keeps the cost of each call at about eight
comparisons.

Programs share the inodes of the Python runtime with the host. So no call may leave something on an inode (locks,
leases, notifications) or make the host's disk work (flushes, advice on the page cache).
"""

import errno
import platform
import struct
from enum import Enum, auto

# Names and numbers of x86_64. No sockets (only socketpair), no mounts, no namespaces, no tracing, no keyrings, no
# io_uring, no bpf, no SysV or POSIX message IPC, no memfds, no scheduling of others, no extended attributes.
_ALLOWED = {
    "files": {
        "read": 0, "write": 1, "close": 3, "stat": 4, "fstat": 5, "lstat": 6, "lseek": 8, "pread64": 17,
        "pwrite64": 18, "readv": 19, "writev": 20, "access": 21, "dup": 32, "dup2": 33, "sendfile": 40,
        "truncate": 76, "ftruncate": 77, "getdents": 78, "getcwd": 79,
        "chdir": 80, "fchdir": 81, "rename": 82, "mkdir": 83, "rmdir": 84, "creat": 85, "link": 86, "unlink": 87,
        "symlink": 88, "readlink": 89, "chmod": 90, "fchmod": 91, "umask": 95, "utime": 132, "statfs": 137,
        "fstatfs": 138, "getdents64": 217, "utimes": 235, "mkdirat": 258,
        "futimesat": 261, "newfstatat": 262, "unlinkat": 263, "renameat": 264, "linkat": 265, "symlinkat": 266,
        "readlinkat": 267, "fchmodat": 268, "faccessat": 269, "utimensat": 280, "fallocate": 285, "dup3": 292,
        "pipe": 22, "preadv": 295, "pwritev": 296, "renameat2": 316, "copy_file_range": 326,
        "close_range": 436, "faccessat2": 439, "fchmodat2": 452,
    },
    "waiting": {
        "poll": 7, "select": 23, "epoll_create": 213, "epoll_wait": 232, "epoll_ctl": 233, "pselect6": 270,
        "ppoll": 271, "epoll_pwait": 281, "eventfd": 284, "eventfd2": 290, "epoll_create1": 291,
        "timerfd_settime": 286, "timerfd_gettime": 287, "signalfd": 282, "signalfd4": 289, "epoll_pwait2": 441,
    },
    "memory": {
        "mmap": 9, "mprotect": 10, "munmap": 11, "brk": 12, "mremap": 25, "mlock": 149,
        "munlock": 150,
    },
    "processes": {
        "getpid": 39, "fork": 57, "vfork": 58, "execve": 59, "exit": 60, "wait4": 61, "kill": 62,
        "uname": 63, "setpgid": 109, "getppid": 110, "getpgrp": 111, "setsid": 112, "getpgid": 121, "getsid": 124,
        "gettid": 186, "tkill": 200, "set_tid_address": 218, "exit_group": 231, "tgkill": 234,
        "waitid": 247, "set_robust_list": 273, "execveat": 322, "membarrier": 324, "rseq": 334,
        "pidfd_send_signal": 424, "pidfd_open": 434, "arch_prctl": 158, "restart_syscall": 219,
        "sched_yield": 24, "sched_getparam": 143, "sched_getscheduler": 145, "sched_get_priority_max": 146,
        "sched_get_priority_min": 147, "sched_getaffinity": 204, "getpriority": 140, "getcpu": 309,
        "getrlimit": 97, "setrlimit": 160, "getrusage": 98, "sysinfo": 99, "times": 100, "getrandom": 318,
    },
    "signals and time": {
        "rt_sigaction": 13, "rt_sigprocmask": 14, "rt_sigreturn": 15, "pause": 34, "nanosleep": 35, "getitimer": 36,
        "alarm": 37, "setitimer": 38, "gettimeofday": 96, "rt_sigpending": 127, "rt_sigtimedwait": 128,
        "rt_sigqueueinfo": 129, "rt_sigsuspend": 130, "sigaltstack": 131, "time": 201,
        "timer_settime": 223, "timer_gettime": 224, "timer_getoverrun": 225, "timer_delete": 226,
    },
    "identity": {
        "getuid": 102, "getgid": 104, "geteuid": 107, "getegid": 108, "getgroups": 115, "setresuid": 117,
        "getresuid": 118, "setresgid": 119, "getresgid": 120,
    },
    "socket pairs": {
        "shutdown": 48, "getsockname": 51, "getpeername": 52,
    },
}  # fmt: skip
_CLONE, _SETPRIORITY = 56, 141

_AUDIT_ARCH_X86_64 = 0xC000003E
_X32_BIT = 0x40000000
_NEW_NAMESPACE_FLAGS = 0x7E020000 | 0x00000080  # every CLONE_NEW* and CLONE_NEWTIME
_PR_SET_PDEATHSIG, _PR_GET_DUMPABLE, _PR_SET_NAME, _PR_GET_NAME, _PR_SET_NO_NEW_PRIVS = 1, 3, 15, 16, 38
_PR_CAPBSET_READ, _PR_GET_SECCOMP, _PR_SET_VMA = 23, 21, 0x53564D41
_SAFE_PRCTL = (
    _PR_SET_PDEATHSIG, _PR_GET_DUMPABLE, _PR_SET_NAME, _PR_GET_NAME, _PR_GET_SECCOMP, _PR_CAPBSET_READ,
    _PR_SET_NO_NEW_PRIVS, _PR_SET_VMA,
)  # fmt: skip
_PRIO_PROCESS, _PRIO_PGRP = 0, 1
_LOW_NICE = 19
_SIGCHLD, _SIGCONT = 17, 18
_EXIT_SIGNAL_MASK = 0xFF
_AT_EMPTY_PATH = 0x1000
_AF_UNIX, _SOCK_STREAM, _SOCKET_TYPE_MASK, _SOL_SOCKET, _SO_PASSCRED = 1, 1, 0xF, 1, 16
_SOCKET_OPTIONS = {"REUSEADDR": 2, "TYPE": 3, "ERROR": 4, "SNDBUF": 7, "RCVBUF": 8, "PASSCRED": 16, "PEERCRED": 17,
                   "RCVTIMEO": 20, "SNDTIMEO": 21, "ACCEPTCONN": 30, "PROTOCOL": 38, "DOMAIN": 39}  # fmt: skip
_FCNTL = {"DUPFD": 0, "GETFD": 1, "SETFD": 2, "GETFL": 3, "SETFL": 4, "DUPFD_CLOEXEC": 1030, "GETPIPE_SZ": 1032}
_FCNTL_LOCKS = (5, 6, 7, 36, 37, 38)
_IOCTL = {"TCGETS": 0x5401, "TIOCGWINSZ": 0x5413, "FIONREAD": 0x541B, "FIONBIO": 0x5421,
          "FIONCLEX": 0x5450, "FIOCLEX": 0x5451}  # fmt: skip
_FUTEX = {"WAIT": 0, "WAKE": 1, "REQUEUE": 3, "CMP_REQUEUE": 4, "WAKE_OP": 5, "WAIT_BITSET": 9, "WAKE_BITSET": 10}
_FUTEX_COMMAND_MASK = 0x7F
_MADVISE = {"NORMAL": 0, "RANDOM": 1, "SEQUENTIAL": 2, "WILLNEED": 3, "DONTNEED": 4, "FREE": 8, "DONTFORK": 10,
            "DOFORK": 11, "HUGEPAGE": 14, "NOHUGEPAGE": 15, "DONTDUMP": 16, "DODUMP": 17, "WIPEONFORK": 18,
            "KEEPONFORK": 19, "POPULATE_READ": 22, "POPULATE_WRITE": 23}  # fmt: skip
_MESSAGE_FLAGS = 0x2 | 0x20 | 0x40 | 0x100 | 0x4000 | 0x40000000
"""MSG_PEEK, MSG_TRUNC, MSG_DONTWAIT, MSG_WAITALL, MSG_NOSIGNAL and MSG_CMSG_CLOEXEC."""
_O_TMPFILE_BIT = 0o20000000
_O_NOTIFICATION_PIPE = 0o200
_NUM_CLOCKS, _FIRST_CLOCK_OF_CALLER = 16, 0xFFFFFFF8

_LOAD, _AND, _JEQ, _JGE, _JSET, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NUMBER, _ARCH = 0, 4
_ARGUMENT_0, _ARGUMENT_1, _ARGUMENT_2, _ARGUMENT_3, _ARGUMENT_5 = 16, 24, 32, 40, 56
_ALL_BITS = 0xFFFFFFFF
_DENY = _ERRNO | errno.EPERM
_ABSENT = _ERRNO | errno.ENOSYS
_UNSUPPORTED = _ERRNO | errno.EOPNOTSUPP
_INVALID = _ERRNO | errno.EINVAL
_NO_LOCKS = _ERRNO | errno.ENOLCK
_DO_NOTHING = _ERRNO
"""The call is skipped and reports success."""
_EXTENDED_ATTRIBUTES = range(188, 200)
"""Answered as by a file system without attributes, which `shutil.copy2` accepts."""

_Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, operand


def is_supported() -> bool:
    return platform.machine() == "x86_64"


def allowed_numbers() -> frozenset[int]:
    return frozenset(number for names in _ALLOWED.values() for number in names.values())


def _search(ranges: list[tuple[int, int]]) -> list[_Instruction]:
    """A balanced search over sorted, disjoint, half-open ranges of `(start, action)`; the accumulator holds the call
    number."""
    if len(ranges) == 1:
        return [(_RETURN, 0, 0, ranges[0][1])]
    middle = len(ranges) // 2
    below, above = _search(ranges[:middle]), _search(ranges[middle:])
    # Jump offsets are one byte, so a longer lower half is skipped by an unconditional jump.
    if len(below) <= 255:
        return [(_JGE, len(below), 0, ranges[middle][0]), *below, *above]
    return [(_JGE, 0, 1, ranges[middle][0]), (0x05, 0, 0, len(below)), *below, *above]


def _allow_only(*tests: tuple[int, int, tuple[int, ...]], otherwise: int = _DENY) -> list[_Instruction]:
    """Allow the call if each of the arguments, masked, is one of the values: `(argument, mask, values)`."""
    program: list[_Instruction] = []
    for argument, mask, values in tests:
        jumps = [(_JEQ, len(values) - position, 0, value) for position, value in enumerate(values)]
        program += [(_LOAD, 0, 0, argument), (_AND, 0, 0, mask), *jumps, (_RETURN, 0, 0, otherwise)]
    return [*program, (_RETURN, 0, 0, _ALLOW)]


def _refuse_bits(argument: int, bits: int, otherwise: int = _DENY) -> list[_Instruction]:
    """Allow the call unless the argument has one of the bits."""
    return [
        (_LOAD, 0, 0, argument),
        (_JSET, 0, 1, bits),
        (_RETURN, 0, 0, otherwise),
        (_RETURN, 0, 0, _ALLOW),
    ]


def _refuse_values(argument: int, values: tuple[int, ...]) -> list[_Instruction]:
    """Allow the call unless the argument is one of the values."""
    jumps = [(_JEQ, len(values) - position, 0, value) for position, value in enumerate(values)]
    return [(_LOAD, 0, 0, argument), *jumps, (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _DENY)]


def _refuse_null(argument: int) -> list[_Instruction]:
    """Refuse a NULL pointer as argument; otherwise fall through."""
    return [
        (_LOAD, 0, 0, argument),
        (_JEQ, 0, 3, 0),
        (_LOAD, 0, 0, argument + 4),
        (_JEQ, 0, 1, 0),
        (_RETURN, 0, 0, _DENY),
    ]


def _always(action: int) -> list[_Instruction]:
    return [(_RETURN, 0, 0, action)]


# The slot's init is process 1 and group 1, and it must be able to lower the priority of an old execution. Where
# both have the same uid, the program could otherwise turn the same call against the init, or undo it.
_SETPRIORITY_OF_OTHERS = [
    *_allow_only((_ARGUMENT_0, _ALL_BITS, (_PRIO_PROCESS, _PRIO_PGRP)), (_ARGUMENT_2, _ALL_BITS, (_LOW_NICE,)))[:-1],
    (_LOAD, 0, 0, _ARGUMENT_1),
    (_JGE, 0, 1, 2),
    (_RETURN, 0, 0, _ALLOW),
    (_RETURN, 0, 0, _DENY),
]
# The clock of another process tells how much CPU time it has used: through the init's clock, programs could pass
# messages.
_CLOCK_OF_ALL_OR_OF_CALLER = [
    (_LOAD, 0, 0, _ARGUMENT_0),
    (_JGE, 0, 2, _NUM_CLOCKS),
    (_JGE, 1, 0, _FIRST_CLOCK_OF_CALLER),
    (_RETURN, 0, 0, _INVALID),
    (_RETURN, 0, 0, _ALLOW),
]
_FCNTL_COMMANDS = [
    (_LOAD, 0, 0, _ARGUMENT_1),
    *[(_JEQ, len(_FCNTL_LOCKS) - position, 0, command) for position, command in enumerate(_FCNTL_LOCKS)],
    (0x05, 0, 0, 1),
    (_RETURN, 0, 0, _NO_LOCKS),
    *_allow_only((_ARGUMENT_1, _ALL_BITS, tuple(_FCNTL.values())), otherwise=_INVALID),
]

_BY_ARGUMENT: dict[tuple[int, ...], list[_Instruction]] = {
    # Unix streams only: the kernel gives a name to a socket with messages that wants credentials, and all slots share
    # one network namespace, so it would be a channel between programs. Other families load kernel modules.
    (53,): _allow_only((_ARGUMENT_0, _ALL_BITS, (_AF_UNIX,)), (_ARGUMENT_1, _SOCKET_TYPE_MASK, (_SOCK_STREAM,))),
    # getsockopt: the cookie of a socket is a count that the whole machine shares.
    (55,): _allow_only(
        (_ARGUMENT_1, _ALL_BITS, (_SOL_SOCKET,)),
        (_ARGUMENT_2, _ALL_BITS, tuple(_SOCKET_OPTIONS.values())),
        otherwise=_ERRNO | errno.ENOPROTOOPT,
    ),
    (332,): _always(_ABSENT),  # statx: its ids of mounts count the slots that were made
    (_CLONE,): _refuse_bits(_ARGUMENT_0, _NEW_NAMESPACE_FLAGS),
    (435,): _always(_ABSENT),  # clone3: its flags are in memory, where no filter can read them
    (157,): _allow_only((_ARGUMENT_0, _ALL_BITS, _SAFE_PRCTL)),
    # prlimit64: a program may not change the limits of another process; 0 means the caller itself.
    (302,): _allow_only((_ARGUMENT_0, _ALL_BITS, (0,))),
    # open and openat: an unnamed file leaves no trace in the directory, only in the count of inode numbers.
    (2,): _refuse_bits(_ARGUMENT_1, _O_TMPFILE_BIT, _UNSUPPORTED),
    (257,): _refuse_bits(_ARGUMENT_2, _O_TMPFILE_BIT, _UNSUPPORTED),
    (293,): _refuse_bits(_ARGUMENT_1, _O_NOTIFICATION_PIPE),  # pipe2
    (72,): _FCNTL_COMMANDS,
    (73,): _always(_NO_LOCKS),  # flock
    # fsync, fdatasync, msync, fadvise64: on the scratch directory, which is memory, they do nothing anyway.
    (74,): _always(_DO_NOTHING),
    (75,): _always(_DO_NOTHING),
    (26,): _always(_DO_NOTHING),
    (221,): _always(_DO_NOTHING),
    (28,): _allow_only((_ARGUMENT_2, _ALL_BITS, tuple(_MADVISE.values())), otherwise=_INVALID),
    (16,): _allow_only((_ARGUMENT_1, _ALL_BITS, tuple(_IOCTL.values())), otherwise=_ERRNO | errno.ENOTTY),
    (202,): _allow_only((_ARGUMENT_1, _FUTEX_COMMAND_MASK, tuple(_FUTEX.values())), otherwise=_ABSENT),
    (449,): _always(_ABSENT),  # futex_waitv
    (44,): _refuse_bits(_ARGUMENT_3, _ALL_BITS & ~_MESSAGE_FLAGS, _INVALID),  # sendto
    (45,): _refuse_bits(_ARGUMENT_3, _ALL_BITS & ~_MESSAGE_FLAGS, _INVALID),  # recvfrom
    (47,): _refuse_bits(_ARGUMENT_2, _ALL_BITS & ~_MESSAGE_FLAGS, _INVALID),  # recvmsg
    # preadv2 and pwritev2: their flags tell what is in the page cache.
    (327, 328): _refuse_bits(_ARGUMENT_5, _ALL_BITS, _UNSUPPORTED),
    (228, 229, 230, 283): _CLOCK_OF_ALL_OR_OF_CALLER,  # clock_gettime, clock_getres, clock_nanosleep, timerfd_create
    (222,): _CLOCK_OF_ALL_OR_OF_CALLER,  # timer_create
}
"""Rules for calls by their arguments."""
_SENDMSG, _SETSOCKOPT = 46, 54
"""Programs may not send descriptors: Linux counts those in flight by user, so a program could stop its neighbours'
cells."""

# Cells share a process namespace and a uid with the parked states of all branches of their notebook. The parked states
# are stopped, and cells must not wake them, change them or read anything about them.
_BY_ARGUMENT_IN_CELLS: dict[tuple[int, ...], list[_Instruction]] = {
    # kill, tkill, rt_sigqueueinfo, pidfd_send_signal, tgkill: a state would run on, beside the cells of others.
    (62, 200, 129, 424): _refuse_values(_ARGUMENT_1, (_SIGCHLD, _SIGCONT)),
    (234,): _refuse_values(_ARGUMENT_2, (_SIGCHLD, _SIGCONT)),
    # clone: the same, sent by the end of a child that the cell left behind.
    (_CLONE,): [
        *_refuse_bits(_ARGUMENT_0, _NEW_NAMESPACE_FLAGS)[:-1],
        *_allow_only((_ARGUMENT_0, _EXIT_SIGNAL_MASK, (0, _SIGCHLD))),
    ],
    (222,): _always(_DENY),  # timer_create: the same, sent by a timer
    (109,): _always(_DENY),  # setpgid: the same, sent by the kernel to a process group that is orphaned
    # getpgid, getsid, getpriority: what a process does to itself, others could read.
    (121, 124): _allow_only((_ARGUMENT_0, _ALL_BITS, (0,))),
    (140,): _allow_only((_ARGUMENT_0, _ALL_BITS, (_PRIO_PROCESS,)), (_ARGUMENT_1, _ALL_BITS, (0,))),
    # fchmod, fchmodat2, futimesat, utimensat: a pipe of an earlier state has a mode and times.
    (91,): _always(_DENY),
    (452,): _refuse_bits(_ARGUMENT_3, _AT_EMPTY_PATH),
    (261,): [*_refuse_null(_ARGUMENT_1), (_RETURN, 0, 0, _ALLOW)],
    (280,): [*_refuse_null(_ARGUMENT_1), *_refuse_bits(_ARGUMENT_3, _AT_EMPTY_PATH)],
}


class Role(Enum):
    """The kinds of filtered processes."""

    PROGRAM = auto()
    """A stateless program, and the init of its slot."""
    CELL = auto()
    """The cells of a notebook."""
    CONTROLLER = auto()
    """The init of a notebook's slot, which runs no user code. It sends descriptors to the cells and asks for the
    credentials of those that answer."""


def judged_numbers() -> frozenset[int]:
    return frozenset(number for numbers in _BY_ARGUMENT for number in numbers) | {_SETPRIORITY, _SENDMSG, _SETSOCKOPT}


def _special_cases(distinct_uid: bool, role: Role) -> list[_Instruction]:
    rules = {
        **_BY_ARGUMENT,
        (_SENDMSG,): _always(_DENY),
        (_SETSOCKOPT,): _always(_DENY),
        (_SETPRIORITY,): _always(_ALLOW) if distinct_uid else _SETPRIORITY_OF_OTHERS,
    }
    if role is Role.CONTROLLER:
        rules[(_SENDMSG,)] = _refuse_bits(_ARGUMENT_2, _ALL_BITS & ~_MESSAGE_FLAGS, _INVALID)
        rules[(_SETSOCKOPT,)] = _allow_only(
            (_ARGUMENT_1, _ALL_BITS, (_SOL_SOCKET,)), (_ARGUMENT_2, _ALL_BITS, (_SO_PASSCRED,))
        )
    elif role is Role.CELL:
        # Without a separate uid, the cell may have its user's right to raise a priority.
        own = _allow_only((_ARGUMENT_0, _ALL_BITS, (_PRIO_PROCESS,)), (_ARGUMENT_1, _ALL_BITS, (0,)))
        rules |= {**_BY_ARGUMENT_IN_CELLS, (_SETPRIORITY,): own if distinct_uid else _always(_DENY)}
    program: list[_Instruction] = []
    for numbers, body in rules.items():
        for position, number in enumerate(numbers):
            is_last = position == len(numbers) - 1
            program.append((_JEQ, len(numbers) - 1 - position, len(body) if is_last else 0, number))
        program += body
    return program


def compile_filter(*, distinct_uid: bool, role: Role = Role.PROGRAM) -> bytes:
    """Compile the filter into an array of `struct sock_filter`. With `distinct_uid`, programs run under a separate uid,
    so the kernel already protects the slot's init from them."""
    allowed = sorted(allowed_numbers())
    ranges: list[tuple[int, int]] = []
    for number in range(allowed[-1] + 2):
        action = _ALLOW if number in allowed else _UNSUPPORTED if number in _EXTENDED_ATTRIBUTES else _DENY
        if not ranges or ranges[-1][1] != action:
            ranges.append((number, action))
    ranges.append((_X32_BIT, _ABSENT))
    program: list[_Instruction] = [
        (_LOAD, 0, 0, _ARCH),
        (_JEQ, 1, 0, _AUDIT_ARCH_X86_64),
        (_RETURN, 0, 0, _ABSENT),
        (_LOAD, 0, 0, _NUMBER),
        *_special_cases(distinct_uid, role),
        *_search(ranges),
    ]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
