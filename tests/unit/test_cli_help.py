"""Every `--help` says what was written: square brackets are no markup, and it begins with a word."""

import re
from collections.abc import Iterator

import click
import pytest
import typer
from typer.testing import CliRunner

from rstar2.cli.main import app

pytestmark = pytest.mark.unit

WIDE = {"COLUMNS": "1000", "TERMINAL_WIDTH": "1000"}


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))


def texts(command: click.Command) -> Iterator[str]:
    yield command.help or ""
    for parameter in command.params:
        yield getattr(parameter, "help", None) or ""
        yield parameter.metavar or ""


COMMANDS = dict(commands(typer.main.get_command(app)))


def test_all_commands_are_walked() -> None:
    assert {("train",), ("data", "curate"), ("sandbox", "serve")} <= set(COMMANDS)
    written = [
        word for command in COMMANDS.values() for text in texts(command) for word in re.findall(r"\[[^]]*\]", text)
    ]
    assert {"[cluster]", "[data]", "[,NAME]"} <= set(written)


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_no_bracketed_word_is_lost(path: tuple[str, ...]) -> None:
    shown = " ".join(CliRunner().invoke(app, [*path, "--help"], env=WIDE).output.split())
    for text in texts(COMMANDS[path]):
        for word in re.findall(r"\[[^]]*\]", text):
            assert word in shown, f"write {word} as \\{word}: rich takes it for markup"


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_a_help_begins_with_a_word(path: tuple[str, ...]) -> None:
    first = (COMMANDS[path].help or "").split()[0]
    assert re.fullmatch(r"[A-Z][a-z]*,?", first), f"{first} is no word to begin a sentence with"
