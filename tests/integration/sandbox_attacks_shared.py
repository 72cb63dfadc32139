"""Attacks through what executions share: inodes of the host, counters and clocks of the kernel, the user, packages."""

from sandbox_attacks import CALL, Attack, Cell, Expected, S, SessionAttack, limits, prints

FAILED = (S.OK, S.ERROR, S.SIGNAL, S.TIMEOUT, S.MEMORY)
"""Whatever a cell did to itself is its own doing: anything but a fault of ours."""

INODES = (
    CALL
    + """
import fcntl, os, struct
done = []
def try_it(name, function, *arguments):
    try:
        function(*arguments)
        done.append(name)
    except OSError:
        pass
file = open(os.__file__, "rb")
folder = os.open(os.path.dirname(os.__file__), os.O_RDONLY)
mine = open("mine", "w+b")
for target in (file, mine):
    try_it("shared lock", fcntl.lockf, target, fcntl.LOCK_SH | fcntl.LOCK_NB)
    try_it("flock", fcntl.flock, target, fcntl.LOCK_EX | fcntl.LOCK_NB)
    try_it("lease", fcntl.fcntl, target, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    for number in (37, 38):
        try_it("lock of an open file", fcntl.fcntl, target, number, struct.pack("hhqqi", 0, 0, 0, 1, 0))
    try_it("owner", fcntl.fcntl, target, fcntl.F_SETOWN, os.getpid())
    try_it("hint", fcntl.fcntl, target, 1036, struct.pack("Q", 1))
    for request in (0x80086601, 0x40086602, 0x6611, 0xC0C0583B, 0xC0185879, 0x40049409):
        try_it(f"ioctl {request:#x}", fcntl.ioctl, target, request, bytes(256))
try_it("notification", fcntl.fcntl, folder, fcntl.F_NOTIFY, fcntl.DN_ACCESS)
print(done)
"""
)
LOCKS = """
import fcntl
file = open("mine", "w+b")
count = 0
try:
    for start in range(0, 20_000, 2):
        fcntl.lockf(file, fcntl.LOCK_EX, 1, start)
        count += 1
except OSError:
    pass
print(count)
"""
PAGE_CACHE = (
    CALL
    + """
import mmap
file = open(os.__file__, "rb")
view = mmap.mmap(file.fileno(), 4096, prot=mmap.PROT_READ)
address = ctypes.addressof(ctypes.c_char.from_buffer(mmap.mmap(-1, 4096)))
seen = ctypes.create_string_buffer(1)
part = (ctypes.c_uint64 * 2)(address, 16)
print(call(27, address, 4096, seen), call(327, file.fileno(), part, 1, 0, 0, 8))
for advice in (20, 21, 12, 25):
    try:
        view.madvise(advice)
        print("took", advice)
    except OSError:
        pass
"""
)
CLOCKS = (
    CALL
    + """
import time
now = (ctypes.c_int64 * 2)()
for kind in (0, 1, 2, 4, 5, 6):
    for pid in (1, 2):
        clock = (~pid << 3) | kind
        assert pid == os.getpid() or call(228, clock, now) == "EINVAL", (pid, kind)
        assert call(222, clock, 0, now) == "EINVAL"
time.process_time(), time.thread_time(), time.monotonic(), time.time()
print("done")
"""
)
FUTEXES = (
    CALL
    + """
word = ctypes.c_int(0)
print({call(202, word_at, op | flag, 0, 0, 0, 0)
    for word_at in [ctypes.byref(word)] for op in (6, 7, 8, 11, 12, 13) for flag in (0, 128)}, call(449, 0, 0, 0, 0, 0))
"""
)
MESSAGES = """
import array, os, socket
left, right = socket.socketpair()
done = []
for name, send in (
    ("out of band", lambda: left.send(b"x", socket.MSG_OOB)),
    ("out of band read", lambda: right.recv(1, socket.MSG_OOB | socket.MSG_DONTWAIT)),
    ("descriptors", lambda: socket.send_fds(left, [b"x"], [0])),
):
    try:
        send()
        done.append(name)
    except OSError:
        pass
left.send(b"plain", socket.MSG_NOSIGNAL)
print(done, right.recv(5))
"""
UNNAMED_FILES = """
import os, tempfile
try:
    os.close(os.open(".", os.O_TMPFILE | os.O_RDWR))
    print("made")
except OSError:
    pass
with tempfile.TemporaryFile() as file:
    file.write(b"x")
print("done")
"""
PACKAGES = """
import os, pkgutil, sys
promised = {
    "antlr4", "dateutil", "isympy", "latex2sympy2_extended", "math_verify", "mpmath", "networkx", "numpy", "pandas",
    "pytz", "scipy", "six", "sympy", "tzdata",
    "PIL", "contourpy", "cycler", "fontTools", "kiwisolver", "matplotlib", "packaging", "pylab", "pyparsing",
}
installed = [module for module in pkgutil.iter_modules() if module.module_finder.path.endswith("-packages")]
print(sorted({module.name for module in installed} - promised))
for name in ("reasoning_gym", "rstar2", "aiohttp", "pytest", "pip", "torch"):
    try:
        __import__(name)
        print(name)
    except ImportError:
        pass
for folder, folders, files in os.walk("/"):
    if "reasoning_gym" in folders or any("reasoning_gym" in part for part in folders):
        print(folder)
import numpy, scipy.optimize, sympy, pandas, networkx, mpmath, math_verify
"""
BOX = "import mmap\nbox = mmap.mmap(-1, 4096)"
FILL_BOX = "box[0:4] = b'left'"
LOOK_INTO_BOX = "print(bytes(box[0:4]))"
EMPTY_BOX = prints("b'\\x00\\x00\\x00\\x00'\n")
FILE_BOX = """
import mmap
with open("box", "w+b") as file:
    file.write(bytes(4096))
    file.flush()
    box = mmap.mmap(file.fileno(), 4096)
import os
os.unlink("box")
"""
PIPE = "import os\nreader, writer = os.pipe()\nos.set_blocking(reader, False)"
READ_PIPE = """
try:
    print(os.read(reader, 10))
except BlockingIOError:
    print("empty")
"""
OFFSET = "file = open('numbers', 'w+b', 0)\nfile.write(bytes(100))\nfile.seek(0)"
DEEP = """
import os
def down():
    os.chdir(os.environ["HOME"])
    for _ in range(700):
        os.makedirs("dddddddd", exist_ok=True)
        os.chdir("dddddddd")
def up():
    os.chdir(os.environ["HOME"])
down()
up()
"""
CLOSED = "import os\nos.mkdir('closed', 0o700)\nwith open('closed/box', 'w') as file:\n    file.write('none')\ndel file"
THREAD = """
import mmap, os, threading, time
box = None
def wait_for_the_next_cell():
    global box
    last = time.monotonic()
    while True:
        time.sleep(0.0002)
        if time.monotonic() - last > 0.05 and box is None:
            box = mmap.mmap(-1, 4096)
        last = time.monotonic()
threading.Thread(target=wait_for_the_next_cell, daemon=True).start()
"""
BREAK_RUNNER = """
import gc, os, sys, types
frame = sys._getframe()
while frame is not None:
    for name in list(frame.f_globals):
        if not name.startswith("__") and frame.f_globals is not globals():
            frame.f_globals[name] = None
    frame = frame.f_back
for thing in gc.get_objects():
    if isinstance(thing, types.ModuleType) and thing.__name__.startswith("rstar2"):
        thing.__dict__.clear()
"""
SPEND_IDS = """
import os
for _ in range(34_000):
    try:
        os.posix_spawn("/none", ["none"], {})
    except OSError:
        pass
"""
LIFT_CPU = """
import resource
try:
    resource.setrlimit(resource.RLIMIT_CPU, (resource.RLIM_INFINITY,) * 2)
except (OSError, ValueError):
    pass
while True:
    pass
"""


def _apart(name: str, make: str, change: str, look: str, expected: Expected) -> tuple[SessionAttack, ...]:
    """What one branch, one forgotten cell or one crashed cell does to what an earlier cell made, no other sees."""
    crash = f"{change}\nimport os\nos._exit(3)"
    return (
        SessionAttack(f"{name} between branches", (Cell(make), Cell(change, in_fork=True), Cell(look, expected))),
        SessionAttack(f"{name} across a rollback", (Cell(make), Cell(change), Cell(look, expected, rollback=1))),
        SessionAttack(
            f"{name} after a crash", (Cell(make), Cell(crash, Expected((S.ERROR,), exit_code=3)), Cell(look, expected))
        ),
    )


NOTEBOOKS = (
    *_apart("shared memory", BOX, FILL_BOX, LOOK_INTO_BOX, EMPTY_BOX),
    *_apart("shared memory of a removed file", FILE_BOX, FILL_BOX, LOOK_INTO_BOX, EMPTY_BOX),
    *_apart("a pipe", PIPE, "os.write(writer, b'left')", READ_PIPE, prints("empty\n")),
    *_apart("the position in a file", OFFSET, "file.read(10)", "print(file.tell())", prints("0\n")),
    *_apart(
        "files in a closed folder",
        CLOSED,
        "with open('closed/box', 'r+') as file:\n    file.write('left')\ndel file",
        "print(open('closed/box').read())",
        prints("none\n"),
    ),
    *_apart(
        "files below the longest path",
        DEEP,
        "down()\nopen('left', 'w').close()\nup()",
        "down()\nprint(os.listdir())\nup()",
        prints("[]\n"),
    ),
    SessionAttack(
        "memory that a thread shares later",
        (
            Cell(THREAD),
            Cell("time.sleep(0.3)\nif box is not None:\n    box[0:4] = b'left'", in_fork=True),
            Cell("time.sleep(0.3)\nprint(box is None or bytes(box[0:4]) != b'left')", prints("True\n")),
        ),
    ),
    SessionAttack(
        "a cell that breaks what runs it",
        (Cell("x = 1"), Cell(BREAK_RUNNER, Expected(FAILED)), *[Cell("print(1)", Expected(FAILED))] * 2),
    ),
    SessionAttack(
        "a cell that breaks what runs it, and exits",
        (Cell("x = 1"), Cell(f"{BREAK_RUNNER}\nos._exit(0)", Expected(FAILED)), Cell("print(x)", prints("1\n"))),
    ),
    SessionAttack(
        "all process ids spent", (Cell("x = 1"), Cell(SPEND_IDS, Expected(FAILED), limits(wall_s=30, cpu_s=30)))
    ),
    SessionAttack(
        "the CPU limit of a cell, lifted", (Cell(LIFT_CPU, Expected((S.TIMEOUT,)), limits(wall_s=60, cpu_s=1)),)
    ),
)
FULL_SHARE = """
import os, time
if os.fork() == 0:
    os.setsid()
    until = time.monotonic() + 1.0
    while time.monotonic() < until:
        pass
    os._exit(os.getpriority(os.PRIO_PROCESS, 0))
print(os.wait()[1] >> 8)
"""
COUNTS = (
    CALL
    + """
import socket
left, right = socket.socketpair()
facts = ctypes.create_string_buffer(256)
for option in (57, 71, 77):
    try:
        print(left.getsockopt(socket.SOL_SOCKET, option, 8))
    except OSError:
        pass
try:
    socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    print("made")
except OSError:
    pass
print(call(332, -100, b".", 0, 0x4000, facts), call(332, -100, b".", 0, 0x1000, facts))
"""
)
LISTED = "import os\nos.listdir('.')"
TIME_OF_LISTING = "import os\nfacts = os.stat('.')\nprint(facts.st_atime_ns <= facts.st_mtime_ns)"
SHARED = (
    *NOTEBOOKS,
    Attack("counts of sockets and mounts", COUNTS, prints("ENOSYS ENOSYS\n")),
    Attack("when the last program looked", TIME_OF_LISTING, prints("True\n"), before=((LISTED, ""),)),
    Attack("a session of its own, to keep the full share", FULL_SHARE, prints("19\n")),
    Attack("packages that nobody promised, with the answers in them", PACKAGES, prints("[]\n")),
    Attack("locks, leases and notifications on inodes of the host", INODES, prints("[]\n")),
    Attack("kernel memory in thousands of locks", LOCKS, prints("0\n")),
    Attack("the host's page cache", PAGE_CACHE, prints("EPERM ENOTSUP\n")),
    Attack("clocks of other processes", CLOCKS, prints("done\n")),
    Attack("futexes with priority inheritance", FUTEXES, prints("{'ENOSYS'} ENOSYS\n")),
    Attack("messages out of band, and descriptors in flight", MESSAGES, prints("[] b'plain'\n")),
    Attack("files without a name, which only the inode counter remembers", UNNAMED_FILES, prints("done\n")),
    SessionAttack("descriptors in flight from a cell", (Cell(MESSAGES, prints("[] b'plain'\n")),)),
)
