"""What attacks on the sandbox are made of: programs as data, and what must hold when each has run.

A program prints what it managed to do, so an attack that was held off prints nothing, or exactly what is written here.
The runner adds what must hold after every one of them: the next programs on the same slot and on another are unharmed.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from rstar2.sandbox import ExecutionStatus, Limits

MIB = 1 << 20
S = ExecutionStatus
SECRET = "qX9vT"
"""Every secret that a program could steal starts like this; no program spells it out, so its own text never matches."""


class Mode(StrEnum):
    """Whose rights the service has, and which of the two implementations forks."""

    FAST_ROOT = "fast-root"
    PURE_ROOT = "pure-root"
    FAST_UNPRIVILEGED = "fast-unprivileged"
    PURE_UNPRIVILEGED = "pure-unprivileged"

    @property
    def is_root(self) -> bool:
        return self in (Mode.FAST_ROOT, Mode.PURE_ROOT)

    @property
    def is_fast(self) -> bool:
        return self in (Mode.FAST_ROOT, Mode.FAST_UNPRIVILEGED)


def limits(
    wall_s: float = 3.0,
    cpu_s: float = 10.0,
    memory_mib: int = 256,
    num_processes: int = 32,
    output_bytes: int = MIB,
    file_mib: int = 32,
) -> Limits:
    return Limits(wall_s, cpu_s, memory_mib * MIB, num_processes, output_bytes, file_mib * MIB)


@dataclass(frozen=True)
class Expected:
    """What one program must come to. Fields that are None are not looked at."""

    status: tuple[ExecutionStatus, ...] = (S.OK,)
    stdout: str | None = None
    stdout_has: str = ""
    stderr_has: str = ""
    value: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    message_has: str = ""
    max_attempts: int = 1


@dataclass(frozen=True)
class Attack:
    """One stateless program, after `before` on the same slot."""

    name: str
    code: str
    expected: Expected = field(default_factory=Expected)
    stdin: str = ""
    limits: Limits = field(default_factory=limits)
    before: tuple[tuple[str, str], ...] = ()
    """Earlier callers' programs and their stdin."""


@dataclass(frozen=True)
class Duet:
    """Two programs at the same time on two slots; the second starts when the first has had a moment."""

    name: str
    first: str
    second: str
    expected_first: Expected = field(default_factory=Expected)
    expected_second: Expected = field(default_factory=Expected)
    limits: Limits = field(default_factory=limits)


@dataclass(frozen=True)
class Cell:
    code: str
    expected: Expected = field(default_factory=Expected)
    limits: Limits = field(default_factory=limits)
    rollback: int = 0
    """Cells to forget before this one runs."""
    in_fork: bool = False
    """Run in a fork of the session, made right before."""
    stdin: str = ""


@dataclass(frozen=True)
class SessionAttack:
    """Cells of one session. After them it must still count."""

    name: str
    cells: tuple[Cell, ...]


AnyAttack = Attack | Duet | SessionAttack


def ended(*status: ExecutionStatus, **fields: object) -> Expected:
    return Expected(status=status, **fields)  # type: ignore[arg-type]


def prints(text: str, **fields: object) -> Expected:
    return Expected(stdout=text, **fields)  # type: ignore[arg-type]


CALL = """
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    words = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *words)
    return errno.errorcode[ctypes.get_errno()] if result == -1 else result
def attempt(function, *arguments, **named):
    try:
        return function(*arguments, **named)
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error))
"""
"""`call` gives a result or an errno's name; `attempt` does the same for what Python has a function for."""

SCAN = """
import ctypes, mmap, os, re, sys
libc = ctypes.CDLL(None, use_errno=True)
pattern = re.compile(bytes([113, 88, 57, 118, 84]) + rb"-[a-z]+-[0-9]{4}")
STEP, PAGE = 1 << 20, 4096
window = os.open("window", os.O_RDWR | os.O_CREAT)
os.unlink("window")
os.ftruncate(window, STEP)
view = mmap.mmap(window, STEP)
def copy(address, length):
    # The kernel copies what is mapped and says EFAULT of what is not: reading that cannot crash.
    return libc.pwrite(window, ctypes.c_void_p(address), ctypes.c_size_t(length), ctypes.c_long(0)) == length
def scan(start, length, hits):
    for address in range(start, start + length, STEP):
        if copy(address, STEP):
            hits |= set(pattern.findall(view))
        elif copy(address, PAGE) or copy(address + STEP - PAGE, PAGE) or copy(address + STEP // 2, PAGE):
            for page in range(address, address + STEP, PAGE):
                if copy(page, PAGE):
                    hits |= set(pattern.findall(view, 0, PAGE))
def hunt():
    hits = set()
    local = ctypes.c_int(0)
    library = ctypes.cast(libc.getpid, ctypes.c_void_p).value & ~(STEP - 1)
    scan(library - 384 * STEP, 416 * STEP, hits)
    libc.sbrk.restype = ctypes.c_void_p
    top = libc.sbrk(ctypes.c_long(0)) & ~(PAGE - 1)
    scan(top - 96 * STEP, 96 * STEP, hits)
    return sorted(hit.decode() for hit in hits)
"""
"""`hunt()` lists every secret in the memory of this process."""
