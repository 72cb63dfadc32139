"""A user's folder of data files: `RSTAR2_DATA`, or one named by an option. A set is found by its file's stem.

The file may be at any depth below the folder.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from rstar2.data.rows import is_data_file, stem
from rstar2.errors import UserError

DATA_FOLDER_ENV = "RSTAR2_DATA"


def data_folder(named: Path | None = None) -> Path | None:
    """The folder that is named, if any; UserError if it does not exist."""
    given = named or (Path(value) if (value := os.environ.get(DATA_FOLDER_ENV)) else None)
    if given is None:
        return None
    folder = given.expanduser()
    if not folder.is_dir():
        raise UserError(f"{'--data-dir' if named else DATA_FOLDER_ENV}: there is no folder {given}")
    return folder


def find_in_folder(folder: Path, stems: Sequence[str]) -> Path | None:
    """The file whose stem comes first in `stems`; UserError for two files of the same stem, because nothing says which
    is meant."""
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.rglob("*")):
        if is_data_file(path.name) and path.is_file():
            found.setdefault(stem(path.name), []).append(path)
    for name in stems:
        match found.get(name, ()):
            case [path]:
                return path
            case [_, _, *_] as paths:
                listed = " and ".join(str(path.relative_to(folder)) for path in paths)
                raise UserError(f"{folder} has {listed}: keep one of them, or name the one you mean as file:PATH")
    return None
