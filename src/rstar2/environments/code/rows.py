"""Converts a row of a data set into a `CodeTask`. Pure.

The row's columns determine its format: MBPP (`test_list`), HumanEval (`test` and `entry_point`), LiveCodeBench
(`question_content`) or the plain one (`tests`). A missing or invalid column is a UserError that names the row.
"""

import ast
import base64
import binascii
import builtins
import io
import json
import pickle
import sys
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rstar2.environments.code.task import Asserts, CallTest, CallTests, CodeTask, StdinTest
from rstar2.errors import UserError

MAX_TEST_BYTES = 1 << 28
"""The maximum unpacked size of a row's private tests: far above LiveCodeBench's largest, but no zip bomb."""

RUNS_TEXT = {"eval", "exec", "compile"}

ANSWER_NOTE = "Put the complete program into one ```python block between <answer> and </answer>."
STDIN_NOTE = "Write a Python program that reads standard input and prints the result to standard output."

_LIVE_CODE_MODULES = (
    *("string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics"),
    *("itertools", "functools", "operator", "io", "sys", "json"),
)
LIVE_CODE_PRELUDE = "\n".join(
    [
        *(f"from {name} import *" for name in (*_LIVE_CODE_MODULES, "builtins", "typing")),
        f"import {', '.join(_LIVE_CODE_MODULES)}",
        "sys.setrecursionlimit(50000)",
    ]
)
"""The imports that LiveCodeBench's own harness puts before a program."""

FORMATS = (
    "test_list (MBPP), test and entry_point (HumanEval), question_content with private_test_cases (LiveCodeBench), or "
    "prompt and tests"
)


@dataclass(frozen=True, slots=True)
class CodeRow:
    """A row, and its name in errors."""

    columns: Mapping[str, Any]
    name: str

    @property
    def place(self) -> str:
        """The start of an error message; empty if the row has no name."""
        return f"row {self.name}: " if self.name else ""

    def wrong(self, column: str, what: str) -> UserError:
        return UserError(f"{self.place}column {column!r} {what}")

    def text(self, *columns: str) -> str:
        """The text of the first of these columns that the row has."""
        for column in columns:
            value = self.columns.get(column)
            if isinstance(value, str) and value.strip():
                return value
            if value is not None:
                raise self.wrong(column, "must be a text that is not empty")
        raise UserError(f"{self.place}there is no column {' or '.join(map(repr, columns))}")

    def optional_text(self, column: str) -> str:
        return self.text(column) if self.columns.get(column) else ""

    def sources(self, column: str) -> tuple[str, ...]:
        """A column's list of Python sources; empty if the column is empty or missing."""
        values = self.columns.get(column)
        if values is None:
            return ()
        if not _is_list(values) or not all(isinstance(value, str) for value in values):
            raise self.wrong(column, "must be a list of texts")
        return tuple(values)

    def parsed(self, column: str, source: str) -> ast.Module:
        try:
            return ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise self.wrong(column, f"is not Python: {error}") from error


def read_task(columns: Mapping[str, Any], name: str) -> CodeTask:
    row = CodeRow(columns, name)
    if "test_list" in columns:
        return _mbpp(row)
    if "entry_point" in columns:
        return _human_eval(row)
    if "question_content" in columns or "private_test_cases" in columns:
        return _live_code(row)
    if "tests" in columns:
        return _plain(row)
    raise UserError(
        f"{row.place}no column holds tests. A row needs {FORMATS}; this one has {', '.join(columns) or 'no column'}"
    )


def _mbpp(row: CodeRow) -> CodeTask:
    tests = row.sources("test_list")
    if not tests:
        raise row.wrong("test_list", "has no test")
    setup = (*row.sources("test_imports"), *filter(None, [row.optional_text("test_setup_code")]))
    solution = row.optional_text("code") or None
    asserts = _asserts(row, "test_list", (*setup, *tests, *row.sources("challenge_test_list")), solution)
    shown = (
        f"{row.text('text', 'prompt')}\n\nThe program must pass this test, among others:\n```python\n{tests[0]}\n```"
    )
    return CodeTask(f"{shown}\n\n{ANSWER_NOTE}", asserts, solution=solution)


def _human_eval(row: CodeRow) -> CodeTask:
    prompt, entry_point, test = row.text("prompt"), row.text("entry_point"), row.text("test")
    tree = row.parsed("prompt", prompt)
    is_stub = [getattr(node, "name", None) == entry_point for node in tree.body]
    if not any(is_stub):
        raise row.wrong("prompt", f"does not define {entry_point!r}, the entry_point")
    helpers = [node for node, is_entry in zip(tree.body, is_stub, strict=True) if not is_entry]
    sources = (ast.unparse(ast.Module(helpers, [])), test, f"check({entry_point})")
    if "check" not in _stored(row.parsed("test", test)):
        raise row.wrong("test", "does not define check")
    completion = row.optional_text("canonical_solution")
    return CodeTask(
        f"Complete this Python function:\n```python\n{prompt.strip()}\n```\n\n{ANSWER_NOTE}",
        _asserts(row, "test", sources, None, (entry_point,)),
        prelude=prompt,
        solution=prompt + completion if completion else None,
    )


def _live_code(row: CodeRow) -> CodeTask:
    tests = [*_cases(row, "public_test_cases"), *_cases(row, "private_test_cases")]
    if not tests:
        raise row.wrong("private_test_cases", "and 'public_test_cases' have no test")
    question, starter = row.text("question_content"), row.optional_text("starter_code")
    if _field(row, tests[0], "testtype", "stdin") == "stdin":
        shown = f"{question}\n\n{STDIN_NOTE}"
        return CodeTask(f"{shown}\n\n{ANSWER_NOTE}", _stdin_tests(row, tests), LIVE_CODE_PRELUDE)
    function = _function(row)
    path = ("Solution", function) if "class Solution" in starter else (function,)
    calls = tuple(
        CallTest(path, _json_lines(row, _field(row, case, "input")), expected, is_json=True)
        for case in tests
        for expected in _json_lines(row, _field(row, case, "output"))[:1]
    )
    shown = f"{question}\n\nStart from this code:\n```python\n{starter.rstrip()}\n```" if starter else question
    return CodeTask(f"{shown}\n\n{ANSWER_NOTE}", CallTests(calls), LIVE_CODE_PRELUDE)


def _plain(row: CodeRow) -> CodeTask:
    prompt, solution = row.text("prompt"), row.optional_text("solution") or None
    public, hidden = _list(row, "public_tests"), _list(row, "tests")
    tests = [*public, *hidden]
    if not hidden:
        raise row.wrong("tests", "has no test")
    if all(isinstance(test, str) for test in tests):
        shown = "".join(f"\n```python\n{test}\n```" for test in public)
        note = f"\n\nThe program must pass these tests, among others:{shown}" if public else ""
        asserts = _asserts(row, "tests", tuple(tests), solution)
        return CodeTask(f"{prompt}{note}\n\n{ANSWER_NOTE}", asserts, solution=solution)
    if not all(isinstance(test, dict) for test in tests):
        raise row.wrong("tests", "must be a list of {input, output}, or a list of texts with asserts")
    cases = _stdin_tests(row, tests)
    shown = "".join(f"\nInput:\n{case.stdin}\nOutput:\n{case.stdout}\n" for case in cases[: len(public)])
    note = f"\n\nExamples:{shown}" if public else ""
    return CodeTask(f"{prompt}{note}\n\n{STDIN_NOTE}\n\n{ANSWER_NOTE}", cases, solution=solution)


def _asserts(
    row: CodeRow, column: str, sources: Sequence[str], solution: str | None, names: Iterable[str] = ()
) -> Asserts:
    """Make the tests. Names that they use and nothing else defines belong to the program; so do those that the solution
    defines, even if Python has a function of that name."""
    trees = [row.parsed(column, source) for source in sources]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    if not any(isinstance(node, ast.Assert) for node in nodes):
        raise row.wrong(column, "has no assert")
    loaded = {node.id for node in nodes if isinstance(node, ast.Name)}
    stored = {name for tree in trees for name in _stored(tree)}
    if unsafe := loaded & RUNS_TEXT:
        raise row.wrong(column, f"uses {min(unsafe)}, with which a program could run code among its tests")
    defined = _definitions(row.parsed("solution" if "solution" in row.columns else "code", solution or ""))
    called = {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    missing = {name for name in loaded - stored if not hasattr(builtins, name)}
    modules = (missing & sys.stdlib_module_names) - defined - called
    own = (missing - modules) | ((loaded & defined) - stored) | set(names)
    if not own:
        raise row.wrong(column, "calls no function of the program")
    return Asserts(tuple(sources), tuple(sorted(own)), tuple(sorted(modules)), _calls(trees, own))


def _calls(trees: Sequence[ast.Module], names: set[str]) -> CallTests | None:
    """Tests as calls; None unless all are `assert f(…) == …` of literals, with a function of the program."""
    tests = []
    for statement in (statement for tree in trees for statement in tree.body):
        match statement:
            case ast.Assert(
                test=ast.Compare(
                    left=ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]),
                    ops=[ast.Eq()],
                    comparators=[expected],
                )
            ) if name in names:
                try:
                    given = tuple(ast.literal_eval(argument) for argument in arguments)
                    tests.append(CallTest((name,), given, ast.literal_eval(expected)))
                except (ValueError, TypeError, RecursionError, MemoryError):
                    return None
            case _:
                return None
    return CallTests(tuple(tests))


def _definitions(tree: ast.Module) -> set[str]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {node.name for node in tree.body if isinstance(node, kinds)}


def _stored(tree: ast.Module) -> set[str]:
    """Every name that the source binds, at any depth."""
    names = set[str]()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.ExceptHandler(name=str(name)):
                names.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.alias(name=name, asname=other):
                names.add(other or name.partition(".")[0])
    return names


def _stdin_tests(row: CodeRow, cases: Sequence[Mapping[str, Any]]) -> tuple[StdinTest, ...]:
    return tuple(StdinTest(_field(row, case, "input"), _field(row, case, "output")) for case in cases)


def _field(row: CodeRow, case: Mapping[str, Any], key: str, default: str | None = None) -> str:
    value = case.get(key, default)
    if not isinstance(value, str):
        raise UserError(f"{row.place}a test has no text {key!r}")
    return value


def _list(row: CodeRow, column: str) -> list[Any]:
    values = row.columns.get(column)
    if values is None:
        return []
    if not _is_list(values):
        raise row.wrong(column, "must be a list")
    return list(values)


def _is_list(values: Any) -> bool:
    return isinstance(values, Sequence) and not isinstance(values, str | bytes)


def _cases(row: CodeRow, column: str) -> list[dict[str, Any]]:
    """The tests of a column: a list, its JSON, or LiveCodeBench's compressed form of private tests."""
    value = row.columns.get(column)
    if isinstance(value, str) and value.strip():
        try:
            value = json.loads(value)
        except ValueError:
            value = _unpacked(row, column, value)
    if value is None or value == "":
        return []
    if not _is_list(value) or not all(isinstance(case, dict) for case in value):
        raise row.wrong(column, "must be a list of {input, output, testtype}, or that as JSON")
    return list(value)


def _unpacked(row: CodeRow, column: str, text: str) -> Any:
    """Unpack base64 of zlib of a pickled JSON text. Every import of the pickle is refused, so that it runs no code."""
    try:
        unpacker = zlib.decompressobj()
        data = unpacker.decompress(base64.b64decode(text.encode(), validate=True), MAX_TEST_BYTES)
        if unpacker.unconsumed_tail:
            raise row.wrong(column, f"is larger than {MAX_TEST_BYTES} bytes when it is unpacked")
        return json.loads(_PlainUnpickler(io.BytesIO(data)).load())
    except (binascii.Error, zlib.error, pickle.UnpicklingError, EOFError, ValueError, TypeError) as error:
        if isinstance(error, UserError):
            raise
        raise row.wrong(column, f"is neither JSON nor LiveCodeBench's compressed form: {error}") from error


class _PlainUnpickler(pickle.Unpickler):
    """Unpickles only texts, numbers and lists of them. A pickle can do harm only through its imports."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"the pickle would import {module}.{name}, which could run code")


def _json_lines(row: CodeRow, text: str) -> tuple[Any, ...]:
    try:
        return tuple(json.loads(line) for line in text.splitlines() if line.strip())
    except (ValueError, RecursionError) as error:
        raise UserError(f"{row.place}a test of a function must have JSON values, one on a line: {error}") from error


def _function(row: CodeRow) -> str:
    metadata = row.columns.get("metadata")
    if isinstance(metadata, str):
        try:
            metadata = json.loads(metadata)
        except ValueError as error:
            raise row.wrong("metadata", f"is not JSON: {error}") from error
    name = metadata.get("func_name") if isinstance(metadata, dict) else None
    if not isinstance(name, str) or not name.isidentifier():
        raise row.wrong("metadata", "must hold func_name, the name of the function that is tested")
    return name
