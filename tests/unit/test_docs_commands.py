"""Every `rstar2 …` of the pages is a command that exists, with options and recipe fields that exist."""

from typing import Any

import pytest
import typer

from docs_pages import PAGES, CommandLine, command_lines
from rstar2.cli.main import app
from rstar2.config.explain import explain

pytestmark = pytest.mark.unit

LINES = list(dict.fromkeys(line for page in PAGES for line in command_lines(page)))
PLACEHOLDERS = ("VERB", "…", "...")


def check(line: CommandLine) -> None:
    """Parses without converting values: files that a page names need not be here."""
    command: Any = typer.main.get_command(app)
    words = list(line.words)
    path = "rstar2"
    while hasattr(command, "commands") and words:
        if words[0] in PLACEHOLDERS or words[0].startswith("-"):
            return
        name = words.pop(0)
        assert name in command.commands, f"{path} has no command {name}"
        command, path = command.commands[name], f"{path} {name}"
    context = command.make_context(path, [], resilient_parsing=True)
    context.resilient_parsing = False
    if not line.is_whole and words and takes_a_value(command, words[-1]):
        words.append("VALUE")
    given, extra, _ = command.make_parser(context).parse_args(words)
    assert not extra, f"{path} takes no {extra}"
    for parameter in command.params:
        values = given.get(parameter.name)
        if parameter.name not in given or not values or not isinstance(values, str | list | tuple):
            if line.is_whole and parameter.required and not hasattr(command, "commands"):
                raise AssertionError(f"{path} needs {parameter.human_readable_name}")
            continue
        for value in [values] if isinstance(values, str) else values:
            check_value(parameter, value)


def takes_a_value(command: Any, word: str) -> bool:
    return any(word in parameter.opts and not parameter.is_flag for parameter in command.params)


def check_value(parameter: Any, value: str) -> None:
    if parameter.name == "overrides" and "=" in value:
        explain(value.partition("=")[0])


def test_the_pages_hold_many() -> None:
    assert len(LINES) > 100
    assert any("--set" in line.words for line in LINES)


@pytest.mark.parametrize("line", LINES, ids=str)
def test_a_command_line_is_one(line: CommandLine) -> None:
    check(line)


@pytest.mark.parametrize(
    "words",
    [
        ("trian", "recipe.toml"),
        ("train", "recipe.toml", "--sett", "seed=1"),
        ("train", "recipe.toml", "--set", "train.learning_speed=1"),
        ("sandbox", "run"),
        ("view", "run", "--tokenizer"),
    ],
    ids=" ".join,
)
def test_a_mistake_is_found(words: tuple[str, ...]) -> None:
    with pytest.raises(Exception):  # noqa: B017
        check(CommandLine("page.md", words, is_whole=True))
