"""The line of each key in a TOML text.

The standard parser keeps no positions, and a message without a line sends its reader searching. The text is taken apart
into statements with that same parser (a statement is the fewest lines that parse by themselves), so strings and lists
over many lines need no separate grammar here. The text must be valid TOML.
"""

import tomllib
from collections.abc import Iterator
from typing import Any

from rstar2.config.checks import Path

_CLOSERS = ("]", '"""', "'''")


def key_lines(text: str) -> dict[Path, int]:
    """The first line on which each key, table and list entry of the text is given, counted from 1."""
    lines: dict[Path, int] = {}
    num_entries: dict[Path, int] = {}
    table: Path = ()
    for line, statement, parsed in _statements(text):
        if statement.lstrip().startswith("["):
            table = _table_path(parsed, num_entries)
            for depth in range(1, len(table) + 1):
                lines.setdefault(table[:depth], line)
        else:
            for path in _paths(parsed, table):
                lines.setdefault(path, line)
    return lines


def line_of(path: Path, lines: dict[Path, int]) -> int | None:
    """The line of the path, or of the innermost table around it that the text has."""
    for depth in range(len(path), 0, -1):
        if path[:depth] in lines:
            return lines[path[:depth]]
    return None


def _statements(text: str) -> Iterator[tuple[int, str, dict[str, Any]]]:
    pending: list[str] = []
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), start=1):
        pending.append(line)
        if len(pending) > 1 and not any(closer in line for closer in _CLOSERS):
            continue
        statement = "\n".join(pending)
        try:
            parsed = tomllib.loads(statement)
        except tomllib.TOMLDecodeError:
            continue
        if parsed:
            yield number - len(pending) + 1, statement, parsed
        pending = []


def _table_path(parsed: dict[str, Any], num_entries: dict[Path, int]) -> Path:
    """The full path of a header: the name of a list of tables means its newest entry."""
    path: Path = ()
    node: Any = parsed
    while isinstance(node, dict) and node:
        ((key, node),) = node.items()
        path = (*path, key)
        if isinstance(node, list):
            num_entries[path] = num_entries.get(path, 0) + 1
            node = node[0]
        if path in num_entries:
            path = (*path, num_entries[path] - 1)
    return path


def _paths(node: Any, path: Path) -> Iterator[Path]:
    """The paths of everything inside the node. Not recursive, since a dotted key may have any depth."""
    pending: list[tuple[Any, Path]] = [(node, path)]
    while pending:
        node, path = pending.pop()
        children: Any = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        for key, child in children:
            yield (*path, key)
            pending.append((child, (*path, key)))
