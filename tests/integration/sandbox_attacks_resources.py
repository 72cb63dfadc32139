"""Attacks on memory and on the streams: too much, malformed, closed, forged, and ends of every kind."""

from sandbox_attacks import CALL, MIB, Attack, S, ended, limits, prints

_SMALL = limits(memory_mib=128)

CHILDREN = """
import os, time
for _ in range(20):
    if os.fork() == 0:
        memory = bytearray(b"x") * (100 << 20)
        time.sleep(0.5)
        os._exit(0)
print(sum(os.wait()[1] == 9 for _ in range(20)) >= 15)
"""
KILLED_CHILD = """
import mmap, os
if os.fork() == 0:
    memory = mmap.mmap(-1, 2 << 30)
    for at in range(0, 2 << 30, 4096):
        memory[at] = 1
print(os.wait()[1])
"""
SHARED = """
import mmap
memory = mmap.mmap(-1, 2 << 30)
for at in range(0, 2 << 30, 4096):
    memory[at] = 1
print("all of it")
"""
SOCKETS = """
import mmap, os, socket, time
box = mmap.mmap(-1, 4096)
counts = memoryview(box).cast("Q")
children = {}
for number in range(16):
    pid = os.fork()
    if pid == 0:
        kept = []
        for _ in range(110):
            kept.append(socket.socketpair())
            for end in kept[-1]:
                end.setblocking(False)
                try:
                    while True:
                        counts[number] += end.send(bytes(1 << 16))
                except OSError:
                    pass
        time.sleep(30)
        os._exit(0)
    children[pid] = number
last = None
while last != (last := bytes(box)):  # until nothing more fits anywhere
    time.sleep(1)
total = sum(counts[number] for pid, number in children.items() if os.waitpid(pid, os.WNOHANG) == (0, 0))
assert total < 128 << 20, total
"""
SHARED_900 = SHARED.replace("2 << 30", "900 << 20")
TOGETHER = """
import os, time
for _ in range(20):
    if os.fork() == 0:
        memory = bytearray(b"x") * (50 << 20)
        time.sleep(5)
        os._exit(0)
survivors = sum(os.wait()[1] == 0 for _ in range(20))
assert survivors <= 1, survivors
"""
READERS = """
import os, time
memory = bytearray(b"x") * (100 << 20)
for _ in range(8):
    if os.fork() == 0:
        assert sum(memory[::4096]) > 0
        time.sleep(0.5)
        os._exit(0)
print(sum(os.wait()[1] == 0 for _ in range(8)))
"""
PIPES = """
import errno, fcntl, os
total = 0
kept = []
try:
    while total < 2 << 30:
        read_end, write_end = os.pipe()
        kept.append((read_end, write_end))
        try:
            fcntl.fcntl(write_end, 1031, 1 << 20)  # F_SETPIPE_SZ
        except OSError:
            pass
        os.set_blocking(write_end, False)
        try:
            while True:
                total += os.write(write_end, bytes(1 << 16))
        except BlockingIOError:
            pass
except OSError as error:
    print(errno.errorcode[error.errno])
assert total <= 128 << 20, total
"""
SOCKET_BUFFERS = """
import errno, socket
kept, total = [], 0
try:
    while total < 2 << 30:
        left, right = socket.socketpair()
        kept.append((left, right))
        left.setblocking(False)
        try:
            left.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 30)
        except PermissionError:
            pass
        try:
            while True:
                total += left.send(bytes(1 << 16))
        except BlockingIOError:
            pass
except OSError as error:
    print(errno.errorcode[error.errno])
assert total <= 256 << 20, total
"""
TMPFS_AND_HEAP = """
for number in range(60):
    with open(str(number), "wb") as file:
        file.write(bytes(1 << 20))
kept = []
while True:
    kept.append(bytearray(b"x") * (1 << 20))
"""
GROW_AND_CATCH = """
kept = []
for _ in range(3):
    try:
        while True:
            kept.append(bytearray(b"x") * (4 << 20))
    except MemoryError:
        pass
print(len(kept) * 4 <= 160)
"""

MEMORY = (
    Attack("2 GB in one piece", "x = bytearray(2 << 30)", ended(S.MEMORY, stderr_has="MemoryError"), limits=_SMALL),
    Attack(
        "2 GB in small pieces",
        "kept = []\nwhile True: kept.append(bytearray(b'x') * 10_000)",
        ended(S.MEMORY),
        limits=_SMALL,
    ),
    Attack("2 GB of objects", "kept = []\nwhile True: kept.append([kept] * 100)", ended(S.MEMORY), limits=_SMALL),
    Attack(
        "2 GB in 20 children",
        CHILDREN,
        ended(S.OK, S.MEMORY, S.ERROR),
        limits=limits(memory_mib=200, wall_s=10),
    ),
    Attack(
        "children that each keep their own limit",
        TOGETHER,
        ended(S.OK, S.MEMORY),
        limits=limits(memory_mib=64, wall_s=10),
    ),
    Attack("shared memory in a small address space", SHARED_900, ended(S.MEMORY, S.SIGNAL), limits=_SMALL),
    Attack(
        "forks that share what their parent made are within its limit",
        READERS,
        prints("8\n"),
        limits=limits(memory_mib=220, wall_s=10),
    ),
    Attack(
        "2 GB of shared memory, limited by address space", SHARED, ended(S.MEMORY, S.SIGNAL, S.ERROR), limits=_SMALL
    ),
    Attack("scratch files and heap together", TMPFS_AND_HEAP, ended(S.MEMORY), limits=_SMALL),
    Attack("memory in socket pairs", SOCKETS, ended(S.OK, S.MEMORY), limits=limits(memory_mib=64, wall_s=8)),
    Attack("memory in pipes", PIPES, ended(S.OK, S.MEMORY), limits=limits(memory_mib=512, wall_s=8)),
    Attack("memory in socket buffers", SOCKET_BUFFERS, ended(S.OK, S.MEMORY), limits=limits(memory_mib=512, wall_s=8)),
    Attack("caught MemoryErrors", GROW_AND_CATCH, ended(S.OK, S.MEMORY), limits=_SMALL),
    Attack(
        "a kill for memory is not blamed on the next caller",
        "import os\nos.kill(os.getpid(), 9)",
        ended(S.SIGNAL, signal=9),
        before=((KILLED_CHILD, ""),),
        limits=limits(memory_mib=300),
    ),
    Attack(
        "locked memory",
        CALL + "m = ctypes.create_string_buffer(1 << 20)\nprint(call(149, ctypes.addressof(m), 1 << 20))",
        prints("EPERM\n"),
    ),
)

_CUT = limits(output_bytes=100_000)
FORGED = """
import os, struct
reply = struct.pack("=iIIIIIII", 0, 0, 5, 0, 0, 1, 1, 1) + b"forged"
for fd in range(3, 256):
    try:
        os.write(fd, reply)
    except OSError:
        pass
os.kill(os.getpid(), 9)
"""
CLOSE_ALL = """
import os, sys
os.closerange(0, 256)
try:
    print("lost")
    sys.stdout.flush()
except OSError:
    os._exit(7)
"""
REOPENED = """
import os
os.closerange(0, 256)
for _ in range(200):
    os.open("/dev/null", os.O_RDWR)
"unseen"
"""
SEGFAULT = "import ctypes\nprint('before', flush=True)\nctypes.string_at(0)"
FLOOD_CHILDREN = """
import os
for _ in range(20):
    if os.fork() == 0:
        while True:
            os.write(1, b"x" * 4096)
import time
time.sleep(30)
"""
NONBLOCKING = """
import fcntl, os
for fd in (0, 1, 2, 3):
    fcntl.fcntl(fd, fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC)
    try:
        fcntl.fcntl(fd, 1031, 4096)
    except OSError:
        pass
while True:
    try:
        os.write(1, b"y" * 70_000)
    except BlockingIOError:
        pass
"""
RECURSE_NATIVE = "import sys\nsys.setrecursionlimit(10**9)\ndef f(x): return [f(x) for _ in x]\nf([1])"
BAD_REPR = "class Bad:\n    def __repr__(self): raise ValueError('no')\nBad()"
HOSTILE_HOOK = "import sys, os\nsys.excepthook = lambda *a: os.kill(1, 9)\n1 / 0"
BIG_STDIN = "s" * (20 * MIB)

STREAMS = (
    Attack("flood stdout", "while True: print('x' * 1000)", ended(S.OUTPUT_LIMIT, stdout_has="x" * 1000), limits=_CUT),
    Attack(
        "flood stderr",
        "import sys\nwhile True: print('e' * 1000, file=sys.stderr)",
        ended(S.OUTPUT_LIMIT, stderr_has="e" * 1000),
        limits=_CUT,
    ),
    Attack("flood the value", "'v' * 50_000_000", ended(S.OUTPUT_LIMIT), limits=_CUT),
    Attack(
        "100 MB on one line",
        "print('x' * 100_000_000)",
        ended(S.OUTPUT_LIMIT),
        limits=limits(memory_mib=512, output_bytes=100_000),
    ),
    Attack("flood from 20 children", FLOOD_CHILDREN, ended(S.OUTPUT_LIMIT), limits=_CUT),
    Attack("flood without blocking", NONBLOCKING, ended(S.OUTPUT_LIMIT), limits=_CUT),
    Attack(
        "NULs and control bytes",
        "import os\nos.write(1, bytes(range(32)) * 3)\nNone",
        prints(bytes(range(32)).decode() * 3),
    ),
    Attack(
        "invalid UTF-8",
        "import os\nos.write(1, b'\\xff\\xfe\\xc0\\x80\\xed\\xa0\\x80!')\nNone",
        ended(S.OK, stdout_has="!"),
    ),
    Attack("surrogates printed", "print('\\ud800')", ended(S.ERROR, stderr_has="UnicodeEncodeError")),
    Attack("surrogates as a value", "'\\ud800'", ended(S.OK, value="'\\ud800'")),
    Attack("closed descriptors", CLOSE_ALL, ended(S.ERROR, exit_code=7)),
    Attack("descriptors closed and taken again", REOPENED, ended(S.OK)),
    Attack("forged replies", FORGED, ended(S.SIGNAL, signal=9, stdout="")),
    Attack("20 MB of stdin never read", "print('not read')", prints("not read\n"), stdin=BIG_STDIN),
    Attack("20 MB of stdin, closed", "import os\nos.close(0)\nprint('closed')", prints("closed\n"), stdin=BIG_STDIN),
    Attack(
        "20 MB of stdin, held open for long",
        "import time\ntime.sleep(60)",
        ended(S.TIMEOUT),
        stdin=BIG_STDIN,
        limits=limits(wall_s=0.5),
    ),
    Attack(
        "20 MB of stdin, read",
        "import sys\nprint(len(sys.stdin.read()))",
        prints(f"{len(BIG_STDIN)}\n"),
        stdin=BIG_STDIN,
    ),
    Attack("input at the end of stdin", "input()", ended(S.ERROR, stderr_has="EOFError")),
    Attack("deep recursion", "def f(): return f()\nf()", ended(S.ERROR, stderr_has="RecursionError")),
    Attack("deep recursion without a guard", RECURSE_NATIVE, ended(S.SIGNAL, S.MEMORY, S.ERROR, S.TIMEOUT)),
    Attack("segmentation fault", SEGFAULT, ended(S.SIGNAL, signal=11, stdout="before\n")),
    Attack("abort", "import os\nos.abort()", ended(S.SIGNAL, signal=6)),
    Attack("a signal of its own", "import os\nos.kill(os.getpid(), 64)", ended(S.SIGNAL, signal=64)),
    *(
        Attack(f"exit code {code}", f"import sys\nsys.exit({code})", ended(S.ERROR if seen else S.OK, exit_code=seen))
        for code, seen in (
            (3, 3),
            (-1, 255),
            (256, 0),
            (113, 113),
            (117, 117),
            (120, 120),
            (250, 250),
            (251, 251),
            (255, 255),
        )
    ),
    Attack("exit at once with the code for memory", "import os\nos._exit(251)", ended(S.ERROR, exit_code=251)),
    Attack("exit with an object", "import sys\nsys.exit({'a': 1})", ended(S.ERROR, exit_code=1, stderr_has="{'a': 1}")),
    Attack("a repr that raises", BAD_REPR, ended(S.ERROR, stderr_has="ValueError: no")),
    Attack("a hostile exception hook", HOSTILE_HOOK, ended(S.ERROR)),
    Attack("code with NULs", "print(1)\0print(2)", ended(S.ERROR, stdout="", stderr_has="null bytes")),
    Attack("code that is not UTF-8", "print('\ud800')", ended(S.ERROR, stdout="", stderr_has="SyntaxError")),
    Attack("code of 7 MB", "x = 0\n" + "#" * (7 * MIB) + "\nprint('end')", prints("end\n")),
    Attack("code of 9 MB", "#" * (9 * MIB), ended(S.ERROR, stdout="")),
    Attack("deeply nested code", "(" * 5000 + ")" * 5000, ended(S.ERROR, S.MEMORY)),
    Attack("an expression that breaks the compiler", "-" * 200_000 + "1", ended(S.ERROR, S.MEMORY, S.SIGNAL)),
)
