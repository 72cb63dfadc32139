"""What a template loads and runs before it parks, so that no execution pays for it.

Imports alone are not enough: the first `sympy.solve` still spends three quarters of its time filling caches, which the
snippets below fill.

No snippet may start a thread, which would not survive a fork and would cost the template its fast path: so no linprog,
whose solver starts a thread for every second core.
"""

import contextlib
import ctypes
import importlib
import io
import sys
from collections.abc import Iterator

LIBRARIES = (
    "numpy", "numpy.linalg", "numpy.random", "numpy.fft", "numpy.polynomial",
    "mpmath", "sympy", "sympy.ntheory", "sympy.solvers.diophantine",
    "scipy", "scipy.optimize", "scipy.integrate", "scipy.linalg", "scipy.special", "scipy.stats", "scipy.sparse",
    "scipy.sparse.linalg", "scipy.spatial", "scipy.interpolate", "scipy.signal", "scipy.fft",
    "networkx", "pandas", "math_verify",
    "asyncio", "array", "bisect", "calendar", "cmath", "collections", "concurrent.futures.process",
    "concurrent.futures.thread", "contextlib", "copy", "csv", "ctypes", "dataclasses", "datetime", "decimal", "enum",
    "fractions", "functools", "hashlib", "heapq", "inspect", "io", "itertools", "json", "math", "multiprocessing",
    "multiprocessing.pool", "multiprocessing.queues", "numbers", "operator", "pprint", "queue", "random", "re",
    "secrets", "sqlite3", "statistics", "string", "struct", "subprocess", "tempfile", "textwrap", "threading", "time",
    "timeit", "traceback", "typing", "unicodedata", "unittest", "uuid", "zoneinfo",
)  # fmt: skip

SNIPPETS = (
    "print(1 + 1)",
    """
import math
sum(math.comb(10, k) for k in range(11))
""",
    """
import numpy as np
a = np.arange(12.0).reshape(3, 4)
np.linalg.svd(a @ a.T)
np.linalg.solve(np.eye(3), np.ones(3))
np.random.default_rng(1).normal(size=3)
np.fft.fft(np.ones(8))
repr(a)
""",
    """
from sympy import *
x, y, n, k = symbols("x y n k")
str(solve(x**2 - 5*x + 6, x))
solve([x + y - 3, x - y - 1], [x, y])
str(solve(x**3 - 2*x + 1, x))
solveset(x**2 - 1, x)
roots(x**3 - 6*x**2 + 11*x - 6)
factor(x**4 - 1)
expand((x + y)**5)
simplify(sin(x)**2 + cos(x)**2)
integrate(x*exp(x), x)
diff(sin(x)*x, x)
limit(sin(x)/x, x, 0)
summation(k, (k, 1, n))
Sum(1/k**2, (k, 1, oo)).doit()
factorint(360360), isprime(10007), gcd(12, 18), binomial(10, 3)
Rational(3, 4) + Rational(1, 3), sqrt(50), N(pi, 30), nsimplify(0.5)
Matrix([[1, 2], [3, 4]]).det()
latex(x**2/2)
""",
    """
import scipy.integrate, scipy.optimize
scipy.optimize.minimize(lambda v: (v[0] - 1)**2, [0.0])
scipy.integrate.quad(lambda t: t * t, 0, 1)
""",
    """
import pandas as pd
frame = pd.DataFrame({"a": [1, 2, 2], "b": [3.0, 4.0, 5.0]})
repr(frame.groupby("a").sum()), repr(frame.describe())
""",
    """
import networkx as nx
nx.shortest_path(nx.path_graph(5), 0, 4)
nx.is_connected(nx.cycle_graph(4))
""",
    """
import mpmath
with mpmath.workdps(30):
    str(mpmath.quad(lambda t: t, [0, 1]))
""",
    """
import datetime, decimal, fractions, json, re, statistics
str(decimal.Decimal(1) / 3), fractions.Fraction(1, 3), json.dumps({"a": [1]})
re.findall("a+", "caat"), statistics.mean([1, 2]), datetime.date(2024, 2, 29).isoformat()
""",
    """
import logging
from math_verify import parse, verify
logging.disable(logging.CRITICAL)  # it warns that its own timeouts are off
half = parse("$0.5$", parsing_timeout=None)
verify(parse(r"$\\frac{1}{2}$", parsing_timeout=None), half, timeout_seconds=None)
logging.disable(logging.NOTSET)
""",
)


@contextlib.contextmanager
def _absent(name: str) -> Iterator[None]:
    """Make a library look uninstalled during the block."""
    sys.modules[name] = None  # type: ignore[assignment]  # Python's own mark for a module that is not there
    try:
        yield
    finally:
        del sys.modules[name]


# With pyarrow, pandas stores strings differently and maps a gigabyte. A program's results must not depend on whether
# the extra that installs pyarrow is there. The operator can add it for programs.
@_absent("pyarrow")
def load_libraries() -> tuple[str, ...]:
    """Import the installed libraries; returns the missing ones."""
    missing = []
    for name in LIBRARIES:
        try:
            importlib.import_module(name)
        except ImportError:
            missing.append(name)
    _let_sqlite_lock_by_folders()
    return tuple(missing)


def _let_sqlite_lock_by_folders() -> None:
    """Make SQLite lock by folders: programs may not lock files, since locks use kernel memory that no limit counts."""
    with contextlib.suppress(ImportError, OSError, AttributeError):
        library = ctypes.CDLL(importlib.import_module("_sqlite3").__file__)
        library.sqlite3_vfs_find.restype = ctypes.c_void_p
        found = library.sqlite3_vfs_find(b"unix-dotfile")
        if found is not None:
            library.sqlite3_vfs_register(ctypes.c_void_p(found), 1)


@_absent("pyarrow")
def fill_caches() -> None:
    """Run the snippets in throw-away namespaces, skipping those that need a missing library."""
    for snippet in SNIPPETS:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(ImportError):
            exec(compile(snippet, "<warm-up>", "exec"), {"__name__": "__warmup__"})
