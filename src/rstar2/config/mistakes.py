"""Everything that is wrong with a parsed recipe, in sentences.

A faulty value is reported and replaced by its default or example, and checking continues, so that one mistake does not
hide the next. Mistakes that only follow from a replaced value are not reported.
"""

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from rstar2.config.checks import Path, nearest
from rstar2.config.fields import is_section, key_words, place_of, type_words, value_words
from rstar2.config.recipe import IMPOSSIBLE, Recipe

_UNKNOWN_KEY, _MISSING = "extra_forbidden", "missing"


@dataclass(frozen=True, slots=True)
class Mistake:
    """One thing that is wrong. The sentence begins with the dotted key."""

    path: Path
    sentence: str


def validated(tree: dict[str, Any]) -> tuple[Recipe | None, list[Mistake]]:
    """The recipe, or all its mistakes; never both. Faulty values are taken out of `tree`."""
    mistakes: list[Mistake] = []
    doubtful: set[Path] = set()
    while True:
        try:
            recipe = Recipe.model_validate(tree)
        except ValidationError as error:
            found = error.errors()
        else:
            return (None if mistakes else recipe), mistakes
        if found[0]["type"] == IMPOSSIBLE:
            return None, mistakes + _impossibilities(found[0], doubtful)
        meant = {details["loc"]: _meant(details["loc"]) for details in found if details["type"] == _UNKNOWN_KEY}
        misspelt = {path for paths in meant.values() for path in paths}
        doubtful |= misspelt
        for details in found:
            path = details["loc"]
            is_only_misspelt = details["type"] == _MISSING and path in misspelt
            if not is_only_misspelt:
                mistakes.append(Mistake(path, f"{key_words(path)} {_sentence(details, meant.get(path, ()))}"))
            if details["type"] == _UNKNOWN_KEY:
                _remove(tree, path)
            else:
                doubtful.add(_replace_faulty(tree, path))


def _impossibilities(details: ErrorDetails, doubtful: Iterable[Path]) -> list[Mistake]:
    return [
        Mistake(impossible.paths[0], f"{key_words(impossible.paths[0])} {impossible.sentence}")
        for impossible in details["ctx"]["found"]
        if not any(path[: len(doubt)] == doubt for path in impossible.paths for doubt in doubtful)
    ]


def _meant(unknown: Path) -> list[Path]:
    """What an unknown key was most likely meant to be: the one near it in its table, or its namesakes elsewhere."""
    name = str(unknown[-1])
    near = nearest(name, place_of(unknown[:-1]).type.model_fields)
    if near is not None:
        return [(*unknown[:-1], near)]
    sections = (section for section in Recipe.model_fields if is_section(place_of((section,)).type))
    return [(section, name) for section in sections if place_of((section, name)).type is not None]


def _sentence(details: ErrorDetails, meant: Sequence[Path]) -> str:
    path, value = details["loc"], details["input"]
    place = place_of(path)
    match details["type"]:
        case "extra_forbidden":
            table = _table_words(path[:-1])
            if not meant:
                keys = ", ".join(place_of(path[:-1]).type.model_fields)
                return f"is not a key of {table}; its keys are {keys}"
            names = [str(key[-1]) if key[:-1] == path[:-1] else key_words(key) for key in meant]
            return f"is not a key of {table}; did you mean {' or '.join(names)}?"
        case "missing":
            assert place.field is not None
            return f"is required. {place.field.description}"
        case "value_error":
            return str(details["ctx"]["error"])
        case "string_pattern_mismatch":
            assert place.field is not None
            return f"cannot be {value_words(value)}. {place.field.description}"
    wanted = type_words(place.type, place.field if place.path == path else None)
    return f"must be {_with_article(wanted)}, not {value_words(value)}{_choice_hint(place.type, value)}"


def _table_words(path: Path) -> str:
    """A table as its header in the file: `[train]`, `[[stages]]`."""
    if not path:
        return "a recipe"
    header = key_words(tuple(part for part in path if isinstance(part, str)))
    return f"[[{header}]]" if isinstance(path[-1], int) else f"[{header}]"


def _choice_hint(kind: Any, value: Any) -> str:
    if get_origin(kind) is not Literal or not isinstance(value, str):
        return ""
    meant = nearest(value, get_args(kind))
    return f'; did you mean "{meant}"?' if meant is not None else ""


def _with_article(kind: str) -> str:
    if kind.startswith(("true or false", '"', "tables")):
        return kind
    return f"an {kind}" if kind.startswith("integer") else f"a {kind}"


def _replace_faulty(tree: dict[str, Any], path: Path) -> Path:
    """Take the innermost field on the path back to its default, or its example if it has none; returns its path."""
    place = place_of(path)
    assert place.field is not None
    _remove(tree, place.path)
    if place.field.is_required():
        table = _at(tree, place.path[:-1])
        if isinstance(table, dict):
            assert place.field.examples, f"{key_words(place.path)} is required and has no example"
            table[str(place.path[-1])] = copy.deepcopy(place.field.examples[0])
    return place.path


def _remove(tree: dict[str, Any], path: Path) -> None:
    table = _at(tree, path[:-1])
    if isinstance(table, dict):
        table.pop(str(path[-1]), None)


def _at(tree: Any, path: Path) -> Any:
    """The value at the path; None where an outer value was replaced before."""
    for part in path:
        if isinstance(tree, dict):
            tree = tree.get(str(part))
        elif isinstance(tree, list) and isinstance(part, int) and part < len(tree):
            tree = tree[part]
        else:
            return None
    return tree
