"""Attacks on the file system: read the machine, write beyond the scratch directory, leave something in it."""

from sandbox_attacks import CALL, SECRET, Attack, S, ended, limits, prints

WORLD = """
import os
secrets = [
    "/etc/passwd", "/etc/shadow", "/etc/hostname", "/etc/resolv.conf", "/proc/self/environ", "/proc/1/cmdline", "/proc",
    "/sys/kernel", "/sys", "/home", "/root/.bashrc", "/root/.ssh", "/var", "/run", "/mnt", "/boot", "/srv",
    "/dev/mem", "/dev/kmsg", "/dev/tty", "/dev/ptmx", "/dev/fuse", "/dev/kvm", "/dev/sda", "/dev/fd/0", "/dev/stdin",
]
def reach(path):
    try:
        return os.listdir(path) if os.path.isdir(path) else open(path, "rb").read(16)
    except OSError:
        return None
print([path for path in secrets if reach(path) is not None])
print(sorted(set(os.listdir("/etc")) - {"ld.so.cache", "localtime"}) if os.path.isdir("/etc") else [])
print(sorted(set(os.listdir("/dev")) - {"null", "zero", "full", "random", "urandom", "shm"}))
"""

WRITE_OUTSIDE = """
import os, sys, sysconfig
done = []
def tried(what, function, *arguments):
    try:
        function(*arguments)
    except OSError:
        return
    done.append(what)
folders = ["/", "/dev", "/etc", "/lib", "/usr", "/usr/lib", sys.prefix, sys.base_prefix, sysconfig.get_path("stdlib")]
folders += [path for path in sys.path if path and os.path.isdir(path)]
for folder in folders:
    if not os.path.isdir(folder):
        continue
    tried(f"create in {folder}", lambda: open(f"{folder}/evil.pth", "w").close())
    tried(f"mkdir in {folder}", os.mkdir, f"{folder}/evil")
    tried(f"chmod {folder}", os.chmod, folder, 0o777)
    tried(f"utime {folder}", os.utime, folder)
    tried(f"rename {folder}", os.rename, folder, folder + "-gone")
for path in (os.__file__, sys.executable, sysconfig.__file__):
    tried(f"append to {path}", lambda: open(path, "ab").close())
    tried(f"truncate {path}", os.truncate, path, 0)
    tried(f"unlink {path}", os.unlink, path)
    tried(f"chmod {path}", os.chmod, path, 0o777)
    tried(f"replace {path}", os.replace, "/tmp", path)
tried("replace /tmp", os.rmdir, "/tmp")
tried("replace /dev/shm", os.unlink, "/dev/shm")
print(done)
"""

LINKS_OUT = (
    CALL
    + """
import sys
os.symlink("/etc/shadow", "shadow")
os.symlink("/proc/1/root/etc/shadow", "through-init")
os.symlink("../../../../../../etc/shadow", "climb")
print([attempt(os.open, name, os.O_RDONLY) for name in ("shadow", "through-init", "climb")])
print(attempt(os.link, os.__file__, "os.py"), attempt(os.link, "/dev/null", "null"))
root = os.open("/", os.O_RDONLY)
up = os.open("../../../..", os.O_RDONLY, dir_fd=root)
print(os.fstat(root).st_ino == os.fstat(up).st_ino and os.fstat(root).st_dev == os.fstat(up).st_dev)
os.chdir("/")
os.fchdir(up)
print(attempt(os.chroot, "/tmp"))
"""
)

MOUNTS = (
    CALL
    + """
MS_REMOUNT, MS_BIND, MNT_DETACH = 32, 4096, 2
os.mkdir("here")
print(call(165, b"none", b"/tmp/here", b"tmpfs", 0, 0), call(165, b"none", b"/", None, MS_REMOUNT, 0))
print(call(165, b"/", b"/tmp/here", None, MS_BIND, 0), call(166, b"/tmp", MNT_DETACH), call(155, b".", b"."))
print(call(161, b"/tmp"), call(428, -100, b"/", 1), call(429, -1, b"", -1, b"", 0), call(430, b"tmpfs", 0))
print(call(442, -100, b"/", 0, None, 0), call(303, -100, b"/", None, None, 0), call(304, -100, None, 0))
"""
)

NODES = (
    CALL
    + """
print(attempt(os.mknod, "disk", 0o60666, os.makedev(8, 0)), attempt(os.mknod, "mem", 0o20666, os.makedev(1, 1)))
print(attempt(os.mkfifo, "fifo"), attempt(os.mknod, "plain"), attempt(os.chown, ".", 0, 0), attempt(os.listdir, "."))
"""
)

FILL = """
import os
written, number = 0, 0
try:
    while written < 1 << 30:
        with open(str(number), "wb", buffering=0) as file:
            for _ in range(16):
                written += file.write(bytes(1 << 20))
        number += 1
except OSError as error:
    print(error.strerror)
print(32 <= written >> 20 <= 64)
"""

BIG_FILE = """
import os
file = open("big", "wb", buffering=0)
written = 0
try:
    while True:
        written += file.write(bytes(1 << 20))
except OSError as error:
    print(error.strerror, written >> 20)
for size in (1 << 40, 1 << 62):
    try:
        os.posix_fallocate(file.fileno(), 0, size)
    except OSError as error:
        print(error.strerror)
"""

INODES = """
number = 0
try:
    while number < 100_000:
        open(f"{number:x}", "w").close()
        number += 1
except OSError as error:
    print(error.strerror, 1000 < number <= 4096)
"""

LEAVE = """
import os
os.makedirs("a/b/c")
for name in ("a/b/c/file", ".hidden", "-rf", "new\\nline", "\\udcff", "x" * 255):
    open(name, "w").write("left")
os.mkdir("sealed")
open("sealed/in", "w").close()
os.chmod("sealed", 0)
os.symlink("a", "link")
os.link(".hidden", "hard")
for number in range(900):
    os.mkdir("d")
    os.chdir("d")
print("left")
"""

SCRATCH_ROOT = (
    CALL
    + """
os.chdir("/tmp")
attempt(os.chmod, "/tmp", 0)
attempt(os.chmod, ".", 0o1000)
attempt(os.utime, "/tmp", (0, 0))
attempt(os.rename, "/tmp", "/gone")
attempt(os.chown, "/tmp", 12345, 12345)
os.umask(0o777)
print("tried")
"""
)

ATTRIBUTES = (
    CALL
    + """
open("file", "w").close()
print([attempt(os.setxattr, path, name, b"left") for path in ("file", "/tmp") for name in ("user.a", "trusted.a")])
print(attempt(os.getxattr, "/tmp", "user.a"), attempt(os.listxattr, "/tmp"))
"""
)

SHELLS = """
import os, subprocess
found = []
for name in ("sh", "bash", "dash", "busybox", "python3", "perl", "env", "cat", "mount", "su", "sudo", "gcc", "curl"):
    for folder in ("/bin", "/usr/bin", "/usr/sbin", "/sbin", "/usr/local/bin"):
        try:
            subprocess.run([f"{folder}/{name}", "--version"], capture_output=True)
        except OSError:
            continue
        if name != "python3":
            found.append(f"{folder}/{name}")
print(found, os.WEXITSTATUS(os.system("id")))
"""

SET_UID_FILE = """
import os, shutil, subprocess, sys
shutil.copy(os.path.realpath(sys.executable), "evil")
os.chmod("evil", 0o6777)
before = os.getresuid(), os.getresgid()
environment = {**os.environ, "PYTHONHOME": sys.base_prefix}
program = "import os; print((os.getresuid(), os.getresgid()))"
run = subprocess.run(["./evil", "-c", program], capture_output=True, env=environment)
print(run.stdout.decode().strip() in ("", str(before)))
"""

FILES = (
    Attack("read the machine's files", WORLD, prints("[]\n[]\n[]\n")),
    Attack("write outside the scratch directory", WRITE_OUTSIDE, prints("[]\n")),
    Attack(
        "symbolic and hard links out",
        LINKS_OUT,
        prints("['ENOENT', 'ENOENT', 'ENOENT']\nEXDEV EXDEV\nTrue\nEPERM\n"),
    ),
    Attack(
        "mount, remount, unmount, pivot, chroot",
        MOUNTS,
        prints("EPERM EPERM\nEPERM EPERM EPERM\nEPERM EPERM EPERM EPERM\nEPERM EPERM EPERM\n"),
    ),
    Attack("device nodes, fifos, chown", NODES, prints("EPERM EPERM\nEPERM EPERM EPERM []\n")),
    Attack(
        "fill the scratch directory", FILL, prints("No space left on device\nTrue\n"), limits=limits(memory_mib=512)
    ),
    Attack(
        "one huge file",
        BIG_FILE,
        prints("File too large 8\nFile too large\nFile too large\n"),
        limits=limits(file_mib=8),
    ),
    Attack("inode bomb", INODES, prints("No space left on device True\n"), limits=limits(wall_s=5)),
    Attack("files of every kind left for the next run", LEAVE, prints("left\n")),
    Attack("mode, times, owner of the scratch root", SCRATCH_ROOT, prints("tried\n")),
    Attack(
        "extended attributes",
        ATTRIBUTES,
        prints("['ENOTSUP', 'ENOTSUP', 'ENOTSUP', 'ENOTSUP']\nENOTSUP ENOTSUP\n"),
    ),
    Attack("exec of shells and tools", SHELLS, prints("[] 127\n")),
    Attack("a set-uid copy of the interpreter", SET_UID_FILE, prints("True\n")),
    Attack(
        "another caller's files",
        "import os\nprint(os.listdir('.'), os.path.exists('loot'), os.listdir('/dev/shm'))",
        prints("[] False []\n"),
        before=((f"open('loot', 'w').write('{SECRET}-file-0001')", ""),),
    ),
    Attack(
        "a full scratch directory for the next caller",
        "open('mine', 'wb').write(bytes(16 << 20))\nprint('room')",
        prints("room\n"),
        before=((FILL, ""),),
        limits=limits(memory_mib=512),
    ),
    Attack("delete the working directory", "import os\nos.rmdir('/tmp')", ended(S.ERROR, stderr_has="OSError")),
)
