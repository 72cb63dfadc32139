"""`--set train.lr=1e-6`: single values changed on the command line, over those of the file."""

import json
import tomllib
from typing import Any

from rstar2.config.checks import Path, nearest
from rstar2.config.fields import key_words, value_words
from rstar2.errors import UserError


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
