"""Attacks on secrets: what earlier callers, the service or a test's answer left in memory, names or generators."""

from sandbox_attacks import SCAN, SECRET, Attack, Duet, S, ended, limits, prints

_EARLIER = (
    (
        f"# {SECRET}-code-0001\nimport sys\nprint(sys.stdin.read().upper() + '{SECRET}-stdout-0003')",
        f"{SECRET}-stdin-0002",
    ),
    (f"import sys\n'{SECRET}-value-0004'\nprint('{SECRET}-stderr-0005', file=sys.stderr)\n'{SECRET}-value-0006'", ""),
    (f"raise ValueError('{SECRET}-traceback-0007')", f"{SECRET}-unread-0008" * 10_000),
)
POISON = """
import builtins, os, random, sys, threading, io, socket, json
builtins.print = builtins.open = builtins.len = builtins.repr = lambda *a, **k: "poisoned"
os.fork = os._exit = os.write = os.read = lambda *a: 0
random.seed = random.random = lambda *a: 0.5
for name in list(sys.modules):
    if name.startswith("rstar2") or name in ("ast", "traceback", "linecache", "struct", "select"):
        for attribute in list(vars(sys.modules[name])):
            if not attribute.startswith("__"):
                setattr(sys.modules[name], attribute, None)
sys.modules["numpy"] = sys.modules["math"] = None
sys.path[:] = ["/tmp/evil"]
sys.setrecursionlimit(60)
sys.settrace(lambda *a: None)
sys.meta_path.clear()
"""
FRAMES = """
import gc, sys
prefix = "qX9v" + "T-"
found = set()
def look(value, depth=0):
    if isinstance(value, (str, bytes, bytearray)):
        text = value if isinstance(value, str) else bytes(value).decode("latin-1")
        if prefix in text and text != prefix:
            found.add(text[:60])
    elif isinstance(value, dict) and depth < 3:
        for key, item in list(value.items()):
            look(key, depth + 1)
            look(item, depth + 1)
    elif isinstance(value, (list, tuple, set)) and depth < 3:
        for item in list(value):
            look(item, depth + 1)
frame = sys._getframe()
while frame:
    for name, value in list(frame.f_locals.items()):
        if name not in ("prefix", "found", "code", "source", "frame", "look"):
            look(value, 2)
    frame = frame.f_back
for module in list(sys.modules.values()):
    if module is not sys.modules["__main__"]:
        look(getattr(module, "__dict__", {}), 2)
print(sorted(found))
"""
ENVIRONMENT = """
import os, sys
text = repr((dict(os.environ), sys.argv, sys.orig_argv, sys.path))
print([word for word in ("qX9v" + "T-", "service_group", "control_fd", "AWS_", "TOKEN", "PYTEST") if word in text])
"""
MAILBOX_IN_MEMORY = """
import ctypes, struct, sys
libc = ctypes.CDLL(None)
seen = ctypes.create_string_buffer(1)
def mapped(address):
    return libc.mincore(ctypes.c_void_p(address & ~4095), ctypes.c_size_t(1), seen) == 0
def shared_tables():
    # The fast path's table of regions: a pointer in its static data to an array of (start, end, protection).
    fork = sys.modules.get("rstar2.sandbox.slots._fork")
    if fork is None:
        return
    start = ctypes.c_void_p.from_address(id(fork.park) + 16).value & ~4095
    for address in range(start, start + 0x4000, 8):
        if not mapped(address):
            return
        pointer = ctypes.c_uint64.from_address(address).value
        if pointer & 4095 == 0 and 4096 < pointer < 1 << 47 and mapped(pointer):
            first, last, protection = struct.unpack("QQi", ctypes.string_at(pointer, 20))
            if first < last and first & 4095 == last & 4095 == 0 and 0 < protection < 8 and mapped(pointer + 700_000):
                yield pointer + 700_000
"""
GENERATORS = """
import random, sys, os, uuid, secrets, tempfile, ssl
draws = [random.random(), random.gauss(0, 1), random.getrandbits(64), os.urandom(8), uuid.uuid4(), tempfile.mktemp()]
draws += [secrets.token_hex(), ssl.RAND_bytes(8)]
if "numpy.random" in sys.modules:
    import numpy
    draws += [numpy.random.random(), numpy.random.randn(), numpy.random.default_rng().random()]
if "sympy.core.random" in sys.modules:
    import sympy.core.random
    draws += [sympy.core.random.rng.random()]
print(draws)
"""

LEAKS = (
    Attack(
        "earlier callers' code, input and output in memory",
        SCAN + "print(hunt())",
        prints("[]\n"),
        before=_EARLIER,
        limits=limits(wall_s=10),
    ),
    Attack("earlier callers in frames and modules", FRAMES, prints("[]\n"), before=_EARLIER, limits=limits(wall_s=10)),
    Attack("the service's environment and arguments", ENVIRONMENT, prints("[]\n")),
    Attack("builtins, modules and the sandbox's own code patched", POISON, ended(S.OK, S.ERROR)),
    Attack(
        "a message to the next caller in memory",
        MAILBOX_IN_MEMORY
        + "print([ctypes.string_at(at, 5) for at in shared_tables() if any(ctypes.string_at(at, 5))])",
        prints("[]\n"),
        before=((MAILBOX_IN_MEMORY + "for at in shared_tables(): ctypes.memmove(at, b'hello', 5)", ""),),
    ),
    Duet("the same random numbers", GENERATORS, GENERATORS),
    Attack(
        "a cell's module-level state",
        "import sys\nprint('leak' in sys.modules, hasattr(__builtins__, 'leak'), 'leak' in globals())",
        prints("False False False\n"),
        before=(
            (
                "import sys, builtins, types\nsys.modules['leak'] = types.ModuleType('leak')\nbuiltins.leak = leak = 1",
                "",
            ),
        ),
    ),
)
