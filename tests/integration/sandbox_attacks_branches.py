"""Attacks by which one branch of a notebook, or a cell that was rolled back or crashed, would reach another.

The cell before both of them conspires: it leaves hooks, handlers and descriptors in the state that they start from.
"""

from sandbox_attacks import CALL, Cell, Expected, S, SessionAttack, prints

ON_FORK = """
import os, sys
def on_fork(look):
    os.register_at_fork(before=look, after_in_parent=look)
    frame = sys._getframe()
    while "_fork_sibling" not in frame.f_globals:
        frame = frame.f_back
    plain = frame.f_globals["_fork_sibling"]
    def fork(*arguments):
        look()
        pid = plain(*arguments)
        if pid != 0:
            look()
        return pid
    if plain is not None:
        frame.f_globals["_fork_sibling"] = fork
"""
KEEP_SOURCES = (
    ON_FORK
    + """
seen = []
def look_up():
    frame = sys._getframe()
    while frame is not None:
        seen.extend(value for value in frame.f_locals.values() if isinstance(value, bytes))
        frame = frame.f_back
on_fork(look_up)
"""
)
SOURCE = "answer = 'LETTER-7'"
LOOK_AT_SOURCES = "print([text for text in seen if b'LETTER' + b'-7' in text])"
HANDLERS = """
import os, signal, time
seen, base = [], os.getpid()
for number in (10, 12, 34, 35):
    signal.signal(number, lambda kind, frame: seen.append(kind))
"""
SEND = "os.kill(base, 34)\nos.kill(base, 10)"
LOOK_AT_SIGNALS = "time.sleep(0.01)\nprint(seen)"
BLOCKED = (
    ON_FORK
    + """
import signal
base = os.getpid()
signal.pthread_sigmask(signal.SIG_BLOCK, {10, 12})
waiting = set()
on_fork(lambda: waiting.update(signal.sigpending()))
"""
)
HIDDEN_PIPE = """
import os, sys
frame = sys._getframe()
while "_dup2" not in frame.f_globals:
    frame = frame.f_back
plain = frame.f_globals["_dup2"]
def keep(fd, target, inheritable=True):
    if target in (0, 2):
        os.dup2(target, 100 + target)
    plain(fd, target, inheritable=inheritable)
frame.f_globals["_dup2"] = keep
reader, writer = os.pipe()
os.dup2(reader, 0)
os.dup2(writer, 2)
os.close(reader)
os.close(writer)
"""
READ_HIDDEN_PIPE = """
try:
    os.set_blocking(100, False)
    print(os.read(100, 10))
except OSError:
    print("empty")
"""
FLAGS = """
import fcntl, os, sys
frame = sys._getframe()
while "_dup2" not in frame.f_globals:
    frame = frame.f_back
plain = frame.f_globals["_dup2"]
def keep(fd, target, inheritable=True):
    if target == 1:
        os.dup2(1, 100)
    plain(fd, target, inheritable=inheritable)
frame.f_globals["_dup2"] = keep
"""
SET_FLAG = "fcntl.fcntl(100, fcntl.F_SETFL, os.O_NONBLOCK)"
LOOK_AT_FLAG = "print(bool(fcntl.fcntl(100, fcntl.F_GETFL) & os.O_NONBLOCK))"
KEEP_INPUT = "import os, select\nselect.select([0], [], [])\nspare = os.dup(0)"
READ_INPUT = "print(os.read(spare, 10))"
MAKE_AND_REMOVE = "for _ in range(37):\n    open('x', 'w').close()\n    os.unlink('x')"
LOOK_AT_INODE = "open('y', 'w').close()\nprint(os.stat('y').st_ino < 10)"
FREE = "import os\nopen('x', 'w').close()\nfree = os.statvfs('.').f_bfree"
HOLD_BLOCKS = "file = open('y', 'wb')\nos.unlink('y')\nfile.write(bytes(4096 * 37))\nfile.flush()"
LOOK_AT_BLOCKS = "print(os.statvfs('.').f_bfree - free)"
PRIORITY = "import os\nbase, first = os.getpid(), os.getpriority(os.PRIO_PROCESS, 0)"
LOWER = "try:\n    os.setpriority(os.PRIO_PROCESS, base, 19)\nexcept OSError:\n    pass"
LOOK_AT_PRIORITY = "print(os.getpriority(os.PRIO_PROCESS, 0) == first)"
TELL_WHEN_WOKEN = """
import os, signal, time
def tell(kind, frame):
    with open("letter", "w") as file:
        file.write(secret)
signal.signal(10, tell)
secret, base = "known", os.getpid()
"""
WAKE = """
for send in (os.kill, lambda pid, kind: signal.pidfd_send_signal(os.pidfd_open(pid), kind)):
    for kind in (10, 18):
        try:
            send(base, kind)
        except OSError:
            pass
time.sleep(0.2)
print(os.listdir("."))
"""
WAYS_TO_WAKE = (
    CALL
    + """
event, timer = (ctypes.c_int * 16)(0, 0, 18, 0), ctypes.c_int()
print(call(56, 18, 0, 0, 0, 0), call(222, 1, event, ctypes.byref(timer)), call(109, 0, 0))
"""
)
READ_OTHERS = (
    CALL
    + """
head, length = ctypes.c_uint64(), ctypes.c_uint64()
print(call(274, 1, ctypes.byref(head), ctypes.byref(length)), call(140, 0, 1), call(121, 1), call(124, 1))
"""
)


def _apart(name: str, make: str, change: str, look: str, expected: str, stdin: str = "") -> tuple[SessionAttack, ...]:
    """What one branch, one forgotten cell or one crashed cell does to what an earlier cell made, no other sees."""
    seen, made = prints(f"{expected}\n"), Cell(make, stdin=stdin)
    crashed = Cell(f"{change}\nimport os\nos._exit(3)", Expected((S.ERROR,), exit_code=3))
    return (
        SessionAttack(f"{name}, between branches", (made, Cell(change, in_fork=True), Cell(look, seen))),
        SessionAttack(f"{name}, across a rollback", (made, Cell(change), Cell(look, seen, rollback=1))),
        SessionAttack(f"{name}, after a crash", (made, crashed, Cell(look, seen))),
    )


BRANCHES = (
    *_apart("the code of other cells, kept by a hook", KEEP_SOURCES, SOURCE, LOOK_AT_SOURCES, "[]"),
    *_apart("signals with a handler", HANDLERS, SEND, LOOK_AT_SIGNALS, "[]"),
    *_apart("signals that wait", BLOCKED, "os.kill(base, 10)", "print(waiting)", "set()"),
    *_apart("a pipe in place of a stream", HIDDEN_PIPE, "os.write(102, b'left')", READ_HIDDEN_PIPE, "empty"),
    *_apart("flags of an open stream", FLAGS, SET_FLAG, LOOK_AT_FLAG, "False"),
    *_apart("what is left of stdin", KEEP_INPUT, "os.read(spare, 3)", READ_INPUT, "b''", stdin="abcdefgh"),
    *_apart("numbers of removed files", "import os", MAKE_AND_REMOVE, LOOK_AT_INODE, "True"),
    *_apart("blocks of a removed file", FREE, HOLD_BLOCKS, LOOK_AT_BLOCKS, "0"),
    *_apart("priorities", PRIORITY, LOWER, LOOK_AT_PRIORITY, "True"),
    SessionAttack("a parked state that is woken to tell", (Cell(TELL_WHEN_WOKEN), Cell(WAKE, prints("[]\n")))),
    SessionAttack("other ways to wake a parked state", (Cell(WAYS_TO_WAKE, prints("EPERM EPERM EPERM\n")),)),
    SessionAttack("what other states set of their own", (Cell(READ_OTHERS, prints("EPERM EPERM EPERM EPERM\n")),)),
)
