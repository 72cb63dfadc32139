"""Recognizes command lines that run Python. Pure.

The sandbox has an interpreter and no programs beside it, so a command is run if it starts Python, by itself or as the
only command of a shell (`bash --login -c "python3 -"`, which is what inspect_ai's own tool `python` sends).
"""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

_PYTHON = re.compile(r"(?:/usr(?:/local)?/bin/)?python(?:3(?:\.\d+)?)?")
_SHELL = re.compile(r"(?:/usr)?(?:/bin/)?(?:ba)?sh")
_IGNORED = {"-u", "-B", "-I", "-s", "-S", "-E", "-q"}
"""Interpreter flags that have no effect in the sandbox."""
_SHELL_FLAGS = {"--login", "-l"}
_SHELL_SYNTAX = re.compile(r"[$`*?\[\]{}~#!\n\\]|[|&;<>()]")


class ProgramSource(StrEnum):
    """Where the program's code comes from."""

    CODE = "code"
    STDIN = "stdin"
    FILE = "file"
    MODULE = "module"


@dataclass(frozen=True, slots=True)
class PythonCommand:
    source: ProgramSource
    program: str
    """The code, the path or the module's name; empty for stdin."""
    argv: tuple[str, ...]
    """The program's `sys.argv`."""


def python_command(cmd: Sequence[str]) -> PythonCommand | None:
    """Parse a command line; None if it does not run Python."""
    if not cmd:
        return None
    if _SHELL.fullmatch(cmd[0]):
        return _in_shell(cmd[1:])
    return _python(cmd[1:]) if _PYTHON.fullmatch(cmd[0]) else None


def _in_shell(arguments: Sequence[str]) -> PythonCommand | None:
    rest = [argument for argument in arguments if argument not in _SHELL_FLAGS]
    if len(rest) == 2 and rest[0] in ("-lc", "-c"):
        words = _words(rest[1])
        return _python(words[1:]) if words and _PYTHON.fullmatch(words[0]) else None
    return None


def _words(line: str) -> list[str]:
    """The words of a single command; empty if the line needs a shell for more than splitting."""
    try:
        outside_quotes = shlex.split(re.sub(r"'[^']*'", "''", line))
        return [] if _SHELL_SYNTAX.search(" ".join(outside_quotes)) else shlex.split(line)
    except ValueError:
        return []


def _python(arguments: Sequence[str]) -> PythonCommand | None:
    rest = list(arguments)
    while rest and rest[0] in _IGNORED:
        rest.pop(0)
    if not rest or rest[0] == "-":
        return PythonCommand(ProgramSource.STDIN, "", tuple(rest) or ("",))
    first, *others = rest
    if first in ("-c", "-m"):
        if not others:
            return None
        source = ProgramSource.CODE if first == "-c" else ProgramSource.MODULE
        return PythonCommand(source, others[0], (first, *others[1:]))
    return None if first.startswith("-") else PythonCommand(ProgramSource.FILE, first, (first, *others))
