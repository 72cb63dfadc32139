"""Which command lines the provider for inspect_ai runs."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

import rstar2.sandbox

pytestmark = pytest.mark.unit


def load(name: str) -> Any:
    """A file of the provider, without its folder's face, which needs inspect_ai."""
    path = Path(rstar2.sandbox.__file__).parent / "inspect_ai" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"inspect_provider_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ARGV = load("argv")


@pytest.mark.parametrize(
    ("cmd", "source", "program", "argv"),
    [
        (["python3", "-c", "print(1)", "a"], "code", "print(1)", ("-c", "a")),
        (["python", "-"], "stdin", "", ("-",)),
        (["python3"], "stdin", "", ("",)),
        (["/usr/bin/python3.11", "-u", "a.py", "--flag"], "file", "a.py", ("a.py", "--flag")),
        (["python", "-m", "json.tool"], "module", "json.tool", ("-m",)),
        (["bash", "--login", "-c", "python3 -"], "stdin", "", ("-",)),
        (["sh", "-c", "python -c 'print(1); print(2)'"], "code", "print(1); print(2)", ("-c",)),
        (["/bin/bash", "-lc", "python3 a.py 'a b'"], "file", "a.py", ("a.py", "a b")),
    ],
)
def test_python_is_run(cmd: list[str], source: str, program: str, argv: tuple[str, ...]) -> None:
    command = ARGV.python_command(cmd)
    assert command is not None
    assert (command.source, command.program, command.argv) == (source, program, argv)


@pytest.mark.parametrize(
    "cmd",
    [
        [],
        ["ls"],
        ["pythonista"],
        ["./python"],
        ["python3", "-c"],
        ["python3", "--version"],
        ["bash", "-c", "ls"],
        ["bash", "-c", "python3 a.py; rm a.py"],
        ["bash", "-c", "python3 a.py > out"],
        ["bash", "-c", "python3 $FILE"],
        ["bash", "-c", 'python3 "$(ls)"'],
        ["bash", "-c", "python3 'a.py"],
        ["bash", "python3"],
    ],
)
def test_other_commands_are_not_there(cmd: list[str]) -> None:
    assert ARGV.python_command(cmd) is None
