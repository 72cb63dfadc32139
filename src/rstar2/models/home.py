"""The folder in which rstar2 keeps its downloads: one per user, settable by environment.

`RSTAR2_HOME`, else `$XDG_DATA_HOME/rstar2`, else `~/.local/share/rstar2`. The environment is read at each call.
"""

import os
from pathlib import Path
from stat import S_ISDIR

from rstar2.errors import UserError


def data_home() -> Path:
    if home := os.environ.get("RSTAR2_HOME"):
        return Path(home).expanduser().absolute()
    # The XDG specification tells programs to ignore a relative path here.
    xdg = Path(os.environ.get("XDG_DATA_HOME", ""))
    return (xdg if xdg.is_absolute() else Path.home() / ".local" / "share") / "rstar2"


def kept_in_home(kind: str) -> Path:
    """The home's folder for one kind of data, whether it exists or not. UserError if it is no folder or cannot be
    read."""
    home = data_home()
    for folder in (home, home / kind):
        try:
            is_folder = S_ISDIR(folder.stat().st_mode)
        except FileNotFoundError:
            break
        except OSError as error:
            raise _unusable(folder, error.strerror or str(error)) from error
        if not is_folder:
            raise _unusable(folder, "it is a file, not a folder")
    return home / kind


def _unusable(folder: Path, why: str) -> UserError:
    return UserError(
        f"cannot read {folder}, where rstar2 keeps what it gets ({why}): set RSTAR2_HOME to another folder"
    )


def model_folder(name: str) -> Path:
    """The folder in which the catalog's model of that name is, or would be."""
    return kept_in_home("models") / name


def wheel_cache() -> Path:
    """The folder of wheels whose checksum was right, kept so that getting a model again needs no network."""
    return kept_in_home("cache") / "wheels"
