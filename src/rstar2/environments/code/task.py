"""A programming task: what the model is asked, and the tests that it never sees."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class StdinTest:
    """The program reads `stdin` and must print `stdout`."""

    stdin: str
    stdout: str


@dataclass(frozen=True, slots=True)
class CallTest:
    """A function of the program gets `arguments` and must return `expected`. All are plain data."""

    path: tuple[str, ...]
    """The name of the function; or those of a class, which is made without arguments, and of its method."""
    arguments: tuple[Any, ...]
    expected: Any
    is_json: bool = False
    """Whether `expected` was JSON, which writes a tuple as a list."""


@dataclass(frozen=True, slots=True)
class Calls:
    tests: tuple[CallTest, ...]


@dataclass(frozen=True, slots=True)
class Asserts:
    """Tests in Python. They run in one namespace, one after another."""

    sources: tuple[str, ...]
    names: tuple[str, ...]
    """The names that the program must define."""
    modules: tuple[str, ...] = ()
    """Modules of the standard library that the tests use and do not import."""
    calls: Calls | None = field(default=None, compare=False)
    """The same tests, if all of them are `assert f(…) == …` with literals: these need not be run to be judged."""


Tests = tuple[StdinTest, ...] | Calls | Asserts


@dataclass(frozen=True, slots=True)
class CodeTask:
    question: str
    tests: Tests
    prelude: str = ""
    """Code that runs before the program: imports and helpers that the question shows or its data set promises."""
    solution: str | None = None
    """A program that passes, where the row has one."""
