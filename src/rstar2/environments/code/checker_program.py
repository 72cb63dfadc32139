"""Runs the hidden tests without the program. It runs in the sandbox: `CodeJudge` sends its source text after that of
`values`.

The tests are ordinary Python, in which the program's names are `Remote` objects. A call of one is looked up among the
answers that the program gave in another process. A call without an answer is recorded, and the statement that needs its
value is skipped; when the program has answered, the tests run again from the start. The verdict comes from a run in
which no answer was missing.

stdin is a JSON object with `sources`, `names` and `answers`; the last line of stdout is the report.
"""

import ast
import builtins
import hashlib
import importlib
import json
import random
import sys
from collections.abc import Callable
from typing import Any

if __name__ != "__main__":  # In the sandbox both are one file.
    from rstar2.environments.code.values import decode, encode

FORGEABLE = {"startswith", "endswith", "issubset", "issuperset", "isdisjoint"}
"""Methods of plain data that test a hidden argument. An object of the program must not stand in for the data."""
BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift", "matmul")
REFUSED = (*BINARY, *(f"r{name}" for name in BINARY), "lt", "le", "gt", "ge", "index", "neg", "pos", "round")
"""Operators that tests cannot use on the program's objects: the object would get a hidden value and answer at will."""
MESSAGE_CHARS = 300


class Need(BaseException):
    """The statement needs a value that the program was not yet asked for."""


class Lost(BaseException):
    """The program ended before it answered. Not an Exception, because a test that expects an exception must not pass by
    it."""


class Remote:
    """A name or an object of the program, or the result of a call that has no answer yet.

    Invariant: no operation lets the program compare a hidden value. An object of the program is never equal to plain
    data, and it has no arithmetic with plain data.
    """

    __slots__ = ("_is_known", "_reference")

    def __init__(self, reference: str, is_known: bool) -> None:
        object.__setattr__(self, "_reference", reference)
        object.__setattr__(self, "_is_known", is_known)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return CALLS.make("call", self, list(arguments), named)

    def call_in_place(self, *arguments: Any, **named: Any) -> None:
        """Make a call that is a whole statement, and apply its changes to the arguments. In other places changes are
        ignored: a program could empty a list that the test still compares."""
        changed = CALLS.make("call", self, list(arguments), named, in_place=True)
        for argument, now in zip(arguments, changed, strict=False):
            change(argument, now)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or (self._is_known and name in FORGEABLE):
            raise AttributeError(f"an object of the program has no {name} for a test")
        require_known(self)
        return CALLS.make("get", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        CALLS.make("set", self, name, value)

    def __getitem__(self, key: Any) -> Any:
        require_known(self)
        return CALLS.make("item", self, key)

    def __eq__(self, other: object) -> bool:
        require_known(self, other)
        if not isinstance(other, Remote):
            return False
        return self._reference == other._reference or bool(CALLS.value("equal", self, other))

    def __hash__(self) -> int:
        require_known(self)
        return hash(self._reference)

    def __iter__(self) -> Any:
        return iter(CALLS.value("iter", self))


def require_known(*values: Any) -> None:
    if any(isinstance(value, Remote) and not value._is_known for value in values):
        raise Need


def _define_questions() -> None:
    def question(name: str) -> Callable[[Remote], Any]:
        return lambda self: CALLS.value(name, self)

    def refusal(self: Remote, *others: Any) -> Any:
        require_known(self, *others)
        return NotImplemented

    for name in ("next", "bool", "len", "str", "repr", "int", "float", "abs"):
        setattr(Remote, f"__{name}__", question(name))
    for name in REFUSED:
        setattr(Remote, f"__{name}__", refusal)


class CallLog:
    """The calls that the tests make to the program, in order."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = answers
        self.made: list[dict[str, Any]] = []
        self.steps: list[int] = []
        """The numbers of the running statements, the innermost last."""
        self._num_equal: dict[str, int] = {}

    def make(self, kind: str, *parts: Any, in_place: bool = False) -> Any:
        """The value of a call; an unknown `Remote` if it has no answer. With `in_place`, the changed arguments
        instead."""
        step = self.steps[-1] if self.steps else 0
        encoded = [encode(part, _refer) for part in parts]
        # The id depends on the call's content, so that it is the same in the next run, which skips fewer statements.
        text = json.dumps([step, kind, encoded])
        self._num_equal[text] = number = self._num_equal.get(text, 0) + 1
        name = f"{hashlib.sha256(text.encode()).hexdigest()[:20]}-{number}"
        self.made.append({"id": name, "step": step, "kind": kind, "parts": encoded})
        if name not in self.answers:
            return () if in_place else Remote(name, is_known=False)
        answer = self.answers[name]
        if "lost" in answer:
            raise Lost(answer["lost"])
        if "raised" in answer:
            raise _error(*answer["raised"])
        return answer.get("arguments", ()) if in_place else _decoded(answer["value"])

    def value(self, kind: str, *parts: Any) -> Any:
        require_known(*parts)
        found = self.make(kind, *parts)
        require_known(found)
        return found


def _refer(value: Any) -> dict[str, str]:
    if isinstance(value, Remote):
        return {"ref": value._reference}
    name = getattr(value, "__name__", "")
    if name and getattr(builtins, name, None) is value:
        return {"ref": f"builtin:{name}"}
    raise TypeError(f"a test passes a {type(value).__name__} to the program, which is no plain data")


def _decoded(document: Any) -> Any:
    try:
        return decode(document, lambda reference: Remote(str(reference), is_known=True))
    except Exception as error:
        raise Lost(f"the program's answer is no value: {error}") from error


def in_place(function: Any) -> Any:
    return function.call_in_place if isinstance(function, Remote) else function


def change(argument: Any, document: Any) -> None:
    """Give the test's own list, dictionary or set the content of the program's copy after the call."""
    now = _decoded(document)
    if isinstance(argument, list) and isinstance(now, list):
        argument[:] = now
    elif (isinstance(argument, dict) and isinstance(now, dict)) or (isinstance(argument, set) and isinstance(now, set)):
        argument.clear()
        argument.update(now)


def _error(name: str, message: str) -> BaseException:
    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        try:
            return kind(message)
        except TypeError:
            return Exception(message)
    return Lost(f"{name}: {message}")


class Statement:
    """One statement of the tests: an assert, or an expression."""

    def __init__(self, number: int, is_test: bool) -> None:
        self._number, self._is_test = number, is_test

    def __enter__(self) -> None:
        CALLS.steps.append(self._number)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _trace: Any) -> bool:
        CALLS.steps.pop()
        if error is None:
            if self._is_test:
                PASSED.add(self._number)
            return False
        if isinstance(error, Need):
            return True
        if isinstance(error, Lost) or (self._is_test and isinstance(error, Exception)):
            FAILED.setdefault(self._number, describe(error))
            return True
        return False


def describe(error: BaseException) -> str:
    name = "" if isinstance(error, Lost) else f"{type(error).__name__}: "
    return f"{name}{str(error)[:MESSAGE_CHARS]}".removesuffix(": ")


def strict_allclose(numpy: Any) -> Callable[..., bool]:
    """numpy calls an empty list close to any number: a program could pass by returning nothing."""
    allclose = numpy.allclose

    def is_close(a: Any, b: Any, *arguments: Any, **named: Any) -> bool:
        return bool(numpy.size(a)) == bool(numpy.size(b)) and bool(allclose(a, b, *arguments, **named))

    return is_close


class Numbered(ast.NodeTransformer):
    """Wraps every assert and every expression statement in a `Statement`. An assert inside a `try` is not a test, since
    the test may catch it; neither is one with a constant condition."""

    def __init__(self) -> None:
        self.num_steps = 0
        self.tests: list[int] = []
        self._num_tries = 0

    def visit_Try(self, node: ast.Try) -> ast.AST:
        self._num_tries += 1
        visited = self.generic_visit(node)
        self._num_tries -= 1
        return visited

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        if self._num_tries or isinstance(node.test, ast.Constant):
            return node
        return self._step(node, is_test=True)

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        if isinstance(node.value, ast.Constant | ast.Yield):
            return node
        if isinstance(node.value, ast.Call):
            node.value.func = ast.Call(ast.Name("in_place__", ast.Load()), [node.value.func], [])
        return self._step(node, is_test=False)

    def _step(self, node: ast.stmt, is_test: bool) -> ast.AST:
        self.num_steps += 1
        if is_test:
            self.tests.append(self.num_steps)
        arguments: list[ast.expr] = [ast.Constant(self.num_steps), ast.Constant(is_test)]
        item = ast.withitem(ast.Call(ast.Name("Step__", ast.Load()), arguments, []))
        return ast.fix_missing_locations(ast.copy_location(ast.With([item], [node]), node))


CALLS = CallLog({})
PASSED: set[int] = set()
FAILED: dict[int, str] = {}


def main() -> None:
    job = json.load(sys.stdin)
    CALLS.answers = job["answers"]
    _define_questions()
    random.seed(0)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(0)
        numpy.allclose = strict_allclose(numpy)
    namespace: dict[str, Any] = {"__name__": "tests", "Step__": Statement, "in_place__": in_place}
    namespace |= {name: importlib.import_module(name) for name in job["modules"]}
    namespace |= {name: Remote(f"name:{name}", is_known=True) for name in job["names"]}
    numbered = Numbered()
    errors: list[str] = []
    for source in job["sources"]:
        try:
            tree = numbered.visit(ast.parse(source))
            exec(compile(tree, "<tests>", "exec", dont_inherit=True), namespace)
        except BaseException as error:
            errors.append(describe(error) or type(error).__name__)
    report = {
        "calls": CALLS.made,
        "passed": sorted(PASSED - FAILED.keys()),
        "failed": sorted(FAILED.items()),
        "tests": numbered.tests,
        "errors": errors,
    }
    print("\n" + json.dumps(report))
