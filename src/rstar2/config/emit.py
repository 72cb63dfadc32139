"""A recipe as TOML: every field with its resolved value, so that a run can be repeated from it alone.

Invariant: what is written loads back to an equal recipe. A value that is None is left out, which is what None means.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from rstar2.config.recipe import Recipe

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def to_toml(recipe: Recipe, *, only_given: bool = False) -> str:
    """`only_given` leaves out the fields that were not set, so their defaults may change later."""
    return "\n".join(_table(recipe.model_dump(exclude_unset=only_given), "")).strip() + "\n"


def _table(table: Mapping[str, Any], name: str) -> Iterator[str]:
    """Plain values first: in TOML, what follows the header of an inner table belongs to that table."""
    given = {key: value for key, value in table.items() if value is not None}
    inner = {key: value for key, value in given.items() if isinstance(value, dict) or _is_list_of_tables(value)}
    for key, value in given.items():
        if key not in inner:
            yield f"{_key(key)} = {toml_value(value)}"
    for key, value in inner.items():
        path = f"{name}.{_key(key)}" if name else _key(key)
        header, tables = (f"[{path}]", [value]) if isinstance(value, dict) else (f"[[{path}]]", value)
        for each in tables:
            yield from ("", header)
            yield from _table(each, path)


def _is_list_of_tables(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and all(isinstance(entry, dict) for entry in value)


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _text(key)


def toml_value(value: Any) -> str:
    """One value, in TOML."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return _text(value)
        case tuple() | list():
            return f"[{', '.join(toml_value(entry) for entry in value)}]"
    return repr(value)


def _text(text: str) -> str:
    """JSON's escapes are TOML's, but for the delete character, which JSON lets through."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
