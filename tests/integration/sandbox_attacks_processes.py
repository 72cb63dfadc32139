"""Attacks on processes: harm the slot's init, multiply, outlive, gain rights, hold the processor."""

from sandbox_attacks import CALL, Attack, Duet, S, ended, limits, prints

SIGNAL_INIT = (
    CALL
    + """
import signal, time
for number in range(1, 65):
    for target in (1, -1):
        if number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU) or target == 1:
            attempt(os.kill, target, number)
pidfd = attempt(os.pidfd_open, 1)
if isinstance(pidfd, int) and pidfd > 0:
    for number in range(1, 65):
        attempt(signal.pidfd_send_signal, pidfd, number)
siginfo = ctypes.create_string_buffer(128)
for number in range(1, 65):
    call(129, 1, number, siginfo)
    call(234, 1, 1, number)
    call(200, 1, number)
time.sleep(0.3)
print("done")
"""
)

ASYNC_SIGNAL_INIT = (
    CALL
    + """
import fcntl, time
for number in range(1, 65):
    read_end, write_end = os.pipe()
    attempt(fcntl.fcntl, read_end, fcntl.F_SETOWN, 1)
    attempt(fcntl.fcntl, read_end, 10, number)  # F_SETSIG
    attempt(fcntl.fcntl, read_end, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    os.write(write_end, b"x")
    os.close(read_end)
    os.close(write_end)
time.sleep(0.2)
print("done")
"""
)

VISIBLE = """
import os
def exists(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
print([pid for pid in range(1, 40_000) if exists(pid) and pid not in (1, os.getpid())], os.getppid())
"""

TRACE = (
    CALL
    + """
buffer = ctypes.create_string_buffer(64)
vector = (ctypes.c_ulong * 2)(ctypes.addressof(buffer), 64)
PTRACE_TRACEME, PTRACE_ATTACH, PTRACE_SEIZE = 0, 16, 0x4206
print(call(101, PTRACE_ATTACH, 1, 0, 0), call(101, PTRACE_SEIZE, 1, 0, 0), call(101, PTRACE_TRACEME, 0, 0, 0))
print(call(310, 1, vector, 1, vector, 1, 0), call(311, 1, vector, 1, vector, 1, 0))
print(call(312, 1, os.getpid(), 0, 0, 0), call(438, os.pidfd_open(os.getpid()), 0, 0), call(440, 0, vector, 1, 0, 0))
"""
)

REPRIORITIZE = (
    CALL
    + """
import resource
for kind in (os.PRIO_PROCESS, os.PRIO_PGRP, os.PRIO_USER):
    for who in (1, 0):
        if (kind, who) not in ((os.PRIO_PROCESS, 0), (os.PRIO_PGRP, 0), (os.PRIO_USER, 0)):
            attempt(os.setpriority, kind, who, 19)
attempt(os.setpriority, os.PRIO_USER, os.getuid(), 19)
attempt(os.setpriority, os.PRIO_USER, 0, 19)
raised = attempt(os.setpriority, os.PRIO_PROCESS, 0, -20)
print(attempt(resource.prlimit, 1, resource.RLIMIT_NOFILE, (3, 3)), raised in ("EPERM", "EACCES"))
print(attempt(os.sched_setaffinity, 1, {0}), attempt(os.sched_setaffinity, 0, {0}), call(251, 1, 1, 0x6000))
attributes = ctypes.create_string_buffer(48)
print(attempt(os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(1)), call(314, 0, attributes, 0))
"""
)

BOMB = """
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
"""
BOMB_SESSIONS = """
import os
while True:
    try:
        if os.fork() == 0:
            os.setsid()
            if os.fork():
                os._exit(0)
    except OSError:
        pass
"""
BOMB_THREADS = """
import threading, time
alive = 0
try:
    while True:
        threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
        alive += 1
except RuntimeError as error:
    print(error, alive < 40)
"""
DAEMON = """
import os, signal, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for number in range(1, 65):
            try:
                signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError):
                pass
        os.closerange(0, 256)
        while True:
            try:
                open("/tmp/still-here", "a").write("x")
            except OSError:
                pass
            time.sleep(0.01)
    os._exit(0)
time.sleep(0.05)
print("started")
"""
DAEMON_PYTHON = """
import subprocess, sys
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
print("started")
"""
CLONES = (
    CALL
    + """
import time
CLONE_VM, CLONE_PARENT, CLONE_PTRACE, SIGCHLD = 0x100, 0x8000, 0x2000, 17
for flags in (CLONE_PARENT | SIGCHLD, CLONE_PARENT, CLONE_PTRACE | SIGCHLD, 9, 0):
    pid = call(56, flags, 0, 0, 0, 0)
    if pid == 0:
        while True:
            libc.pause()
    assert pid > 1, pid
print("cloned")
"""
)
NAMESPACES = (
    CALL
    + """
mount, cgroup, uts, ipc, user, pid, net, time = 0x20000, 1 << 25, 1 << 26, 1 << 27, 1 << 28, 1 << 29, 1 << 30, 0x80
flags = mount, cgroup, uts, ipc, user, pid, net
print({call(272, flag) for flag in (*flags, time)}, {call(56, flag | 17, 0, 0, 0, 0) for flag in flags})
print(call(435, ctypes.create_string_buffer(88), 88), call(308, 0, 0), call(272, 0x400), call(160, 99, None) == "EPERM")
"""
)
IDENTITY = (
    CALL
    + """
who = os.getresuid(), os.getresgid(), os.getgroups()
for uid in (0, 1, os.getuid() + 1, os.getuid() - 1, 65534):
    for function in (os.setuid, os.seteuid, os.setgid, os.setegid):
        attempt(function, uid)
    for function in (os.setresuid, os.setresgid):
        attempt(function, uid, uid, uid)
    attempt(os.setreuid, uid, uid)
    attempt(os.setgroups, [uid])
    call(122, uid)
    call(123, uid)
same = who[:2] == (os.getresuid(), os.getresgid()) and who[2] == os.getgroups()
header = (ctypes.c_uint32 * 2)(0x20080522, 0)
everything = (ctypes.c_uint32 * 6)(*[0xFFFFFFFF] * 6)
print(same, call(126, header, everything))
PR_SET_NO_NEW_PRIVS = 38
options = {"dumpable": 4, "keep capabilities": 8, "subreaper": 36, "seccomp": 22, "memory map": 35}.values()
print(call(157, PR_SET_NO_NEW_PRIVS, 0, 0, 0, 0) != 0, {call(157, option, 1, 0, 0, 0) for option in options})
"""
)
LIMITS_RAISED = """
import resource
raised = []
for name in sorted(vars(resource)):
    if name.startswith("RLIMIT_"):
        kind = getattr(resource, name)
        soft, hard = resource.getrlimit(kind)
        for value in (resource.RLIM_INFINITY, hard + 1 if hard >= 0 else -1):
            try:
                resource.setrlimit(kind, (value, value))
            except (OSError, ValueError):
                pass
        if resource.getrlimit(kind)[1] != hard:
            raised.append(name)
wanted = ("RLIMIT_CPU", "RLIMIT_FSIZE", "RLIMIT_NPROC", "RLIMIT_DATA", "RLIMIT_NOFILE", "RLIMIT_CORE", "RLIMIT_MEMLOCK")
print(raised, [name for name in wanted if resource.getrlimit(getattr(resource, name))[1] == resource.RLIM_INFINITY])
"""
IGNORE_SIGNALS = """
import signal
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
while True:
    pass
"""
STOP_SELF = "import os, signal\nprint('before', flush=True)\nos.kill(os.getpid(), signal.SIGSTOP)\nprint('after')"
NATIVE_LOOP = """
import ctypes, mmap
page = mmap.mmap(-1, 4096, prot=7)
page.write(b"\\xeb\\xfe")  # a jump to itself, with the interpreter's lock held
ctypes.PYFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
"""
CPU_IGNORED = "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass"
CPU_BY_CHILDREN = """
import os, time
for _ in range(20):
    if os.fork() == 0:
        start = time.process_time()
        while time.process_time() - start < 0.5:
            pass
        os._exit(0)
    os.wait()
print("spent ten seconds")
"""
FORKS_FOR_OTHERS = """
import os, time
try:
    while True:
        if os.fork() == 0:
            time.sleep(30)
except OSError:
    pass
time.sleep(1)
print("full")
"""
FORK_ONE = """
import os, threading
if os.fork() == 0:
    os._exit(0)
print(os.wait()[1])
thread = threading.Thread(target=print, args=("thread",))
thread.start()
thread.join()
"""

_SLEEPERS = "import os, time\nfor _ in range(10):\n    if os.fork() == 0:\n        time.sleep(60)\nprint('left')"

PROCESSES = (
    Attack("signal the slot's init", SIGNAL_INIT, prints("done\n")),
    Attack("signal the slot's init through a descriptor's owner", ASYNC_SIGNAL_INIT, prints("done\n")),
    Attack("see other processes", VISIBLE, prints("[] 1\n")),
    Attack("trace and read the slot's init", TRACE, prints("EPERM EPERM EPERM\nEPERM EPERM\nEPERM EPERM EPERM\n")),
    Attack("priority, limits, cores of others", REPRIORITIZE, prints("EPERM True\nEPERM EPERM EPERM\nEPERM EPERM\n")),
    Attack("kill everything", CALL + "attempt(os.kill, -1, 9)\nprint('alone')", prints("alone\n")),
    Attack("fork bomb", BOMB, ended(S.TIMEOUT), limits=limits(wall_s=1)),
    Attack("fork bomb in new sessions", BOMB_SESSIONS, ended(S.TIMEOUT), limits=limits(wall_s=1)),
    Attack(
        "fork bomb whose first process leaves", BOMB.replace("while", "os.fork() and os._exit(0)\nwhile"), ended(S.OK)
    ),
    Attack("thread bomb", BOMB_THREADS, prints("can't start new thread True\n")),
    Attack("a daemon that outlives", DAEMON, prints("started\n")),
    Attack("a daemon of another interpreter", DAEMON_PYTHON, prints("started\n")),
    Attack("children left asleep", _SLEEPERS, prints("left\n")),
    Attack("siblings by raw clone", CLONES, prints("cloned\n")),
    Attack("new namespaces", NAMESPACES, prints("{'EPERM'} {'EPERM'}\nENOSYS EPERM EPERM False\n")),
    Attack("another identity, capabilities, prctl", IDENTITY, prints("True EPERM\nTrue {'EPERM'}\n")),
    Attack("raise the limits", LIMITS_RAISED, prints("[] []\n")),
    Attack("ignore every signal and loop", IGNORE_SIGNALS, ended(S.TIMEOUT), limits=limits(wall_s=0.5)),
    Attack("stop itself", STOP_SELF, ended(S.TIMEOUT, stdout="before\n"), limits=limits(wall_s=0.5)),
    Attack(
        "sleep",
        "import time\nprint('zzz')\ntime.sleep(60)",
        ended(S.TIMEOUT, stdout="zzz\n"),
        limits=limits(wall_s=0.3),
    ),
    Attack(
        "an endless thread at exit",
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()",
        ended(S.TIMEOUT),
        limits=limits(wall_s=0.3),
    ),
    Attack("a native loop with the lock held", NATIVE_LOOP, ended(S.TIMEOUT), limits=limits(wall_s=0.5)),
    Attack(
        "catastrophic regex",
        "import re\nre.match(r'(a+)+$', 'a' * 40 + 'b')",
        ended(S.TIMEOUT),
        limits=limits(wall_s=0.5),
    ),
    Attack(
        "giant power", "print(len(str(7 ** 7 ** 9)))", ended(S.TIMEOUT, S.MEMORY, S.ERROR), limits=limits(wall_s=0.5)
    ),
    Attack(
        "the processor limit",
        "while True: pass",
        ended(S.TIMEOUT, message_has="CPU limit"),
        limits=limits(wall_s=30, cpu_s=1),
    ),
    Attack(
        "the processor limit, its warning ignored",
        CPU_IGNORED,
        ended(S.TIMEOUT, message_has="CPU limit"),
        limits=limits(wall_s=30, cpu_s=1),
    ),
    Attack(
        "the processor limit, spent by children",
        CPU_BY_CHILDREN,
        ended(S.TIMEOUT),
        limits=limits(wall_s=2, cpu_s=1),
    ),
    Duet(
        "use up another slot's processes",
        FORKS_FOR_OTHERS,
        FORK_ONE,
        ended(S.OK, stdout_has="full"),
        prints("0\nthread\n"),
    ),
)
