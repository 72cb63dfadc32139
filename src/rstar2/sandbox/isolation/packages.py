"""Decides which packages a program can import: the promised ones, the operator's, and their dependencies.

All other packages in the environment of the service are hidden. Otherwise a program could import the generator of the
problem that it is asked to solve, and print the answer.
"""

import csv
import os
import re
from collections.abc import Iterable
from functools import cache
from importlib import metadata

from rstar2.errors import UserError

PROMISED = ("numpy", "scipy", "sympy", "mpmath", "networkx", "pandas", "matplotlib", "math-verify")
"""Distributions that programs can import. A missing one is skipped; `GET /status` names it."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def check(names: Iterable[str]) -> None:
    """UserError if the operator adds a package that is not installed."""
    for name in names:
        if _find(name) is None:
            raise UserError(f"packages: {name!r} is not installed in the environment of the service")


def paths(added: tuple[str, ...] = ()) -> frozenset[str]:
    """The entries of the package folders that belong to the promised and the added packages."""
    found: set[str] = set()
    seen: set[str] = set()
    waiting = [*PROMISED, *added]
    while waiting:
        name = _normalized(waiting.pop())
        if name in seen:
            continue
        seen.add(name)
        distribution = _find(name)
        if distribution is not None:
            found |= _entries(distribution)
            waiting += [match[0] for line in distribution.requires or () if (match := _needed(line))]
    return frozenset(found)


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@cache
def _find(name: str) -> metadata.Distribution | None:
    try:
        return metadata.distribution(name)
    except (metadata.PackageNotFoundError, ValueError):
        return None


def _needed(requirement: str) -> re.Match[str] | None:
    """The package name in a requirement; None for a requirement of an extra."""
    return None if "extra ==" in requirement else _NAME.match(requirement)


def _entries(distribution: metadata.Distribution) -> set[str]:
    tops = _tops(distribution) - {"..", "__pycache__"}
    return {path for top in tops if os.path.exists(path := str(distribution.locate_file(top)))}  # noqa: PTH110


def _tops(distribution: metadata.Distribution) -> set[str]:
    """The first part of each of its paths. Every start of a sandbox reads them: `files` makes an object of each of the
    ten thousand paths, which takes three times as long as reading the table itself."""
    table = distribution.read_text("RECORD")
    tops = {row[0].partition("/")[0] for row in csv.reader((table or "").splitlines()) if row}
    is_plain = tops and not tops & {"", "."}
    return tops if is_plain else {file.parts[0] for file in distribution.files or ()}
