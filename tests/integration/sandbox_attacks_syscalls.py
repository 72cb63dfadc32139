"""Attacks on the kernel: calls that no program needs, other ABIs, and every kind of network."""

from sandbox_attacks import CALL, Attack, Duet, S, ended, limits, prints

_REFUSED = {
    "userfaultfd and memory of others": {"userfaultfd": 323, "process_madvise": 440, "move_pages": 279,
        "migrate_pages": 256, "mbind": 237, "remap_file_pages": 216, "mlockall": 151, "pkey_alloc": 330},
    "io_uring and asynchronous I/O": {"io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427,
        "io_setup": 206, "io_submit": 209},
    "bpf, perf, seccomp, landlock": {"bpf": 321, "perf_event_open": 298, "seccomp": 317, "landlock": 444},
    "keyrings": {"add_key": 248, "request_key": 249, "keyctl": 250},
    "memory files": {"memfd_create": 319, "memfd_secret": 447},
    "SysV and POSIX IPC": {"shmget": 29, "shmat": 30, "shmctl": 31, "semget": 64, "semop": 65, "msgget": 68,
        "msgsnd": 69, "mq_open": 240, "mq_timedsend": 242},
    "modules, kexec, reboot, swap": {"init_module": 175, "finit_module": 313, "delete_module": 176, "kexec_load": 246,
        "kexec_file_load": 320, "reboot": 169, "swapon": 167, "swapoff": 168, "acct": 163, "syslog": 103},
    "clocks and names of the machine": {"settimeofday": 164, "clock_settime": 227, "adjtimex": 159,
        "clock_adjtime": 305, "sethostname": 170, "setdomainname": 171},
    "ports, segments, personality": {"iopl": 172, "ioperm": 173, "modify_ldt": 154, "personality": 135,
        "vhangup": 153, "quotactl": 179, "uselib": 134, "ustat": 136},
    "watching files": {"fanotify_init": 300, "inotify_init": 253, "inotify_init1": 294, "name_to_handle_at": 303,
        "open_by_handle_at": 304},
    "splicing": {"splice": 275, "tee": 276, "vmsplice": 278},
    "other processes": {"ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312,
        "pidfd_getfd": 438, "process_mrelease": 448, "setns": 308, "unshare": 272},
    "making and joining sockets": {"socket": 41, "connect": 42, "accept": 43, "accept4": 288, "bind": 49, "listen": 50,
        "sendmmsg": 307, "recvmmsg": 299},
}  # fmt: skip

REFUSED = """
answers = {name: call(number, 0, 0, 0, 0, 0, 0) for name, number in %r.items()}
print({name: answer for name, answer in answers.items() if answer not in ("EPERM", "ENOSYS")})
"""

X32 = """
print({call(0x40000000 | number, 0, 0, 0, 0, 0) for number in (0, 1, 9, 39, 41, 59, 101, 165, 272, 520, 545)})
print({call(number, 0, 0, 0) for number in (500, 999, 1 << 20, 0x3FFFFFFF)} <= {"EPERM", "ENOSYS"})
"""
INT_80 = """
import ctypes, mmap
def through_gate(number):
    page = mmap.mmap(-1, 4096, prot=7)
    page.write(b"\\xb8" + number.to_bytes(4, "little") + b"\\xcd\\x80\\x48\\x98\\xc3")
    return ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
answers = {through_gate(number) for number in (20, 5, 26, 102, 21, 120, 310)}
if answers != {-38}:
    print(answers)
"""
SOCKETS = """
import socket
made = []
for family in range(0, 48):
    for kind in (1, 2, 3, 5):
        try:
            made.append((family, kind, socket.socket(family, kind).fileno()))
        except OSError:
            pass
print(made)
"""
PAIRS = (
    CALL
    + """
ends = (ctypes.c_int * 2)()
others = {call(53, family, kind, 0, ends) for family in range(48) if family != 1 for kind in (1, 2, 3, 5)}
print(others, call(53, 1, 1, 0, ends), call(53, 1, 1 | 0o2000000 | 0o4000, 0, ends))
"""
)
NETWORK = """
import socket, urllib.request
reached = []
def tried(what, function, *arguments):
    try:
        function(*arguments)
    except OSError:
        return
    reached.append(what)
for address in (("127.0.0.1", 22), ("127.0.0.1", 80), ("169.254.169.254", 80), ("8.8.8.8", 53), ("10.0.0.1", 443)):
    tried(address, socket.create_connection, address, 0.2)
for host in ("localhost", "example.com", "metadata.google.internal"):
    tried(host, socket.getaddrinfo, host, 80)
tried("http", urllib.request.urlopen, "http://169.254.169.254/latest/meta-data/", None, 0.2)
for path in ("/run/docker.sock", "/var/run/docker.sock", "\\0anything"):
    tried(path, lambda: socket.socket(socket.AF_UNIX).connect(path))
tried("interfaces", socket.if_nameindex)
print(reached)
"""
MAILBOX = """
import errno, socket
try:
    box, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    box.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    other.close()
    try:
        box.send(b"x")  # nobody is there: the socket is free again, and the kernel gave it a name
    except ConnectionRefusedError:
        pass
    box.settimeout(2)
    print(box.recv(64))
except TimeoutError:
    print("nothing came")
except OSError as error:
    print(errno.errorcode[error.errno])
"""
POSTMAN = """
import errno, socket
try:
    box, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    for number in range(1 << 20):
        try:
            box.sendto(b"over the wall", b"\\0%05x" % number)
            print("sent")
        except ConnectionRefusedError:
            pass
except OSError as error:
    print(errno.errorcode[error.errno])
"""
FILTERS = (
    CALL
    + """
import socket
left, right = socket.socketpair()
program = (ctypes.c_char * 16)(*b"\\x06\\0\\0\\0\\xff\\xff\\0\\0")
option = ctypes.create_string_buffer(16)
option.raw = (1).to_bytes(8, "little") + ctypes.addressof(program).to_bytes(8, "little")
print(call(54, left.fileno(), 1, 26, option, 16), call(54, left.fileno(), 1, 50, option, 4))
"""
)
INHERITED = """
import os, stat
def kind(fd):
    try:
        return stat.S_IFMT(os.fstat(fd).st_mode) == stat.S_IFIFO
    except OSError:
        return None
print({fd: kind(fd) for fd in range(1024) if kind(fd) is not None})
"""

SYSCALLS: tuple[Attack | Duet, ...] = (
    *(Attack(f"refused calls: {theme}", CALL + REFUSED % calls, prints("{}\n")) for theme, calls in _REFUSED.items()),
    Attack("x32 calls and numbers beyond all", CALL + X32, prints("{'ENOSYS'}\nTrue\n")),
    Attack("32-bit calls", INT_80, ended(S.OK, S.SIGNAL, stdout="")),
    Attack("sockets of every family", SOCKETS, prints("[]\n")),
    Attack("socket pairs of other families", PAIRS, prints("{'EPERM'} 0 0\n")),
    Attack("services, metadata, DNS, docker", NETWORK, prints("[]\n")),
    Attack("packet filters on a socket pair", FILTERS, prints("EPERM EPERM\n")),
    Attack("inherited descriptors", INHERITED, prints("{0: True, 1: True, 2: True, 3: True}\n")),
    Duet(
        "a mailbox for another slot",
        MAILBOX,
        POSTMAN,
        ended(S.OK, S.ERROR, stdout="EPERM\n"),
        ended(S.OK, S.ERROR, S.TIMEOUT, stdout="EPERM\n"),
        limits=limits(wall_s=4),
    ),
)
