"""Programs whose every printed byte is the same in each run: what the sandbox must do as a plain interpreter does.

Each is a whole program. None prints a path, an address, a process id, a time or the order of a set of strings, and each
flushes before it forks, so a difference between two runs is a difference between two interpreters.
"""

from dataclasses import dataclass
from textwrap import dedent


@dataclass(frozen=True, slots=True)
class Snippet:
    name: str
    code: str
    stdin: str = ""
    is_command: bool = False
    """Compared with `python -c`: Python prints this traceback itself and shows source lines of files alone."""


_COMMANDS = ("exception in a thread", "an exit handler that fails")


def _snippets(*groups: dict[str, str]) -> tuple[Snippet, ...]:
    return tuple(
        Snippet(name, dedent(code).lstrip("\n"), is_command=name in _COMMANDS)
        for group in groups
        for name, code in group.items()
    )


_NUMERICS = {
    "linprog by HiGHS": """
        from scipy.optimize import linprog
        result = linprog([-3, -5], A_ub=[[1, 0], [0, 2], [3, 2]], b_ub=[4, 12, 18], method="highs")
        print(result.status, result.fun, result.x.tolist())
    """,
    "milp by HiGHS": """
        import numpy as np
        from scipy.optimize import Bounds, LinearConstraint, milp
        result = milp([-5, -4, -3], constraints=LinearConstraint([[2, 3, 1], [4, 1, 2], [3, 4, 2]], ub=[5, 11, 8]),
                      integrality=np.ones(3), bounds=Bounds(0, 10))
        print(result.success, result.fun, result.x)
    """,
    "minimize, root and least squares": """
        import numpy as np
        from scipy.optimize import brentq, curve_fit, minimize
        print(np.round(minimize(lambda v: (v[0] - 1) ** 2 + (v[1] + 2) ** 2, [0, 0]).x, 4))
        print(round(brentq(lambda x: x**3 - 2, 0, 2), 10))
        x = np.linspace(0, 1, 20)
        print(np.round(curve_fit(lambda x, a, b: a * x + b, x, 3 * x + 1)[0], 8))
    """,
    "Qhull": """
        import numpy as np
        from scipy.spatial import ConvexHull, Delaunay, Voronoi, cKDTree
        points = np.random.default_rng(3).random((40, 2))
        hull = ConvexHull(points)
        print(sorted(hull.vertices.tolist()), hull.volume)
        print(Delaunay(points).simplices.shape, len(Voronoi(points).vertices), cKDTree(points).query([0.5, 0.5]))
    """,
    "Qhull error": """
        from scipy.spatial import ConvexHull, QhullError
        try:
            ConvexHull([[0, 0], [1, 1], [2, 2]])
        except QhullError as error:
            print(str(error).splitlines()[0])
    """,
    "LAPACK": """
        import numpy as np, scipy.linalg
        a = np.arange(36.0).reshape(6, 6) + 10 * np.eye(6)
        print(np.linalg.solve(a, np.ones(6)), np.linalg.det(a), np.linalg.matrix_rank(a))
        print(np.linalg.eigvalsh(a + a.T), np.linalg.svd(a, compute_uv=False))
        lu, pivots = scipy.linalg.lu_factor(a)
        print(pivots, np.round(scipy.linalg.expm(a / 100), 6))
        try:
            np.linalg.inv(np.zeros((2, 2)))
        except np.linalg.LinAlgError as error:
            print(error)
    """,
    "BLAS on large matrices": """
        import numpy as np
        a = np.random.default_rng(0).random((400, 400))
        print(float((a @ a.T).trace()), float(np.linalg.norm(a @ np.linalg.inv(a) - np.eye(400)) < 1e-6))
    """,
    "FFT": """
        import numpy as np, scipy.fft
        x = np.cos(np.arange(64) / 5)
        print(np.round(np.abs(np.fft.rfft(x)), 8)[:6], np.allclose(scipy.fft.ifft(scipy.fft.fft(x)), x))
        print(np.round(scipy.fft.dct(x)[:4], 8))
    """,
    "sparse solvers": """
        import numpy as np, scipy.sparse as sparse
        from scipy.sparse.linalg import cg, eigsh, spsolve
        a = sparse.diags([-1, 2, -1], [-1, 0, 1], shape=(50, 50), format="csc")
        print(np.round(spsolve(a, np.ones(50))[:5], 8))
        solution, info = cg(a, np.ones(50), rtol=1e-10)
        print(info, np.round(solution[:5], 6), np.round(eigsh(a, k=2, sigma=0)[0], 8))
    """,
    "ODE, quadrature, interpolation, statistics": """
        import numpy as np
        from scipy import integrate, interpolate, special, stats
        print(np.round(integrate.solve_ivp(lambda t, y: -y, (0, 1), [1.0]).y[0][-1], 6))
        print(integrate.quad(np.exp, 0, 1), round(special.gamma(5.5), 8))
        print(interpolate.CubicSpline([0, 1, 2], [0, 1, 4])(1.5), round(stats.norm.ppf(0.975), 8))
    """,
    "numpy warnings and printing": """
        import numpy as np
        print(np.array([1.0, 0.0]) / np.array([0.0, 0.0]))
        print(np.arange(2000), np.array([[1, 2], [3, 4]], dtype=object), np.float32(0.1), repr(np.int64(3)))
        print(np.random.default_rng(7).normal(size=3), np.random.RandomState(7).rand(2))
    """,
    "numpy error state and masked arrays": """
        import numpy as np
        with np.errstate(all="raise"):
            try:
                np.float64(1) / np.float64(0)
            except FloatingPointError as error:
                print(error)
        print(np.ma.array([1, 2, 3], mask=[0, 1, 0]).mean(), np.array(["b", "a"]).argsort())
    """,
    "seeded generators": """
        import random, numpy as np
        random.seed(5)
        np.random.seed(5)
        print(random.random(), random.sample(range(100), 5), np.random.rand(2), np.random.permutation(5))
        rng = random.Random("text")
        print(rng.choice("abcdef"), rng.gauss(0, 1))
    """,
}

_DATA = {
    "pandas groupby, merge and pivot": """
        import pandas as pd
        left = pd.DataFrame({"key": ["a", "b", "a", "c"], "x": [1, 2, 3, 4]})
        right = pd.DataFrame({"key": ["a", "b", "d"], "y": [10.5, 20.5, 30.5]})
        print(left.groupby("key").agg(["sum", "mean"]))
        print(left.merge(right, how="outer", on="key").sort_values(["key", "x"]))
        print(left.pivot_table(index="key", values="x", aggfunc="max").T)
        print(left.describe(include="all"))
    """,
    "pandas csv and datetime": """
        import io, pandas as pd
        frame = pd.read_csv(io.StringIO("when,v\\n2024-02-28,1\\n2024-02-29,2\\n2024-03-01,5\\n"), parse_dates=["when"])
        print(frame.dtypes, frame.set_index("when").resample("MS").sum(), frame.to_csv(index=False), sep="\\n")
        print(pd.Timestamp("2024-03-10 01:30", tz="America/New_York") + pd.Timedelta(hours=1))
        print(pd.date_range("2024-01-31", periods=3, freq="ME").strftime("%d %b").tolist())
        frame.to_csv("out.csv")
        print(pd.read_csv("out.csv", index_col=0).shape)
    """,
    "pandas errors": """
        import pandas as pd
        pd.DataFrame({"a": [1]})["b"]
    """,
    "sqlite in memory and in a file": """
        import sqlite3
        for place in (":memory:", "data.db"):
            with sqlite3.connect(place) as base:
                base.execute("create table t (name text, n integer)")
                base.executemany("insert into t values (?, ?)", [("a", 1), ("b", 2), ("a", 3)])
                base.commit()
                print(base.execute("select name, sum(n) from t group by name order by name").fetchall())
                try:
                    base.execute("select nothing from t")
                except sqlite3.OperationalError as error:
                    print(error)
        print(sqlite3.connect("data.db").execute("pragma integrity_check").fetchone())
    """,
    "json, csv and configparser": """
        import configparser, csv, io, json, sys
        print(json.dumps({"b": [1, 2.5, None, True], "a": "é"}, sort_keys=True, indent=1), json.loads("[1e3, -0]"))
        try:
            json.loads("{'a': 1}")
        except json.JSONDecodeError as error:
            print(error)
        csv.writer(sys.stdout).writerows([["a", 'q"uote'], ["x,y", "line\\nbreak"]])
        print(list(csv.DictReader(io.StringIO("a,b\\n1,2\\n"))))
        config = configparser.ConfigParser()
        config.read_string("[s]\\nk = v\\n")
        print(config["s"]["k"])
    """,
    "compression": """
        import bz2, gzip, io, lzma, tarfile, zipfile, zlib
        data = bytes(range(256)) * 100
        for module in (zlib, gzip, bz2, lzma):
            print(module.__name__, module.decompress(module.compress(data)) == data)
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("a.txt", "hello")
        print(zipfile.ZipFile(buffer).read("a.txt"), zlib.crc32(data))
        with tarfile.open("t.tgz", "w:gz") as archive:
            archive.addfile(tarfile.TarInfo("empty"))
        print(tarfile.open("t.tgz").getnames())
    """,
    "struct, array and memoryview": """
        import array, struct
        print(struct.pack("<IhQ", 1, -2, 3), struct.unpack(">d", struct.pack(">d", 1.5)))
        numbers = array.array("d", [1, 2, 3])
        view = memoryview(numbers).cast("B")
        print(len(view), numbers.tobytes()[:8], bytes(view[8:16]))
    """,
    "hashing, base64 and checksums": """
        import base64, hashlib, hmac
        for name in ("md5", "sha1", "sha256", "sha3_256", "blake2b"):
            print(name, hashlib.new(name, b"abc").hexdigest())
        print(hmac.new(b"k", b"m", "sha256").hexdigest(), base64.b85encode(b"hello"), hash(12345), hash(1.5))
    """,
    "xml and html": """
        import html, xml.etree.ElementTree as tree
        root = tree.fromstring("<a><b x='1'>t</b></a>")
        print(root.find("b").attrib, tree.tostring(root), html.escape("<&>"))
    """,
}

_MATHEMATICS = {
    "sympy integrate, solve and series": """
        from sympy import *
        x, n = symbols("x n")
        print(integrate(exp(-x**2), (x, -oo, oo)), integrate(1 / (1 + x**3), x))
        print(solve(x**4 - 5 * x**2 + 4, x), solve([x + n - 3, x - n], [x, n]), series(tan(x), x, 0, 8))
        print(dsolve(Function("f")(x).diff(x) - Function("f")(x)), limit((1 + 1 / x) ** x, x, oo))
        print(Matrix([[2, 1], [1, 2]]).eigenvals(), factorint(2**64 + 1), summation(n**2, (n, 1, 10)))
        pprint(Integral(sqrt(1 / x), x))
    """,
    "sympy assumptions and number theory": """
        from sympy import *
        from sympy.ntheory.modular import crt
        p = Symbol("p", positive=True)
        print(sqrt(p**2), simplify(log(exp(p))), primerange(1, 30).__class__.__name__, list(primerange(1, 30)))
        print(crt([3, 5, 7], [2, 3, 2]), totient(100), nsimplify(0.333333333333, rational=True), latex(Rational(1, 3)))
        print(Poly(p**2 - 1, p).factor_list(), rsolve(Function("y")(p + 1) - 2 * Function("y")(p), Function("y")(p)))
    """,
    "mpmath": """
        import mpmath
        mpmath.mp.dps = 50
        print(mpmath.zeta(3), mpmath.quad(lambda t: mpmath.sin(t), [0, mpmath.pi]), mpmath.findroot(mpmath.cos, 1))
    """,
    "networkx": """
        import networkx as nx
        graph = nx.petersen_graph()
        print(nx.diameter(graph), nx.chromatic_polynomial(nx.cycle_graph(4)), nx.is_planar(graph))
        weighted = nx.Graph([(1, 2, {"weight": 3}), (2, 3, {"weight": 1}), (1, 3, {"weight": 7})])
        print(nx.dijkstra_path(weighted, 1, 3), nx.minimum_spanning_tree(weighted).size("weight"))
        print(nx.maximum_flow_value(nx.DiGraph([(0, 1, {"capacity": 3}), (1, 2, {"capacity": 2})]), 0, 2))
        try:
            nx.shortest_path(graph, 0, 99)
        except nx.NodeNotFound as error:
            print(error)
    """,
    "big integers": """
        import math, sys
        print(2**5000 % 10**20, math.factorial(500) % (10**9 + 7), pow(3, -1, 101), math.isqrt(10**60))
        try:
            str(10**5000)
        except ValueError as error:
            print(error)
        sys.set_int_max_str_digits(0)
        print(len(str(10**5000)), int("9" * 6000) % 97, (-7) // 2, -7 % 3, (10**400).bit_length())
    """,
    "decimal and fractions": """
        import decimal, fractions
        decimal.getcontext().prec = 60
        print(decimal.Decimal(2).sqrt(), decimal.Decimal("0.1") + decimal.Decimal("0.2"))
        print(fractions.Fraction(3, 7) ** 3, fractions.Fraction(0.125), fractions.Fraction("1.5").limit_denominator(2))
        try:
            decimal.Decimal(1) / 0
        except decimal.DivisionByZero as error:
            print(repr(error))
    """,
    "floats, complex and statistics": """
        import cmath, math, statistics
        print(0.1 + 0.2, 1e308 * 10, float("nan"), math.fsum([0.1] * 10), cmath.sqrt(-2), (1 + 2j) ** 3, 1e16 + 1)
        print(statistics.quantiles([1, 2, 3, 4]), statistics.stdev([1.5, 2.5]), f"{1234567.891:,.2f} {0.5:e} {255:#x}")
    """,
    "itertools, functools and collections": """
        import collections, functools, heapq, itertools, operator
        print(list(itertools.permutations("abc", 2)), collections.Counter("mississippi").most_common(2))
        @functools.lru_cache(None)
        def fib(n):
            return n if n < 2 else fib(n - 1) + fib(n - 2)
        print(fib(200), fib.cache_info(), functools.reduce(operator.mul, range(1, 10)))
        print(heapq.nsmallest(3, [5, 1, 4, 2]), collections.OrderedDict(a=1), collections.deque([1, 2], maxlen=1))
    """,
}

_LANGUAGE = {
    "regular expressions and unicode": """
        import re, unicodedata
        print(re.sub(r"(?P<a>\\d+)", lambda m: str(int(m["a"]) * 2), "3 and 40"), re.split(r"[,;]\\s*", "a, b;c"))
        print(re.findall(r"\\b\\w+", "naïve café ŝ"), unicodedata.normalize("NFD", "é").encode(), "ß".upper())
        try:
            re.compile("(")
        except re.error as error:
            print(error)
    """,
    "dataclasses, enum and typing": """
        from __future__ import annotations
        import dataclasses, enum, typing
        @dataclasses.dataclass(order=True, frozen=True)
        class Point:
            x: int
            y: list[int] | None = None
        class Color(enum.Flag):
            RED = enum.auto()
            BLUE = enum.auto()
        print(Point(1) < Point(2), dataclasses.asdict(Point(1, [2])), Point.__annotations__, Color.RED | Color.BLUE)
        print(typing.get_type_hints(Point), Point.__module__, Point.__qualname__)
        try:
            Point(1).x = 2
        except dataclasses.FrozenInstanceError as error:
            print(error)
    """,
    "pickle of classes of the program": """
        import copy, pickle
        class Thing:
            def __init__(self, n):
                self.n = n
            def __eq__(self, other):
                return self.n == other.n
        print(pickle.loads(pickle.dumps([Thing(1), Thing(2)])) == [Thing(1), Thing(2)], copy.deepcopy(Thing(3)).n)
        print(b"__main__" in pickle.dumps(Thing(1)))
        try:
            pickle.dumps(lambda: 1)
        except (pickle.PicklingError, AttributeError) as error:
            print(type(error).__name__)
    """,
    "main guard and module attributes": """
        '''The docstring.'''
        import sys
        def main():
            print("main", __name__, __doc__, sys.modules["__main__"].main is main)
        if __name__ == "__main__":
            main()
        import __main__
        print(__main__.main is main, vars() is globals(), __builtins__.__name__, __spec__, __package__)
    """,
    "annotations of a module without any": "print(__annotations__)\n",
    "match, walrus, star, nonlocal": """
        def describe(value):
            match value:
                case [x, *rest] if (n := len(rest)) > 1:
                    return x, n
                case {"k": str(text)}:
                    return text
                case int() | float():
                    return "number"
                case _:
                    return None
        print([describe(v) for v in ([1, 2, 3], {"k": "t"}, 1.5, "s")])
        def counter():
            n = 0
            def up():
                nonlocal n
                n += 1
                return n
            return up
        up = counter()
        print(up(), up(), (lambda *a, **k: (a, k))(1, *[2], **{"x": 3}))
    """,
    "metaclasses and descriptors": """
        class Meta(type):
            def __new__(mcs, name, bases, namespace, **kw):
                print("making", name, kw, sorted(k for k in namespace if not k.startswith("__")))
                return super().__new__(mcs, name, bases, namespace)
        class Field:
            def __set_name__(self, owner, name):
                self.name = name
            def __get__(self, instance, owner):
                return f"{owner.__name__}.{self.name}"
        class A(metaclass=Meta, flag=1):
            x = Field()
        print(A.x, A().x, A.__mro__)
    """,
    "source of a function": """
        import inspect
        def f(x):
            return x + 1
        print(inspect.getsource(f), inspect.signature(f), f.__code__.co_firstlineno)
    """,
    "unittest": """
        import io, sys, unittest
        class Case(unittest.TestCase):
            def test_good(self):
                self.assertEqual(1 + 1, 2)
            def test_bad(self):
                self.assertIn(1, [2])
            @unittest.skip("why")
            def test_skipped(self):
                pass
        stream = io.StringIO()
        result = unittest.TextTestRunner(stream=stream).run(unittest.defaultTestLoader.loadTestsFromTestCase(Case))
        print(result, stream.getvalue().splitlines()[0])
    """,
    "unittest.main": """
        import unittest
        class Case(unittest.TestCase):
            def test(self):
                print("ran")
        if __name__ == "__main__":
            runner = unittest.TextTestRunner(stream=open("log", "w"))
            unittest.main(argv=["x"], exit=False, verbosity=0, testRunner=runner)
            print("after")
    """,
    "doctest": """
        import doctest
        def double(x):
            '''
            >>> double(2)
            4
            >>> double(None)
            Traceback (most recent call last):
            TypeError: unsupported operand type(s) for *: 'NoneType' and 'int'
            '''
            return x * 2
        print(doctest.testmod())
    """,
    "logging": """
        import logging, logging.handlers, sys
        logging.warning("root %d", 1)
        logging.basicConfig(level="INFO", stream=sys.stdout, format="%(levelname)s:%(name)s:%(message)s", force=True)
        logging.getLogger("a.b").info("hello")
        logging.getLogger("a").debug("unseen")
        try:
            1 / 0
        except ZeroDivisionError:
            logging.exception("caught")
    """,
    "logging handlers are flushed at exit": """
        import logging, logging.handlers, sys
        logger = logging.getLogger("x")
        logger.propagate = False
        logger.addHandler(logging.handlers.MemoryHandler(100, target=logging.StreamHandler(sys.stdout)))
        logger.warning("kept until the end")
    """,
    "warnings": """
        import warnings
        warnings.warn("first")
        def old():
            warnings.warn("old", DeprecationWarning, stacklevel=2)
        old()
        old()
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            warnings.warn("second")
        print(len(seen), seen[0].message)
        warnings.simplefilter("error")
        try:
            warnings.warn("third")
        except UserWarning as error:
            print("raised", error)
    """,
    "syntax warnings": """
        x = 1
        print(x is 1, "\\d")
        assert (x, "always true")
    """,
    "context variables": """
        import contextvars
        v = contextvars.ContextVar("v", default=0)
        context = contextvars.copy_context()
        context.run(v.set, 5)
        print(v.get(), context[v])
    """,
    "generators, closed and left open": """
        def g():
            try:
                yield 1
                yield 2
            finally:
                print("closed")
        first = g()
        print(next(first))
        first.close()
        print(list(g()))
        left = g()
        print(next(left))
    """,
    "finalizers at exit": """
        import weakref
        class Thing:
            pass
        kept, dropped = Thing(), Thing()
        weakref.finalize(kept, print, "finalized at exit")
        weakref.finalize(dropped, print, "finalized when dropped")
        del dropped
        print("end")
    """,
    "del methods at exit": """
        class Thing:
            def __init__(self, name):
                self.name = name
            def __del__(self):
                print("deleted", self.name)
        a = Thing("a")
        a = Thing("b")
        print("end")
    """,
    "garbage collection of cycles": """
        import gc, weakref
        class Node:
            pass
        a, b = Node(), Node()
        a.other, b.other = b, a
        seen = weakref.ref(a)
        del a, b
        gc.collect()
        print(seen() is None, gc.isenabled(), gc.get_threshold())
    """,
    "recursion": """
        import sys
        def depth(n):
            return 0 if n == 0 else 1 + depth(n - 1)
        print(sys.getrecursionlimit(), depth(900))
        try:
            depth(10**6)
        except RecursionError as error:
            print(error)
        sys.setrecursionlimit(20000)
        print(depth(15000))
    """,
    "deep recursion in a thread with a large stack": """
        import sys, threading
        sys.setrecursionlimit(10**6)
        threading.stack_size(256 << 20)
        def depth(n):
            return 0 if n == 0 else 1 + depth(n - 1)
        def main():
            print(depth(50000))
        thread = threading.Thread(target=main)
        thread.start()
        thread.join()
    """,
    "ctypes of libc": """
        import ctypes
        libc = ctypes.CDLL(None)
        print(libc.abs(-3), libc.strlen(b"hello"), ctypes.sizeof(ctypes.c_long))
        compare = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_int))
        numbers = (ctypes.c_int * 4)(3, 1, 4, 2)
        libc.qsort(numbers, 4, 4, compare(lambda a, b: a[0] - b[0]))
        print(list(numbers))
    """,
    "builtins and compile": """
        namespace = {}
        exec(compile("y = 1 + 1", "<made>", "exec"), namespace)
        print(namespace["y"], eval("2 * 3"), "namespace" in dir(), __import__("math").pi)
        print(sorted(name for name in dir(__builtins__) if name in ("exit", "quit", "help", "license", "copyright")))
    """,
    "interpreter facts": """
        import os, sys
        print(sys.version_info[:3], sys.flags.optimize, sys.byteorder, sys.maxsize, sys.float_info.max)
        print(sys.stdout.encoding, sys.stdin.encoding, sys.stderr.encoding, sys.getfilesystemencoding())
        print(sys.stderr.errors, sys.stdout.isatty(), sys.stdout.fileno(), sys.stdin.seekable(), sys.stdout.seekable())
        print(sys.stdin.name, sys.stdout.name, sys.stderr.name, sys.stdout.mode, sys.stdin.mode, sys.stderr.mode)
        print(len(sys.argv), sys.getswitchinterval(), sys.gettrace(), sys.executable != "", os.getcwd() != "/")
        print(os.listdir("."))
    """,
    "locale, zoneinfo and datetime": """
        import calendar, datetime, locale, zoneinfo
        print(locale.getlocale(), locale.localeconv()["decimal_point"], locale.getpreferredencoding())
        when = datetime.datetime(2024, 3, 31, 1, 30, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"))
        print(when.isoformat(), (when + datetime.timedelta(hours=2)).astimezone(zoneinfo.ZoneInfo("Asia/Tokyo")))
        print(calendar.month(2024, 2), datetime.datetime.fromtimestamp(0, datetime.UTC), datetime.date.min)
        print(datetime.datetime.strptime("29 Feb 2024", "%d %b %Y").strftime("%A %j"))
    """,
    "secrets, uuid and time": """
        import secrets, time, uuid
        print(len(secrets.token_hex(16)), uuid.uuid5(uuid.NAMESPACE_DNS, "a"), uuid.uuid4() != uuid.uuid4())
        began = time.perf_counter()
        time.sleep(0.05)
        print(0.05 <= time.perf_counter() - began < 5, time.strftime("%Y-%m-%d", time.gmtime(0)))
    """,
    "text wrapping, string templates and pretty printing": """
        import pprint, string, textwrap
        print(textwrap.fill("word " * 30, 40), string.Template("$a-${b}").substitute(a=1, b=2))
        pprint.pprint({"key" + str(i): list(range(i)) for i in range(12)}, width=60)
    """,
}

_CONCURRENCY = {
    "threads": """
        import queue, threading
        lock, total, box = threading.Lock(), 0, queue.Queue()
        def work(n):
            global total
            for _ in range(1000):
                with lock:
                    total += 1
            box.put(n)
        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(total, sorted(box.get() for _ in range(8)), threading.active_count(), threading.current_thread().name)
        local = threading.local()
        local.x = 1
        event, barrier = threading.Event(), threading.Barrier(2)
        threading.Timer(0.01, event.set).start()
        print(event.wait(5), threading.main_thread() is threading.current_thread())
    """,
    "threads outlive the main thread": """
        import threading, time
        def late():
            time.sleep(0.1)
            print("late", flush=True)
        threading.Thread(target=late).start()
        def never():
            time.sleep(30)
            print("never")
        threading.Thread(target=never, daemon=True).start()
        print("main ends")
    """,
    "exception in a thread": """
        import threading
        def fail():
            raise ValueError("in a thread")
        thread = threading.Thread(target=fail, name="worker")
        thread.start()
        thread.join()
        print("main goes on")
    """,
    "exit in a thread": """
        import sys, threading
        thread = threading.Thread(target=sys.exit, args=(3,))
        thread.start()
        thread.join()
        print("alive")
    """,
    "ThreadPoolExecutor": """
        from concurrent.futures import ThreadPoolExecutor, as_completed, wait
        with ThreadPoolExecutor(4) as pool:
            print(list(pool.map(lambda n: n * n, range(10))))
            futures = [pool.submit(divmod, 7, n) for n in (2, 0, 3)]
            wait(futures)
            print([repr(f.exception()) or f.result() for f in futures])
            print(sorted(f.result() for f in as_completed([pool.submit(pow, 2, n) for n in range(5)])))
        left_open = ThreadPoolExecutor(2)
        left_open.submit(print, "before the end", flush=True)
    """,
    "ProcessPoolExecutor": """
        from concurrent.futures import ProcessPoolExecutor
        import math
        def fail(n):
            raise ValueError(n)
        if __name__ == "__main__":
            with ProcessPoolExecutor(2) as pool:
                print(list(pool.map(math.factorial, range(8))))
                print(repr(pool.submit(fail, 3).exception()))
    """,
    "multiprocessing pool": """
        from multiprocessing import Pool
        def square(n):
            return n * n
        with Pool(3) as pool:
            print(pool.map(square, range(20)), pool.starmap(pow, [(2, 3), (3, 2)]))
            print(pool.apply_async(square, (9,)).get(10))
            print(sorted(pool.imap_unordered(square, range(5))))
    """,
    "multiprocessing process, queue, pipe and value": """
        import multiprocessing as mp
        def work(box, total, end):
            with total.get_lock():
                total.value += 5
            box.put({"from": "child"})
            end.send([1, 2])
            end.close()
        if __name__ == "__main__":
            print(mp.get_start_method())
            box, total = mp.Queue(), mp.Value("i", 1)
            ours, theirs = mp.Pipe()
            child = mp.Process(target=work, args=(box, total, theirs))
            child.start()
            print(box.get(timeout=10), ours.recv())
            child.join()
            print(total.value, child.exitcode, mp.Array("i", [1, 2])[:], mp.active_children())
    """,
    "multiprocessing shared memory and locks": """
        from multiprocessing import Event, Lock, Process, Semaphore, shared_memory
        import numpy as np
        def work(name, lock, done):
            block = shared_memory.SharedMemory(name)
            with lock:
                np.ndarray((4,), dtype="i8", buffer=block.buf)[:] += 1
            block.close()
            done.set()
        block = shared_memory.SharedMemory(create=True, size=32)
        np.ndarray((4,), dtype="i8", buffer=block.buf)[:] = range(4)
        lock, done = Lock(), Event()
        child = Process(target=work, args=(block.name, lock, done))
        child.start()
        child.join()
        print(done.is_set(), np.ndarray((4,), dtype="i8", buffer=block.buf).tolist(), Semaphore(2).acquire())
        block.close()
        block.unlink()
    """,
    "multiprocessing by spawn": """
        import multiprocessing as mp
        if __name__ == "__main__":
            context = mp.get_context("spawn")
            child = context.Process(target=print, args=("spawned",), kwargs={"flush": True})
            child.start()
            child.join()
            print(child.exitcode)
    """,
    "exception in a child process": """
        import multiprocessing as mp, sys
        def fail():
            sys.stderr = sys.stdout
            print("child", flush=True)
            sys.exit(4)
        child = mp.Process(target=fail)
        child.start()
        child.join()
        print(child.exitcode)
    """,
    "children that nobody joined": """
        import multiprocessing as mp, time
        def late():
            time.sleep(0.1)
            print("child ends", flush=True)
        mp.Process(target=late).start()
        print("parent ends", flush=True)
    """,
    "asyncio": """
        import asyncio, functools
        async def step(n):
            await asyncio.sleep(0.01 * (3 - n))
            print("step", n)
            return n
        async def numbers():
            try:
                for i in range(10):
                    yield i
                    await asyncio.sleep(0)
            finally:
                print("generator closed")
        async def main():
            print(await asyncio.gather(*(step(n) for n in range(3))))
            async for n in numbers():
                if n == 2:
                    break
            try:
                async with asyncio.timeout(0.02):
                    await asyncio.sleep(5)
            except TimeoutError:
                print("timed out")
            async with asyncio.TaskGroup() as group:
                group.create_task(step(1))
            box = asyncio.Queue()
            await box.put(1)
            print(await box.get(), await asyncio.to_thread(pow, 2, 10))
            print(await asyncio.get_running_loop().run_in_executor(None, functools.partial(divmod, 7), 2))
        asyncio.run(main())
    """,
    "asyncio subprocess and streams": """
        import asyncio, sys
        async def main():
            pipe = asyncio.subprocess.PIPE
            child = await asyncio.create_subprocess_exec(
                sys.executable, "-c", "print(input()[::-1])", stdin=pipe, stdout=pipe)
            print(await child.communicate(b"hello"), child.returncode)
        asyncio.run(main())
    """,
    "asyncio never retrieved and never awaited": """
        import asyncio, gc
        async def unused():
            pass
        async def main():
            unused()
            gc.collect()
            raise KeyError("from main")
        asyncio.run(main())
    """,
    "subprocess of Python": """
        import subprocess, sys
        print(subprocess.run([sys.executable, "-c", "import sys; print(sum(map(int, sys.stdin)))"], input="1\\n2\\n",
                             capture_output=True, text=True))
        done = subprocess.run([sys.executable, "-c", "import sys; print('e', file=sys.stderr); sys.exit(3)"],
                              capture_output=True, text=True)
        print(done.returncode, done.stderr)
        print(subprocess.check_output([sys.executable, "-c", "import numpy; print(numpy.arange(3).sum())"]))
        try:
            subprocess.run([sys.executable, "-c", "while True: pass"], timeout=0.2)
        except subprocess.TimeoutExpired as error:
            print("timeout", round(error.timeout, 1))
        try:
            subprocess.run(["no-such-program"])
        except FileNotFoundError as error:
            print(error)
    """,
    "fork by hand": """
        import os, sys
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read_end)
            os.write(write_end, b"from the child")
            os._exit(7)
        os.close(write_end)
        print(os.read(read_end, 100), os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        child = os.fork()
        if child == 0:
            print("child prints")
            sys.exit(2)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """,
    "signals": """
        import os, signal, time
        def on_alarm(number, frame):
            print("alarm", signal.Signals(number).name, frame is not None)
            raise TimeoutError("too slow")
        signal.signal(signal.SIGALRM, on_alarm)
        signal.alarm(1)
        try:
            time.sleep(10)
        except TimeoutError as error:
            print(error)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        try:
            while True:
                pass
        except TimeoutError:
            print("again")
        signal.signal(signal.SIGUSR1, lambda *_: print("usr1"))
        os.kill(os.getpid(), signal.SIGUSR1)
        print([signal.getsignal(number) for number in (signal.SIGPIPE, signal.SIGCHLD, signal.SIGTERM, signal.SIGXFSZ)])
        print(signal.getsignal(2) is signal.default_int_handler, signal.pthread_sigmask(signal.SIG_BLOCK, ()))
    """,
}

_FILES = {
    "tempfile, pathlib and shutil": """
        import os, pathlib, shutil, tempfile
        with tempfile.TemporaryDirectory() as folder:
            place = pathlib.Path(folder) / "a" / "b.txt"
            place.parent.mkdir()
            print(place.write_text("text\\nmore\\n"), place.read_text().splitlines(), place.stat().st_size)
            shutil.copytree(place.parent, place.parent.parent / "c")
            print(sorted(p.relative_to(folder).as_posix() for p in pathlib.Path(folder).rglob("*")))
        print(pathlib.Path(folder).exists())
        with tempfile.NamedTemporaryFile("w+", suffix=".x") as file:
            file.write("abc")
            file.seek(1)
            print(file.read(), pathlib.Path(file.name).suffix)
        with tempfile.SpooledTemporaryFile() as file:
            file.write(b"x" * 100)
            print(file.tell())
    """,
    "files in the working directory": """
        import os
        with open("notes.txt", "w") as file:
            print(file.write("one\\ntwo\\n"))
        with open("notes.txt", "a+") as file:
            file.write("three\\n")
            file.seek(0)
            print(file.readlines())
        os.rename("notes.txt", "renamed.txt")
        os.mkdir("folder")
        os.symlink("renamed.txt", "link")
        print(sorted(os.listdir(".")), os.path.getsize("renamed.txt"), open("link").readline())
        print(oct(os.stat("folder").st_mode), oct(os.stat("renamed.txt").st_mode))
        try:
            open("absent.txt")
        except FileNotFoundError as error:
            print(error)
    """,
    "modules of the program": """
        import importlib, pathlib, sys
        pathlib.Path("helper.py").write_text("def greet(name):\\n    return f'hello {name}'\\n")
        sys.path.insert(0, ".")
        import helper
        print(helper.greet("you"), helper.__name__)
        try:
            import no_such_module
        except ModuleNotFoundError as error:
            print(error, error.name)
    """,
    "mmap, io and descriptors": """
        import io, mmap, os
        with open("m.bin", "wb+") as file:
            file.truncate(4096)
            with mmap.mmap(file.fileno(), 0) as view:
                view[:5] = b"hello"
            print(file.read(5))
        print(io.StringIO("a\\nb").readlines(), io.BytesIO(b"xyz").read(2), mmap.mmap(-1, 10).read(3))
        with open(os.devnull, "w") as null:
            print(null.write("gone"), os.isatty(null.fileno()))
    """,
    "matplotlib to a buffer": """
        import io
        import matplotlib
        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
        figure, axes = plt.subplots(figsize=(2, 2))
        axes.plot([1, 2, 3], [1, 4, 9])
        axes.set_title("$x^2$")
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png")
        print(buffer.getvalue()[:8], plt.get_backend(), len(figure.axes))
    """,
}

_STREAMS = {
    "output streams": """
        import sys
        print("out", flush=True)
        print("err", file=sys.stderr)
        sys.stdout.write("no newline")
        sys.stdout.flush()
        sys.stdout.buffer.write(b"\\nbytes \\xc3\\xa9\\n")
        sys.stdout.buffer.flush()
        sys.stderr.write("é\\ud800\\n")
        print("a", "b", sep="-", end="!\\n")
        print(sys.stdout.writable(), sys.stdout.closed, sys.stdout.line_buffering in (True, False))
    """,
    "stdout replaced and redirected": """
        import contextlib, io, sys
        with contextlib.redirect_stdout(io.StringIO()) as caught:
            print("hidden")
        print(repr(caught.getvalue()), flush=True)
        sys.stdout.reconfigure(encoding="utf-8")
        print("done é", flush=True)
    """,
    "stdout wrapped anew": """
        import io, sys
        sys.stdout = io.TextIOWrapper(sys.stdout.buffer, encoding="utf-8", line_buffering=True)
        sys.stdin = io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8")
        print("wrapped é", sys.stdin.read() == "")
    """,
    "fast output of contest programs": """
        import io, os, sys
        read = sys.stdin.buffer.readline
        out = io.BytesIO()
        sys.stdout = io.TextIOWrapper(out)
        print("collected", read() == b"")
        sys.stdout.flush()
        os.write(1, out.getvalue())
    """,
    "a buffered writer on stdout that is never flushed": """
        import os
        out = os.fdopen(1, "w", closefd=False)
        out.write("written by a writer of its own\\n")
    """,
    "a large output": """
        for i in range(20000):
            print(i, "x" * 20)
    """,
    "a large line": "print('y' * 900_000)\n",
    "print without newline at the end": "print('end', end='')\n",
    "closed stdout": """
        import sys
        print("before")
        sys.stdout.close()
    """,
    "print after stdout was closed": """
        import sys
        print("before")
        sys.stdout.close()
        print("after")
    """,
    "unencodable output": "print('\\ud800')\n",
    "exit handlers": """
        import atexit
        atexit.register(print, "first registered, last run")
        @atexit.register
        def bye():
            print("last registered, first run")
        print("body")
    """,
    "exit handlers after an error": """
        import atexit
        atexit.register(print, "handler ran")
        raise RuntimeError("body")
    """,
    "an exit handler that fails": """
        import atexit
        class Fail:
            def __repr__(self):
                return "Fail()"
            def __call__(self):
                raise ValueError("in a handler")
        atexit.register(Fail())
        print("body")
    """,
    "excepthook": """
        import sys
        def hook(kind, error, trace):
            print("hook", kind.__name__, error, trace.tb_lineno)
        sys.excepthook = hook
        raise ValueError("x")
    """,
    "own displayhook and unraisable": """
        import sys
        class Bad:
            def __del__(self):
                raise ValueError("in del")
        sys.unraisablehook = lambda seen: print("unraisable", seen.exc_value)
        Bad()
        sys.stdout.flush()
    """,
}

_ENDINGS = {
    "exit 0": "import sys\nprint('a')\nsys.exit()\n",
    "exit 3": "import sys\nsys.exit(3)\n",
    "exit -1": "import sys\nsys.exit(-1)\n",
    "exit 256": "import sys\nsys.exit(256)\n",
    "every other exit code": """
        import os, sys
        for code in range(256):
            child = os.fork()
            if child == 0:
                sys.exit(code)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == code
        print("all seen")
    """,
    **{f"exit {code}": f"raise SystemExit({code})\n" for code in (111, 113, 117, 120, 251, 255)},
    "exit True": "import sys\nsys.exit(True)\n",
    "exit with a text": "import sys\nprint('a')\nsys.exit('the reason')\n",
    "exit with a tuple": "raise SystemExit(1, 2)\n",
    "exit with a huge number": "import sys\nsys.exit(10**30)\n",
    "exit by builtin": "exit(4)\n",
    "quit by builtin": "quit()\n",
    "exit from a function in try": "import sys\ntry:\n    sys.exit(5)\nfinally:\n    print('finally')\n",
    "os._exit": "import os\nprint('a', flush=True)\nos._exit(9)\n",
    "keyboard interrupt": "raise KeyboardInterrupt\n",
    "abort": "import os\nos.abort()\n",
    "killed by itself": "import os, signal\nprint('a', flush=True)\nos.kill(os.getpid(), signal.SIGKILL)\n",
    "terminated by itself": "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n",
    "interrupted by itself": "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n",
    "assertion": "def check(x):\n    assert x > 1, f'{x} is small'\n\ncheck(0)\n",
    "error in the last expression": "x = [1, 2]\nprint('first')\nx[\n    5\n]\n",
    "error in a nested call": """
        def outer(n):
            return inner(n) + 1

        def inner(n):
            return 10 / n

        print("before")
        outer(
            0
        )
    """,
    "chained exceptions": """
        def parse(text):
            try:
                return int(text)
            except ValueError as error:
                raise RuntimeError("cannot parse") from error
        try:
            parse("x")
        except RuntimeError:
            raise KeyError("while handling")
    """,
    "suppressed context": "try:\n    1 / 0\nexcept ZeroDivisionError:\n    raise ValueError('x') from None\n",
    "exception group": """
        def fail(n):
            raise ValueError(n)
        errors = []
        for n in range(2):
            try:
                fail(n)
            except ValueError as error:
                errors.append(error)
        raise ExceptionGroup("several", [*errors, ExceptionGroup("inner", [TypeError("t")])])
    """,
    "except star and notes": """
        try:
            raise ExceptionGroup("g", [ValueError(1), TypeError(2)])
        except* ValueError as group:
            print(group.exceptions)
        except* TypeError as group:
            print(group)
        error = ValueError("with a note")
        error.add_note("the note")
        raise error
    """,
    "exception with an odd text": "raise ValueError('line one\\nline two é \\ud800')\n",
    "exception whose text fails": """
        class Odd(Exception):
            def __str__(self):
                raise RuntimeError
        raise Odd
    """,
    "exception class in the program": "class MyError(Exception):\n    pass\n\nraise MyError('mine')\n",
    "recursion error": "def f(n):\n    return f(n + 1)\n\nf(0)\n",
    "name error with a suggestion": "counter = 1\nprint(countr)\n",
    "attribute error with a suggestion": "import math\nmath.sqroot(2)\n",
    "import error": "from math import no_such_name\n",
    "syntax error": "print('never')\nif True\n    pass\n",
    "syntax error in an f-string": "x = f'{1 +}'\n",
    "unterminated string": "s = 'abc\nprint(s)\n",
    "unclosed bracket": "x = (1,\nprint(x)\n",
    "indentation error": "def f():\nreturn 1\n",
    "unindent error": "if True:\n        a = 1\n    b = 2\n",
    "tab error": "if True:\n\tx = 1\n        y = 2\n",
    "return outside a function": "x = 1\nreturn x\n",
    "await outside a function": "import asyncio\nawait asyncio.sleep(0)\n",
    "syntax error in eval": "print(1)\neval('1 +')\n",
    "error in exec of a text": "exec('a = 1\\nb = a / 0')\n",
    "error inside a library": "import json\njson.loads('{')\n",
    "traceback printed by the program": """
        import traceback
        def fail():
            raise ValueError("shown by hand")
        try:
            fail()
        except ValueError:
            traceback.print_exc()
            print(traceback.format_exc())
        print(traceback.extract_stack()[-1].line)
    """,
    "error in a comprehension and a lambda": "f = lambda x: [1 / y for y in x]\nprint(f([1]))\nf([1, 0])\n",
    "error in a generator": "def g():\n    yield 1\n    raise ValueError('g')\n\nfor x in g():\n    print(x)\n",
    "error in a class body": "class A:\n    x = 1\n    y = z\n",
    "error in a decorator": "def d(f):\n    raise TypeError('d')\n\n@d\ndef f():\n    pass\n",
    "error in with": """
        import contextlib
        @contextlib.contextmanager
        def managed():
            print("enter")
            try:
                yield
            finally:
                print("leave")
        with managed():
            raise OSError(2, "No such thing", "name")
    """,
    "stop iteration in a coroutine": "async def f():\n    raise StopIteration\n\nf().send(None)\n",
    "declared latin-1": "# -*- coding: latin-1 -*-\nprint(len('é'))\n",
    "byte order mark": "\ufeffprint('after the mark')\n",
    "carriage returns": "x = 1\r\nprint(x)\r\nprint('a\\r\\nb')\r\n",
    "form feed and tabs": "if True:\n\tprint('tab')\n\x0c\nprint('after')\n",
    "form feed before an error": "x = 0\n\x0c\ns = 'a\x0c\u2028b'\nprint(len(s))\n1 / x\n",
    "no newline at the end": "print(1)",
    "empty": "",
    "only a comment": "# nothing\n",
    "identifiers that are not ASCII": "π = 3\nдлина = 4\nprint(π * длина, 'ﬁ'.isidentifier())\n",
    "future annotations": """
        from __future__ import annotations
        def f(x: Unknown) -> None: ...
        print(f.__annotations__)
    """,
    "future import too late": "x = 1\nfrom __future__ import annotations\n",
    "memory error raised by hand": "raise MemoryError('by hand')\n",
    "warnings as the last thing": "import warnings\nwarnings.warn('last')\n",
}  # fmt: skip

_WITH_STDIN = (
    Snippet("input", "name = input('name? ')\nprint(f'hello {name}', input(), sep='|')\n", "you\nthere\n"),
    Snippet("input past the end", "print(input())\ninput()\n", "only\n"),
    Snippet("no input at all", "print(repr(open(0).read()))\n"),
    Snippet("stdin as bytes", "import sys\nprint(sys.stdin.buffer.read())\n", "é\r\n\n\0x"),
    Snippet("stdin that is not read", "print('done')\n", "x" * 1_000_000),
    Snippet(
        "input until the end",
        "while True:\n    try:\n        print(int(input()) * 2)\n    except EOFError:\n        break\n",
        "1\n2\n3",
    ),
    Snippet("stdin by lines", "import sys\nprint([line for line in sys.stdin], repr(sys.stdin.read()))\n", "a\nb\r\nc"),
    Snippet(
        "stdin by readline",
        "import sys\nprint(sys.stdin.readline(), sys.stdin.isatty(), sys.stdin.readlines())\n",
        "x\ny\nz\n",
    ),
    Snippet(
        "large stdin",
        "import sys\nprint(sum(map(int, sys.stdin.read().split())))\n",
        "\n".join(map(str, range(200_000))),
    ),
    Snippet(
        "stdin shared with a child",
        "import subprocess, sys\n"
        "print(subprocess.run([sys.executable, '-c', 'print(input())'], capture_output=True).stdout)\n",
        "for the child\n",
    ),
)

SNIPPETS = (
    *_snippets(_NUMERICS, _DATA, _MATHEMATICS, _LANGUAGE, _CONCURRENCY, _FILES, _STREAMS, _ENDINGS),
    *_WITH_STDIN,
)
