"""The compiled filter, run by an interpreter of BPF, does for every call number what the table says."""

import errno
import struct
from collections.abc import Callable

import pytest

from rstar2.sandbox.isolation import seccomp

pytestmark = pytest.mark.unit

X86_64, I386, AARCH64 = 0xC000003E, 0x40000003, 0xC00000B7
X32_BIT = 0x40000000
ALLOW, DENY, ABSENT = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS

CLONE, EXECVE, PTRACE, PRCTL, SETPRIORITY, PRLIMIT64, CLONE3 = 56, 59, 101, 157, 141, 302, 435
SOCKETPAIR, SETSOCKOPT, SENDMSG, FCNTL, FLOCK, IOCTL, FUTEX = 53, 54, 46, 72, 73, 16, 202
GETSOCKOPT, STATX, GETPRIORITY, SETPGID, GETPGID, GETSID = 55, 332, 140, 109, 121, 124
BY_ARGUMENT = seccomp.judged_numbers()

REFUSED = {
    "socket": 41, "connect": 42, "accept": 43, "bind": 49, "listen": 50, "accept4": 288, "sendmmsg": 307,
    "recvmmsg": 299, "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "mount": 165,
    "umount2": 166, "pivot_root": 155, "chroot": 161, "unshare": 272, "setns": 308, "open_tree": 428,
    "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "mount_setattr": 442,
    "mknod": 133, "mknodat": 259, "setxattr": 188, "lsetxattr": 189, "fsetxattr": 190, "removexattr": 197,
    "bpf": 321, "perf_event_open": 298, "userfaultfd": 323, "keyctl": 250, "add_key": 248, "request_key": 249,
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "io_setup": 206, "memfd_create": 319,
    "memfd_secret": 447, "seccomp": 317, "kexec_load": 246, "init_module": 175, "finit_module": 313, "reboot": 169,
    "setuid": 105, "setgid": 106, "setreuid": 113, "setgroups": 116, "capset": 126, "personality": 135,
    "shmget": 29, "shmat": 30, "semget": 64, "msgget": 68, "mq_open": 240, "sched_setscheduler": 144,
    "sched_setparam": 142, "sched_setaffinity": 203, "sched_setattr": 314, "ioprio_set": 251, "syslog": 103,
    "open_by_handle_at": 304, "name_to_handle_at": 303, "quotactl": 179, "swapon": 167, "sethostname": 170,
    "settimeofday": 164, "clock_settime": 227, "adjtimex": 159, "iopl": 172, "ioperm": 173, "acct": 163,
    "fanotify_init": 300, "inotify_init1": 294, "pidfd_getfd": 438, "process_madvise": 440, "vmsplice": 278,
    "splice": 275, "tee": 276, "modify_ldt": 154, "uselib": 134, "landlock_create_ruleset": 444, "pkey_alloc": 330,
    "remap_file_pages": 216, "move_pages": 279, "mbind": 237, "migrate_pages": 256, "set_mempolicy": 238,
    "rt_tgsigqueueinfo": 297, "get_robust_list": 274, "mlockall": 151, "mlock2": 325,
    "chown": 92, "fchown": 93, "lchown": 94, "fchownat": 260,
}  # fmt: skip
NEEDED = {
    "read": 0, "write": 1, "close": 3, "mmap": 9, "brk": 12, "rt_sigaction": 13, "fork": 57, "vfork": 58,
    "execve": 59, "exit": 60, "wait4": 61, "kill": 62, "fcntl": 72, "futex": 202, "exit_group": 231, "openat": 257,
    "newfstatat": 262, "pipe2": 293, "getrandom": 318, "clock_nanosleep": 230, "epoll_wait": 232,
    "close_range": 436, "rseq": 334,
}  # fmt: skip


def interpret(program: bytes, number: int, arch: int = X86_64, arguments: tuple[int, ...] = ()) -> int:
    """Classic BPF over `struct seccomp_data`, as the kernel runs it. IndexError if it runs off its end."""
    data = struct.pack("=IIQ6Q", number, arch, 0, *(*arguments, *[0] * (6 - len(arguments))))
    instructions = list(struct.iter_unpack("=HBBI", program))
    tests: dict[int, Callable[[int, int], bool]] = {
        0x15: lambda a, k: a == k,
        0x25: lambda a, k: a > k,
        0x35: lambda a, k: a >= k,
        0x45: lambda a, k: bool(a & k),
    }
    at = accumulator = 0
    while True:
        code, if_true, if_false, operand = instructions[at]
        at += 1
        if code == 0x20:
            accumulator = struct.unpack_from("=I", data, operand)[0]
        elif code == 0x05:
            at += operand
        elif code == 0x06:
            return int(operand)
        elif code == 0x54:
            accumulator &= operand
        else:
            at += if_true if tests[code](accumulator, operand) else if_false


@pytest.fixture(params=[True, False], ids=["uid of its own", "uid of the slot"], scope="module")
def distinct_uid(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(scope="module")
def program(distinct_uid: bool) -> bytes:
    return seccomp.compile_filter(distinct_uid=distinct_uid)


@pytest.fixture(scope="module")
def cell(distinct_uid: bool) -> bytes:
    return seccomp.compile_filter(distinct_uid=distinct_uid, role=seccomp.Role.CELL)


@pytest.fixture(scope="module")
def controller(distinct_uid: bool) -> bytes:
    return seccomp.compile_filter(distinct_uid=distinct_uid, role=seccomp.Role.CONTROLLER)


def is_refused(action: int) -> bool:
    return action & 0xFFFF0000 == 0x00050000 and action & 0xFFFF != 0


@pytest.mark.parametrize("role", list(seccomp.Role))
def test_the_kernel_takes_it(distinct_uid: bool, role: seccomp.Role) -> None:
    """At most 4,096 instructions, every jump forward and inside, no path without a return."""
    program = seccomp.compile_filter(distinct_uid=distinct_uid, role=role)
    instructions = list(struct.iter_unpack("=HBBI", program))
    assert 0 < len(instructions) <= 4096
    for position, (code, if_true, if_false, operand) in enumerate(instructions):
        assert code in (0x20, 0x05, 0x06, 0x15, 0x25, 0x35, 0x45, 0x54)
        jumps = [operand] if code == 0x05 else [if_true, if_false] if code & 0x07 == 0x05 else []
        assert all(position + 1 + jump < len(instructions) for jump in jumps)
    assert instructions[-1][0] == 0x06


def test_every_number_is_as_in_the_table(program: bytes) -> None:
    allowed = seccomp.allowed_numbers()
    assert not allowed & BY_ARGUMENT
    assert {CLONE, PRCTL, SETPRIORITY, PRLIMIT64, CLONE3, SOCKETPAIR, SETSOCKOPT, FCNTL, IOCTL} <= BY_ARGUMENT
    for number in set(range(601)) - BY_ARGUMENT:
        action = interpret(program, number)
        assert action == ALLOW if number in allowed else is_refused(action), number


@pytest.mark.parametrize("number", [601, 1000, 4096, 1 << 20, X32_BIT - 1, 0x80000000, 0xFFFFFFFF])
def test_numbers_beyond_the_table_are_refused(program: bytes, number: int) -> None:
    assert is_refused(interpret(program, number))


def test_dangerous_calls_are_refused(program: bytes) -> None:
    assert {name for name, number in REFUSED.items() if not is_refused(interpret(program, number))} == set()


def test_needed_calls_are_allowed(program: bytes) -> None:
    assert {name for name, number in NEEDED.items() if interpret(program, number) != ALLOW} == set()


def test_x32_calls_are_absent(program: bytes) -> None:
    for number in range(601):
        assert interpret(program, X32_BIT | number) == ABSENT, number


@pytest.mark.parametrize("arch", [I386, AARCH64, 0])
def test_calls_of_another_architecture_are_absent(program: bytes, arch: int) -> None:
    for number in (0, 1, 11, 59, 102, 120, 359):
        assert interpret(program, number, arch) == ABSENT


def test_clone_may_make_threads_and_processes_but_no_namespaces(program: bytes) -> None:
    fork, thread, vfork = 0x01200011, 0x003D0F00, 0x4111
    for flags in (fork, thread, vfork):
        assert interpret(program, CLONE, arguments=(flags,)) == ALLOW
    namespaces = {
        "time": 0x80, "mount": 0x20000, "cgroup": 0x02000000, "uts": 0x04000000, "ipc": 0x08000000,
        "user": 0x10000000, "pid": 0x20000000, "net": 0x40000000,
    }  # fmt: skip
    for name, flag in namespaces.items():
        for flags in (flag, flag | fork, flag | thread):
            assert interpret(program, CLONE, arguments=(flags,)) == DENY, name


def test_clone3_is_absent_so_that_libc_takes_clone(program: bytes) -> None:
    assert interpret(program, CLONE3, arguments=(0x1000, 88)) == ABSENT


def test_prctl_is_judged_by_its_option(program: bytes) -> None:
    harmless = {"PDEATHSIG": 1, "GET_DUMPABLE": 3, "SET_NAME": 15, "GET_NAME": 16, "GET_SECCOMP": 21,
                "CAPBSET_READ": 23, "SET_NO_NEW_PRIVS": 38, "SET_VMA": 0x53564D41}  # fmt: skip
    for option in [*range(100), 0x53564D41, 0x59616D61, 0x41555856]:
        expected = ALLOW if option in harmless.values() else DENY
        assert interpret(program, PRCTL, arguments=(option,)) == expected, option


def test_nobody_sets_the_limits_of_another(program: bytes) -> None:
    assert interpret(program, PRLIMIT64, arguments=(0, 7)) == ALLOW
    for pid in (1, 2, 1000, 0xFFFFFFFF):
        assert interpret(program, PRLIMIT64, arguments=(pid, 7)) == DENY


def test_nobody_reprioritizes_the_init(program: bytes, distinct_uid: bool) -> None:
    """Of kind process or group, 0 is the caller's own and 1 the init's; a uid is everybody's who has it."""
    process, group, user = 0, 1, 2
    expected = {
        (process, 0): False, (process, 1): False, (process, 2): True, (process, 5000): True,
        (group, 0): False, (group, 1): False, (group, 2): True, (group, 5000): True,
        (user, 0): False, (user, 1): False, (user, 1000): False, (3, 2): False, (0xFFFFFFFF, 2): False,
    }  # fmt: skip
    for (kind, who), is_allowed in expected.items():
        action = interpret(program, SETPRIORITY, arguments=(kind, who, 19))
        assert action == (ALLOW if distinct_uid or is_allowed else DENY), (kind, who)


def test_socket_pairs_are_unix_streams(program: bytes) -> None:
    stream, close_on_exec, non_blocking = 1, 0o2000000, 0o4000
    assert interpret(program, SOCKETPAIR, arguments=(1, stream | close_on_exec | non_blocking)) == ALLOW
    for family in (0, 2, 10, 16, 17, 30, 38, 40):
        assert is_refused(interpret(program, SOCKETPAIR, arguments=(family, stream)))


@pytest.mark.parametrize("kind", [0, 2, 3, 4, 5, 10])
def test_pairs_with_messages_are_refused(program: bytes, kind: int) -> None:
    assert is_refused(interpret(program, SOCKETPAIR, arguments=(1, kind)))


def test_only_a_controller_sets_a_socket_option_and_only_one(program: bytes, controller: bytes) -> None:
    socket_level, pass_credentials, attach_filter, send_buffer = 1, 16, 26, 7
    assert interpret(program, SETSOCKOPT, arguments=(0, socket_level, pass_credentials)) == DENY
    assert interpret(controller, SETSOCKOPT, arguments=(0, socket_level, pass_credentials)) == ALLOW
    for level, option in ((socket_level, attach_filter), (socket_level, send_buffer), (0, pass_credentials), (6, 1)):
        assert is_refused(interpret(controller, SETSOCKOPT, arguments=(0, level, option)))


def test_sockets_tell_no_counts_of_the_machine(program: bytes) -> None:
    socket_level, kind, error, cookie, peer_process, name_space = 1, 3, 4, 57, 77, 71
    for option in (kind, error):
        assert interpret(program, GETSOCKOPT, arguments=(0, socket_level, option)) == ALLOW
    for option in (cookie, peer_process, name_space):
        assert is_refused(interpret(program, GETSOCKOPT, arguments=(0, socket_level, option)))
    assert is_refused(interpret(program, GETSOCKOPT, arguments=(0, 6, kind)))


def test_mounts_are_not_numbered(program: bytes) -> None:
    assert interpret(program, STATX) == ABSENT


def test_nothing_is_left_on_an_inode_of_the_host(program: bytes) -> None:
    locks, others, harmless = (5, 6, 7, 36, 37, 38), (8, 10, 15, 1024, 1026, 1031, 1033, 1036), (0, 1, 2, 3, 4, 1030)
    for command in locks:
        assert interpret(program, FCNTL, arguments=(0, command)) == 0x00050000 | errno.ENOLCK
    assert interpret(program, FLOCK) == 0x00050000 | errno.ENOLCK
    for command in others:
        assert is_refused(interpret(program, FCNTL, arguments=(0, command))), command
    for command in harmless:
        assert interpret(program, FCNTL, arguments=(0, command)) == ALLOW


def test_the_disk_of_the_host_is_left_alone(program: bytes) -> None:
    """Flushes and advice report success and do nothing."""
    fsync, fdatasync, msync, fadvise64, mincore, madvise = 74, 75, 26, 221, 27, 28
    assert {interpret(program, number) for number in (fsync, fdatasync, msync, fadvise64)} == {0x00050000}
    assert is_refused(interpret(program, mincore))
    for advice in (9, 12, 20, 21, 25, 100):
        assert is_refused(interpret(program, madvise, arguments=(0, 0, advice)))
    for advice in (3, 4, 8, 14):
        assert interpret(program, madvise, arguments=(0, 0, advice)) == ALLOW


def test_device_controls_are_those_of_a_terminal_or_a_pipe(program: bytes) -> None:
    for request in (0x5401, 0x5413, 0x541B, 0x5421, 0x5451):
        assert interpret(program, IOCTL, arguments=(1, request)) == ALLOW
    for request in (0x5412, 0x40086602, 0xC028AA03, 0x40049409):
        assert interpret(program, IOCTL, arguments=(1, request)) == 0x00050000 | errno.ENOTTY


def test_futexes_have_no_priority_inheritance(program: bytes) -> None:
    private, real_time = 128, 256
    for flags in (0, private, real_time, private | real_time):
        for command in (0, 1, 3, 4, 5, 9, 10):
            assert interpret(program, FUTEX, arguments=(0, command | flags)) == ALLOW
        for command in (2, 6, 7, 8, 11, 12, 13):
            assert interpret(program, FUTEX, arguments=(0, command | flags)) == ABSENT


@pytest.mark.parametrize(("number", "position"), [(44, 3), (45, 3), (47, 2)])
def test_nothing_is_sent_out_of_band(program: bytes, number: int, position: int) -> None:
    out_of_band, errors, no_signal, wait_for_all = 1, 0x2000, 0x4000, 0x100
    for flags, is_allowed in ((0, True), (no_signal | wait_for_all, True), (out_of_band, False), (errors, False)):
        action = interpret(program, number, arguments=(*[0] * position, flags))
        assert (action == ALLOW) == is_allowed, flags


def test_only_a_controller_sends_descriptors(program: bytes, cell: bytes, controller: bytes) -> None:
    assert interpret(program, SENDMSG) == interpret(cell, SENDMSG) == DENY
    assert interpret(controller, SENDMSG, arguments=(0, 0, 0x4000)) == ALLOW
    assert is_refused(interpret(controller, SENDMSG, arguments=(0, 0, 1)))


@pytest.mark.parametrize("number", [228, 229, 230, 222, 283])
def test_clocks_of_other_processes_cannot_be_read(program: bytes, number: int) -> None:
    for clock in (0, 1, 2, 3, 7, 11, 0xFFFFFFFA, 0xFFFFFFFE):
        assert interpret(program, number, arguments=(clock,)) == ALLOW
    for pid in (1, 2, 500):
        for kind in range(8):
            assert is_refused(interpret(program, number, arguments=(((~pid << 3) | kind) & 0xFFFFFFFF,)))


def test_files_without_a_name_are_not_made(program: bytes) -> None:
    open_number, openat, unnamed, usual = 2, 257, 0o20200002, 0o2000102
    assert is_refused(interpret(program, open_number, arguments=(0, unnamed)))
    assert is_refused(interpret(program, openat, arguments=(0, 0, unnamed)))
    assert interpret(program, open_number, arguments=(0, usual)) == ALLOW
    assert interpret(program, openat, arguments=(0, 0, usual)) == ALLOW


def test_a_program_does_not_raise_its_priority_again(program: bytes, distinct_uid: bool) -> None:
    """With a uid of its own, the kernel refuses it."""
    if not distinct_uid:
        for nice in (0, 18, 0xFFFFFFFF):
            assert interpret(program, SETPRIORITY, arguments=(0, 2, nice)) == DENY


KILLS = {"kill": (62, 1), "tkill": (200, 1), "rt_sigqueueinfo": (129, 1), "pidfd_send_signal": (424, 1),
         "tgkill": (234, 2)}  # fmt: skip


@pytest.mark.parametrize("name", KILLS)
def test_a_cell_wakes_no_other_state(program: bytes, cell: bytes, name: str) -> None:
    (number, position), child_ended, go_on = KILLS[name], 17, 18
    for sent in (child_ended, go_on):
        assert interpret(cell, number, arguments=(*[2] * position, sent)) == DENY
        assert interpret(program, number, arguments=(*[2] * position, sent)) == ALLOW
    for sent in (0, 2, 9, 10, 15, 19, 34):
        assert interpret(cell, number, arguments=(*[2] * position, sent)) == ALLOW


def test_no_end_of_a_child_wakes_a_state(cell: bytes) -> None:
    fork, thread, vfork, new_users = 0x01200011, 0x003D0F00, 0x4111, 0x10000000
    for flags in (fork, thread, vfork):
        assert interpret(cell, CLONE, arguments=(flags,)) == ALLOW
        assert interpret(cell, CLONE, arguments=(flags | new_users,)) == DENY
    for signal_at_end in (9, 10, 18, 34):
        assert interpret(cell, CLONE, arguments=(0x01200000 | signal_at_end,)) == DENY


def test_no_timer_and_no_process_group_wakes_a_state(cell: bytes) -> None:
    timer_create = 222
    assert interpret(cell, timer_create, arguments=(1,)) == interpret(cell, SETPGID) == DENY


def test_a_cell_reads_and_sets_nothing_of_other_states(cell: bytes, distinct_uid: bool) -> None:
    for number in (GETPGID, GETSID):
        assert interpret(cell, number, arguments=(0,)) == ALLOW
        assert interpret(cell, number, arguments=(5,)) == DENY
    for number, own in ((GETPRIORITY, ALLOW), (SETPRIORITY, ALLOW if distinct_uid else DENY)):
        assert interpret(cell, number, arguments=(0, 0, 19)) == own
        for kind, who in ((0, 5), (1, 0), (1, 5), (2, 0), (2, 1000)):
            assert interpret(cell, number, arguments=(kind, who, 19)) == DENY


def test_a_cell_writes_nothing_on_the_inode_of_a_pipe(cell: bytes) -> None:
    fchmod, fchmodat2, futimesat, utimensat, empty_path, path = 91, 452, 261, 280, 0x1000, 1 << 32
    assert interpret(cell, fchmod) == DENY
    for number in (fchmodat2, utimensat):
        assert interpret(cell, number, arguments=(3, path, 0, 0)) == ALLOW
        assert interpret(cell, number, arguments=(3, path, 0, empty_path)) == DENY
    for number in (futimesat, utimensat):
        assert interpret(cell, number, arguments=(3, path, 0, 0)) == ALLOW
        assert interpret(cell, number, arguments=(3, 0, 0, 0)) == DENY
