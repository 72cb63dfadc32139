"""Attacks from inside a notebook: on its control channel, its parked states, its files and other sessions."""

from sandbox_attacks import CALL, SCAN, Cell, Expected, S, SessionAttack, ended, limits, prints

_FAILED = (S.OK, S.ERROR, S.SIGNAL, S.TIMEOUT, S.MEMORY)
"""Whatever a cell did to itself is its own doing: anything but a fault of ours."""

DESCRIPTORS = """
import os, stat
kinds = []
for fd in range(4, 1024):
    try:
        kinds.append(stat.S_IFMT(os.fstat(fd).st_mode) == stat.S_IFSOCK)
    except OSError:
        pass
print(kinds)
"""
FAULTS_OF_INIT = """
import ctypes, fcntl, os, struct
libc = ctypes.CDLL(None, use_errno=True)
page = ctypes.create_string_buffer(8192)
source = (ctypes.addressof(page) + 4095) & ~4095
code = ctypes.cast(libc.getpriority, ctypes.c_void_p).value & ~4095
written = 0
for fd in range(4, 256):
    for number in range(-64, 64):
        try:
            copy = struct.pack("QQQQq", code + number * 4096, source, 4096, 0, 0)
            fcntl.ioctl(fd, 0xC028AA03, bytearray(copy))  # UFFDIO_COPY
            written += 1
        except OSError:
            pass
print(written)
"""
FORGE_DONE = """
import os, struct
for fd in range(4, 256):
    try:
        os.write(fd, struct.pack("=BiQI", 1, 0, 5, 5))
    except OSError:
        pass
"""
GARBAGE = """
import os
for fd in range(3, 1024):
    for piece in (b"h", b"\\0" * 17, os.urandom(5000)):
        try:
            os.write(fd, piece)
        except OSError:
            pass
"""
PATCH = """
import array, builtins, os, random, resource, socket, sys, contextlib, ast
kept = 41
os.fork = os._exit = os.kill = os.waitpid = os.dup2 = os.close = None
random.seed = random.getstate = random.setstate = lambda *a: None
builtins.print = builtins.open = builtins.len = None
sys.stdout = sys.stderr = None
sys.modules["random"] = sys.modules["os"] = None
"""
LEFT = """
import os, signal, time
def stay():
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
    while True:
        time.sleep(0.01)
left = []
for _ in range(5):
    read_end, write_end = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(write_end, str(os.getpid()).encode())
            stay()
        os._exit(0)
    os.wait()
    left.append(int(os.read(read_end, 20)))
print(len(left))
"""
STILL_THERE = """
import os
def exists(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
print([pid for pid in left if exists(pid)])
"""
FORK_ON_RESUME = """
import os, threading, time
def wait_for_resume():
    last = time.monotonic()
    while True:
        time.sleep(0.0002)
        now = time.monotonic()
        if now - last > 0.15:  # stopped in between: this is the next cell's beginning
            if os.fork() == 0:
                while True:
                    time.sleep(0.01)
        last = now
threading.Thread(target=wait_for_resume, daemon=True).start()
states = {1, os.getpid()}
"""
OUTLIVERS = """
import os, select, time
states.add(os.getpid())
time.sleep(0.2)
others = []
for pid in range(2, os.getpid()):
    try:
        process = os.pidfd_open(pid)  # fails for the id of a thread, which kill would take
    except OSError:
        continue
    if not select.select([process], [], [], 0)[0]:  # not merely waiting to be reaped
        others.append(pid)
    os.close(process)
print(len(others))
"""
ODD_TREE = "import os\nos.mkdir('d')\nopen('d/f', 'w').close()\nos.chmod('d', 0o444)\nprint('made')"
DEEP_TREE = """
import os
for _ in range(1500):
    os.mkdir("dddddddd")
    os.chdir("dddddddd")
os.chdir("/tmp")
print("made")
"""
KILL_OTHERS = """
import os
for pid in range(2, 400):
    if pid != os.getpid():
        try:
            os.kill(pid, 9)
        except OSError:
            pass
print("killed")
"""
THREADS = """
import threading, time
def idle():
    while True:
        time.sleep(0.001)
for _ in range(5):
    threading.Thread(target=idle, daemon=True).start()
"""
FORKING_THREAD = """
import os, threading, time
def go():
    while True:
        try:
            if os.fork() == 0:
                time.sleep(30)
        except OSError:
            pass
threading.Thread(target=go, daemon=True).start()
"""
SIGNAL_INIT = (
    CALL
    + """
import time
for number in range(1, 65):
    attempt(os.kill, 1, number)
time.sleep(0.2)
print("done")
"""
)
BLOCK_SIGNALS = "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nwhile True: pass"
CONTINUE_OTHERS = KILL_OTHERS.replace(", 9", ", 18")
BOMB = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
FILL = """
try:
    for number in range(100):
        open(str(number), "wb").write(bytes(4 << 20))
except OSError as error:
    print(error.strerror)
"""
REWRITE = """
import os
facts = os.stat("f")
with open("f", "r+") as file:
    file.write("BBBB")
os.utime("f", ns=(facts.st_atime_ns, facts.st_mtime_ns))
print("rewritten")
"""
_QUICK = limits(wall_s=1)
_COUNT = Cell("kept += 1\nkept", Expected(value="42"))
_NEW_COUNT = Cell("6 * 7", Expected(value="42"))


def _attack(name: str, *cells: Cell) -> SessionAttack:
    return SessionAttack(f"session: {name}", cells)


_KEPT = Cell("kept = 41")

SESSIONS = (
    _attack("hunt descriptors", Cell(DESCRIPTORS, prints("[True]\n")), Cell(DESCRIPTORS, prints("[True]\n"))),
    _attack("write into the init's memory by its faults", Cell("1"), Cell(FAULTS_OF_INIT, prints("0\n"))),
    _attack("forge the end of a cell", _KEPT, Cell(FORGE_DONE, ended(*_FAILED)), _COUNT),
    _attack("forge the end of a cell and die", _KEPT, Cell(FORGE_DONE + "os._exit(3)", ended(*_FAILED)), _NEW_COUNT),
    _attack(
        "forge the end of a cell and run on",
        _KEPT,
        Cell(FORGE_DONE + "while True: pass", ended(*_FAILED), limits(wall_s=1, cpu_s=1)),
        _NEW_COUNT,
    ),
    _attack("garbage on every descriptor", _KEPT, Cell(GARBAGE, ended(*_FAILED)), _NEW_COUNT),
    _attack(
        "close every descriptor", _KEPT, Cell("import os\nos.closerange(0, 1024)", ended(S.ERROR, S.SIGNAL)), _COUNT
    ),
    _attack("patch what its own loop uses", Cell(PATCH, ended(*_FAILED)), _NEW_COUNT),
    _attack("processes left behind", Cell(LEFT, prints("5\n")), Cell(STILL_THERE, prints("[]\n"))),
    _attack("threads left behind", _KEPT, Cell(THREADS), _COUNT),
    _attack(
        "a thread that forks when its state resumes",
        Cell(FORK_ON_RESUME),
        Cell("import time; time.sleep(0.3)"),
        Cell(OUTLIVERS, prints("3\n")),
        Cell(OUTLIVERS, prints("4\n")),
    ),
    _attack("fork without an end", _KEPT, Cell("import os\nos.fork()\nprint('twice')", ended(*_FAILED)), _COUNT),
    _attack(
        "leave a child in its place",
        _KEPT,
        Cell(
            "import os, time\nif os.fork(): os._exit(7)\ntime.sleep(30)",
            ended(S.ERROR, exit_code=7),
            _QUICK,
        ),
        _COUNT,
    ),
    _attack("stop itself", _KEPT, Cell("import os\nos.kill(os.getpid(), 19)", ended(S.TIMEOUT), _QUICK), _COUNT),
    _attack("outlive the limit", _KEPT, Cell(BLOCK_SIGNALS, ended(S.TIMEOUT), _QUICK), _COUNT),
    _attack(
        "the processor limit",
        _KEPT,
        Cell("while True: pass", ended(S.TIMEOUT, message_has="CPU limit"), limits(wall_s=30, cpu_s=1)),
        _COUNT,
    ),
    _attack(
        "memory", _KEPT, Cell("x = []\nwhile True: x.append(bytearray(b'x') * 100_000)", ended(S.MEMORY)), _NEW_COUNT
    ),
    _attack("crash", _KEPT, Cell("import ctypes\nkept = 0\nctypes.string_at(0)", ended(S.SIGNAL, signal=11)), _COUNT),
    # Where the bomb keeps the machine from killing it in time, the whole tree is killed, and rebuilt without the cell.
    _attack("fork bomb", _KEPT, Cell(BOMB, ended(S.TIMEOUT, S.ERROR, max_attempts=2), _QUICK), _COUNT),
    _attack("a thread that forks for ever", _KEPT, Cell(FORKING_THREAD, ended(*_FAILED)), _NEW_COUNT),
    _attack(
        "kill every other state",
        _KEPT,
        Cell("1"),
        Cell(KILL_OTHERS, prints("killed\n")),
        Cell("6 * 7", Expected(value="42"), rollback=1),
    ),
    _attack("wake every other state", _KEPT, Cell("1"), Cell(CONTINUE_OTHERS, prints("killed\n")), _COUNT),
    _attack("signal the init", _KEPT, Cell(SIGNAL_INIT, prints("done\n")), _COUNT),
    _attack("a folder that cannot be entered", _KEPT, Cell(ODD_TREE, prints("made\n")), _COUNT),
    _attack("a folder too deep to walk", _KEPT, Cell(DEEP_TREE, prints("made\n")), _COUNT),
    _attack(
        "fill the scratch directory",
        _KEPT,
        Cell(FILL, prints("No space left on device\n"), limits(memory_mib=512)),
        _COUNT,
    ),
    _attack("flood", _KEPT, Cell("while True: print('x' * 1000)", ended(S.OUTPUT_LIMIT)), _COUNT),
    _attack(
        "rewrite a fork's file behind its back",
        Cell("open('f', 'w').write('AAAA')\nNone"),
        Cell(REWRITE, prints("rewritten\n"), in_fork=True),
        Cell("print(open('f').read())", prints("AAAA\n")),
    ),
    _attack(
        "hunt for other sessions in memory",
        Cell(
            SCAN + "print(hunt(), [n for n in os.listdir('.') if n != 'window'])", prints("[] []\n"), limits(wall_s=10)
        ),
    ),
    _attack("more than a hundred cells", _KEPT, *(Cell("1") for _ in range(110)), _COUNT),
)
