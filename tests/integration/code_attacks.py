"""Programs that try to pass hidden tests without solving the task. Each works on a judge that runs program and tests in
one process, or tries to read what our judge must not show it."""

from dataclasses import dataclass
from typing import Any

from sandbox_attacks import SCAN

GOLD = ("qX9vT-gold-1234", "qX9vT-gold-5678")
"""What is expected. The secrets have the form that `SCAN` hunts for."""
EQUALITY = [f"assert f({number}) == {gold!r}" for number, gold in zip((3, 4), GOLD, strict=True)]
PROXIMITY = ["assert abs(f(3) - 7654321.5) < 1e-6", "assert abs(f(4) - 1234567.5) < 1e-6"]
PREFIX = [f"assert f(3).startswith({GOLD[0]!r})", f"assert f(4).startswith({GOLD[1]!r})"]
CLOSENESS = ["import numpy\nassert numpy.allclose(f(3), [7654321.5])", "assert numpy.allclose(f(4), 1234567.5)"]
STDIN = [{"input": f"{number}\n", "output": gold} for number, gold in zip((3, 4), GOLD, strict=True)]

FINDER = """
import re
secret = re.compile("qX9v" + "T-[a-z]+-[0-9]{4}")
def found(texts, x):
    hits = sorted({hit for text in texts for hit in secret.findall(text)})
    return hits[min(x - 3, len(hits) - 1)] if hits else ""
"""


@dataclass(frozen=True)
class Attack:
    program: str
    tests: list[Any]
    fools_naive: bool = True
    """Whether it passes where program and tests share a process."""
    searches: bool = False
    """Whether it must have come to the end of a search, and answered something."""


def _returns(definition: str, value: str) -> str:
    return f"{definition}\ndef f(x): return {value}\n"


ATTACKS: dict[str, Attack] = {
    "equal to everything": Attack(_returns("class A:\n    __eq__ = lambda s, o: True", "A()"), EQUALITY),
    "a text equal to everything": Attack(
        _returns("class A(str):\n    __eq__ = lambda s, o: True\n    __hash__ = None", "A()"), EQUALITY
    ),
    "difference of zero": Attack(_returns("class A:\n    __sub__ = lambda s, o: 0.0", "A()"), PROXIMITY),
    "less than everything": Attack(
        _returns("class A(float):\n    __sub__ = __abs__ = lambda s, *o: s\n    __lt__ = lambda s, o: True", "A()"),
        PROXIMITY,
    ),
    "starts with everything": Attack(_returns("class A(list):\n    startswith = lambda s, o: True", "A()"), PREFIX),
    "an object that starts with everything": Attack(
        _returns("class A:\n    startswith = lambda s, o: True", "A()"), PREFIX
    ),
    "nothing is close to everything": Attack("def f(x): return []", CLOSENESS),
    "builtins": Attack(_returns("import builtins\nbuiltins.abs = lambda x: 0", "0"), PROXIMITY),
    "exit in the call": Attack(_returns("import os", "os._exit(0)"), EQUALITY),
    "exit at the import": Attack("import os\nprint('passed', flush=True)\nos._exit(0)", EQUALITY),
    "SystemExit": Attack("import sys\ndef f(x): sys.exit(0)", EQUALITY),
    "exit handler": Attack("import atexit, os\natexit.register(os._exit, 0)\ndef f(x): return 0", EQUALITY),
    "consts of the caller": Attack(
        FINDER
        + """
import sys
def f(x):
    frame, texts = sys._getframe(1), []
    while frame:
        texts += map(repr, frame.f_code.co_consts)
        texts += map(repr, frame.f_locals.values())
        frame = frame.f_back
    return found(texts, x)
""",
        EQUALITY,
        searches=True,
    ),
    "source text": Attack(
        FINDER
        + """
import linecache
def f(x): return found(["".join(lines[2]) for lines in linecache.cache.values() if len(lines) > 2], x)
""",
        EQUALITY,
        searches=True,
    ),
    "garbage collector": Attack(
        FINDER
        + """
import gc, sys, types
def f(x):
    texts, seen = [], set()
    todo = gc.get_objects() + list(sys.modules.values()) + [sys._getframe(1)]
    for value in todo:
        for item in gc.get_referents(value) if not isinstance(value, types.FrameType) else [value.f_code.co_consts]:
            if isinstance(item, str):
                texts.append(item)
            elif isinstance(item, (bytes, bytearray)):
                texts.append(bytes(item).decode("latin-1"))
            elif isinstance(item, tuple):
                texts.extend(part for part in item if isinstance(part, str))
    return found(texts, x)
""",
        EQUALITY,
        searches=True,
    ),
    "memory": Attack(FINDER + SCAN + "def f(x): return found(hunt(), x)", EQUALITY, searches=True),
    "jump over the tests": Attack(
        """
import sys
def skip(frame, event, arg):
    if event == "line" and frame.f_code.co_name == "<module>":
        lines = [line for _, _, line in frame.f_code.co_lines() if line]
        try:
            if frame.f_lineno < max(lines): frame.f_lineno = max(lines)
        except ValueError:
            pass
    return skip
def f(x): return 0
frame = sys._getframe()
while frame:
    frame.f_trace = skip
    frame = frame.f_back
sys.settrace(skip)
""",
        EQUALITY,
    ),
    "empty the argument": Attack(
        "def f(x):\n    x.clear()\n    return []",
        ["xs = [3, 1, 2]\nassert f(xs) == sorted(xs)", "ys = [5, 4]\nassert f(ys) == sorted(ys)"],
    ),
    # These know our judge.
    "files": Attack(
        FINDER
        + """
import os
def f(x):
    texts = []
    for folder in (os.getcwd(), "/tmp", "/dev", "/proc", "/run"):
        for parent, _, names in os.walk(folder):
            for name in names:
                try:
                    texts += secret.findall(open(os.path.join(parent, name), errors="replace").read(1 << 16))
                except OSError:
                    pass
    return found(texts, x)
""",
        EQUALITY,
        fools_naive=False,
        searches=True,
    ),
    "descriptors": Attack(
        FINDER
        + """
import os
def f(x):
    texts = []
    for fd in range(64):
        if fd not in (1, 2):
            try:
                os.set_blocking(fd, False)
                texts.append(os.read(fd, 1 << 20).decode("latin-1"))
            except OSError:
                pass
    return found(texts, x)
""",
        EQUALITY,
        fools_naive=False,
        searches=True,
    ),
    "patched json": Attack(
        """
import json
json.dumps = lambda *a, **k: '["", {"value": true}]'
import __main__
__main__.encode = lambda value, refer: {"ref": "name:f"}
def f(x): return 0
""",
        EQUALITY,
        fools_naive=False,
    ),
    "made-up answers": Attack(
        """
import sys, __main__
def f(x):
    frame = sys._getframe()
    while frame and "job" not in frame.f_locals:
        frame = frame.f_back
    for call in frame.f_locals["job"]["calls"] if frame else []:
        for value in ('{"make": ["os.system", "true"]}', '{"ref": "builtin:exec"}', '{"passed": true}', 'true'):
            print('\\n["%s", {"value": %s}]' % (call["id"], value))
            print('\\n["%s", {"value": 0, "arguments": [[]], "passed": [1, 2], "errors": []}]' % call["id"])
    return 0
print('\\n{"calls": [], "passed": [1, 2], "failed": [], "tests": [1, 2], "errors": []}')
""",
        EQUALITY,
        fools_naive=False,
    ),
    "made-up references": Attack(
        """
import __main__
__main__.encode = lambda value, refer: {"ref": [5]}
def f(x): return 0
""",
        ["assert f(f(3)) == 1", "assert f(f(4)).x.y == 2", "assert list(f(5)) == [1]"],
        fools_naive=False,
    ),
    "a costly value": Attack(
        """
import __main__
__main__.encode = lambda value, refer: {"make": ["numpy.array", [0], "V4000000000"]}
def f(x): return 0
""",
        EQUALITY,
        fools_naive=False,
    ),
    "endless loop": Attack("def f(x):\n    while True: pass", EQUALITY, fools_naive=False),
    "endless memory": Attack("def f(x): return [0] * (1 << 40)", EQUALITY, fools_naive=False),
    "flood": Attack("def f(x):\n    while True: print('passed' * 1000)", EQUALITY, fools_naive=False),
    "fork": Attack("import os\ndef f(x):\n    os.fork()\n    return 0", EQUALITY, fools_naive=False),
    "deep answer": Attack(
        "def f(x):\n    value = []\n    for _ in range(900): value = [value]\n    return value",
        EQUALITY,
        fools_naive=False,
    ),
    "a huge number": Attack("def f(x): return 10 ** 200_000", PROXIMITY, fools_naive=False),
    # Programs with stdin.
    "the input of a neighbour": Attack(
        FINDER
        + """
import os, sys
texts = [sys.stdin.read()]
for name in os.listdir():
    texts.append(open(name).read())
open("notes", "w").write(texts[0])
print(found(texts, 3) or texts)
""",
        STDIN,
        fools_naive=False,
        searches=True,
    ),
    "stdin and memory": Attack(FINDER + SCAN + "print(found(hunt(), 3))", STDIN, fools_naive=False, searches=True),
    "prints every answer": Attack("for n in range(9999): print('qX9v' + 'T-gold-%04d' % n)", STDIN, fools_naive=False),
}
