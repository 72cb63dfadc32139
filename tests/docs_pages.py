"""What the pages show: fenced blocks and command lines of README.md, CONTRIBUTING.md and docs/*.md."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = (*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md")

_FENCE = re.compile(
    r"^(?:<!-- not run: (?P<reason>[^\n]+?) -->\n)?```(?P<language>[a-z]*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_INDENTED = re.compile(r"(?:^ {4}.*\n)+", re.MULTILINE)
_INLINE = re.compile(r"`((?:\S+/)?rstar2\s[^`]+)`")
"""Also over the end of a line."""
_SHELL_ENDS = ("|", "&", "&&", ";", ">", "2>")


@dataclass(frozen=True, slots=True)
class Block:
    page: str
    line: int
    language: str
    text: str
    not_run: str | None
    """Why it cannot be run by a test, from the comment `<!-- not run: … -->` above it."""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True, slots=True)
class CommandLine:
    page: str
    words: tuple[str, ...]
    """Behind `rstar2`."""
    is_whole: bool
    """Stands in a block, to be copied; a command named in a sentence may leave its arguments out."""

    def __str__(self) -> str:
        return f"{self.page}: rstar2 {' '.join(self.words)}"


def blocks(page: Path, *languages: str) -> list[Block]:
    text = page.read_text()
    return [
        Block(page.name, text[: found.start()].count("\n") + 1, found["language"], found["text"], found["reason"])
        for found in _FENCE.finditer(text)
        if not languages or found["language"] in languages
    ]


def command_lines(page: Path) -> Iterator[CommandLine]:
    text = page.read_text()
    prose = _FENCE.sub("", text)
    shown = [block.text for block in blocks(page, "", "sh", "console")]
    shown += [found[0] for found in _INDENTED.finditer(prose)]
    for block in shown:
        for line in block.replace("\\\n", " ").splitlines():
            if words := _rstar2_words(line):
                yield CommandLine(page.name, words, is_whole=True)
    for found in _INLINE.finditer(prose):
        if words := _rstar2_words(found[1]):
            yield CommandLine(page.name, words, is_whole=False)


def _rstar2_words(line: str) -> tuple[str, ...]:
    """The words behind `rstar2`, up to where the shell ends the command. Empty: the line runs something else."""
    if "rstar2" not in line:
        return ()
    command: list[str] = []
    for word in [*shlex.split(line.strip().removeprefix("$ "), comments=True), ";"]:
        if word not in _SHELL_ENDS:
            command.append(word)
            continue
        if command and command[0].rpartition("/")[2] == "rstar2":
            return tuple(command[1:])
        command = []
    return ()
