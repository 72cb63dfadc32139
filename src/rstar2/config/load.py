"""From TOML text and overrides to a recipe, or to everything that is wrong with it.

Invariant: `load_recipe` and `parse_recipe` give a `Recipe`, or a `UserError` with one line for each mistake; nothing
else comes out.
"""

import json
import re
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any

from pydantic import ValidationError

from rstar2.config.checks import Path, nearest
from rstar2.config.curriculum import DataSet
from rstar2.config.fields import key_words, value_words
from rstar2.config.mistakes import Mistake, validated
from rstar2.config.positions import key_lines, line_of
from rstar2.config.recipe import Recipe
from rstar2.config.shipped import shipped_recipes
from rstar2.errors import UserError

_MAX_FILE_BYTES = 1 << 20
"""A recipe is a page or two of text; whatever is larger is another file."""


@dataclass(frozen=True, slots=True)
class RecipeReading:
    """A recipe, or its mistakes and what can still be read of it."""

    recipe: Recipe | None
    mistakes: tuple[str, ...]
    """One sentence each, with the file and the line, or the override."""
    sets: dict[str, DataSet]
    """The sets of `[data]` that are valid by themselves."""
    warm_up_sets: tuple[str, ...]
    """The names in `sft.data`: these sets hold conversations."""
    asks_mathematics: bool
    """Whether `[environment]` is mathematics, which needs a question and an answer in each row."""


def load_recipe(path: FilePath | str, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe of a file, or the one of that name that comes with rstar2, with `overrides` (`train.lr=1e-6`) over it.
    UserError names all mistakes."""
    return parse_recipe(recipe_text(path), overrides, file=str(path))


def recipe_text(path: FilePath | str) -> str:
    """The TOML of a file; where there is no such file, of the recipe of that name that comes with rstar2."""
    shipped = shipped_recipes().get(str(path))
    return shipped.text if shipped is not None and not FilePath(path).is_file() else _read(FilePath(path))


def parse_recipe(text: str, overrides: Sequence[str] = (), file: str = "recipe") -> Recipe:
    """The recipe of a TOML text; `file` is what messages call it."""
    reading = _examine(text, overrides, file)
    if reading.recipe is not None:
        return reading.recipe
    if len(reading.mistakes) == 1:
        raise UserError(reading.mistakes[0])
    raise UserError(
        f"{file} has {len(reading.mistakes)} mistakes:\n" + "\n".join(f"  {line}" for line in reading.mistakes)
    )


def examine_recipe(path: FilePath | str, overrides: Sequence[str] = ()) -> RecipeReading:
    """As `load_recipe`, for a caller that looks for more mistakes elsewhere. UserError if it is no TOML."""
    return _examine(recipe_text(path), overrides, str(path))


def _examine(text: str, overrides: Sequence[str], file: str) -> RecipeReading:
    tree = _parse_toml(text, file)
    overridden: dict[Path, str] = {}
    complaints: list[str] = []
    for override in overrides:
        try:
            overridden[apply_override(tree, override)] = override
        except UserError as error:
            complaints.append(f"--set {override}: {error}")
    # Before faulty values are replaced:
    sets, warm_up_sets, asks_mathematics = _valid_sets(tree), _warm_up_sets(tree), _asks_mathematics(tree)
    recipe, mistakes = validated(tree)
    complaints += _located(mistakes, text, file, overridden)
    return RecipeReading(None if complaints else recipe, tuple(complaints), sets, warm_up_sets, asks_mathematics)


def _valid_sets(tree: dict[str, Any]) -> dict[str, DataSet]:
    declared = tree.get("data")
    sets: dict[str, DataSet] = {}
    for name, table in declared.items() if isinstance(declared, dict) else ():
        with suppress(ValidationError):
            sets[name] = DataSet.model_validate(table)
    return sets


def _warm_up_sets(tree: dict[str, Any]) -> tuple[str, ...]:
    sft = tree.get("sft")
    names = sft.get("data") if isinstance(sft, dict) else None
    return tuple(name for name in names if isinstance(name, str)) if isinstance(names, list) else ()


def _asks_mathematics(tree: dict[str, Any]) -> bool:
    section = tree.get("environment", {})
    return isinstance(section, dict) and section.get("source", "math") == "math"


def _located(mistakes: Sequence[Mistake], text: str, file: str, overridden: dict[Path, str]) -> list[str]:
    """Each mistake with where it was made: the override that set the value, or the file and the line."""
    if not mistakes:
        return []
    lines = key_lines(text)
    located = []
    for mistake in mistakes:
        override = next((overridden[at] for at in reversed(overridden) if mistake.path[: len(at)] == at), None)
        line = line_of(mistake.path, lines)
        place = f"--set {override}" if override is not None else file if line is None else f"{file}:{line}"
        located.append((override is not None, line or 0, f"{place}: {mistake.sentence}"))
    return [complaint for *_, complaint in sorted(located, key=lambda found: found[:2])]


def _read(path: FilePath) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise UserError(
            f"{path}: there is no such file, and no recipe of that name comes with rstar2; give the path of a recipe, "
            f"or one of {', '.join(shipped_recipes())}"
        ) from None
    except IsADirectoryError:
        raise UserError(f"{path}: this is a directory; give the path of a recipe in it") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(content) > _MAX_FILE_BYTES:
        raise UserError(f"{path}: is larger than 1 MiB, so it is not a recipe")
    try:
        return content.decode("utf-8-sig")  # some editors open a file with a byte order mark
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}:{line}: is not UTF-8 text (byte {error.start}); save the file as UTF-8") from None


def _parse_toml(text: str, file: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        sentence, line, column = _syntax_error(str(error), text)
        raise UserError(f"{file}:{line}:{column}: is not valid TOML: {sentence}") from None
    except RecursionError:
        raise UserError(f"{file}: is not a recipe: its values are nested too deeply") from None
    except ValueError as error:  # numbers of thousands of digits, which the parser passes on to int()
        raise UserError(f"{file}: is not valid TOML: {error}") from None


def _syntax_error(message: str, text: str) -> tuple[str, int, int]:
    position = re.search(r" \(at line (\d+), column (\d+)\)$", message)
    if position is not None:
        return message[: position.start()], int(position[1]), int(position[2])
    last_line = text.rpartition("\n")[2]
    return message.removesuffix(" (at end of document)"), text.count("\n") + 1, len(last_line) + 1


def apply_override(tree: dict[str, Any], override: str) -> Path:
    """Set one value in the tree and return where. UserError if the text is no override or its path leads nowhere."""
    key, separator, value_text = override.partition("=")
    parts = [part.strip() for part in key.split(".")]
    if not separator or not all(parts):
        raise UserError("an override is a dotted key, = and a value, as in --set train.lr=1e-6")
    node: Any = tree
    path: Path = ()
    for part in parts[:-1]:
        index = _index(node, part, path)
        path = (*path, index)
        node = node.setdefault(index, {}) if isinstance(node, dict) else node[index]
    last = _index(node, parts[-1], path)
    node[last] = _value(value_text.strip())
    return (*path, last)


def _index(node: Any, part: str, path: Path) -> str | int:
    """How `part` is looked up in the node: a key of a table; a number, or an entry's name, in a list of tables."""
    if isinstance(node, dict):
        return part
    if not isinstance(node, list):
        raise UserError(f"{key_words(path)} is {value_words(node)}, not a table, so it has no {part} to set")
    if part.isdecimal() and part.isascii() and len(part) < 10 and int(part) < len(node):
        return int(part)
    names = [entry.get("name") if isinstance(entry, dict) else None for entry in node]
    if part in names:
        return names.index(part)
    known = [name for name in names if isinstance(name, str)]
    meant = nearest(part, known)
    hint = f'did you mean "{meant}"?' if meant else f"it has {len(node)}: {', '.join(known) or 'without names'}"
    raise UserError(f'{key_words(path)} has no entry "{part}"; {hint}')


def _value(text: str) -> Any:
    """A TOML value; a bare word is a text."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        if text[:1] in ("[", "{", '"', "'"):
            raise UserError(
                f"{text} is not a valid TOML value; a list of texts is written {json.dumps(['a', 'b'])}, "
                "in quotes for the shell"
            ) from None
        return text
    return parsed["value"] if len(parsed) == 1 else text
