"""A programming task: its question, and the tests that the model never sees."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class StdinTest:
    """The program reads `stdin` and must print `stdout`."""

    stdin: str
    stdout: str


@dataclass(frozen=True, slots=True)
class CallTest:
    """A function of the program gets `arguments` and must return `expected`. All values are plain data."""

    path: tuple[str, ...]
    """The name of the function; or the names of a class, which is made without arguments, and of its method."""
    arguments: tuple[Any, ...]
    expected: Any
    is_json: bool = False
    """Whether `expected` comes from JSON, which writes a tuple as a list."""


@dataclass(frozen=True, slots=True)
class CallTests:
    tests: tuple[CallTest, ...]


@dataclass(frozen=True, slots=True)
class Asserts:
    """Tests as Python sources, which run in order in one namespace."""

    sources: tuple[str, ...]
    names: tuple[str, ...]
    """The names that the program must define."""
    modules: tuple[str, ...] = ()
    """Standard library modules that the tests use without importing them."""
    calls: CallTests | None = field(default=None, compare=False)
    """The tests as calls, if all are `assert f(…) == …` with literals: they can be judged without running them."""


Tests = tuple[StdinTest, ...] | CallTests | Asserts


@dataclass(frozen=True, slots=True)
class CodeTask:
    question: str
    tests: Tests
    prelude: str = ""
    """Code to run before the program: imports and helpers that the question shows or its data set promises."""
    solution: str | None = None
    """A correct program, if the row has one."""
