"""Where rstar2 keeps what it downloads: one folder per user, settable by environment.

`RSTAR2_HOME`, else `$XDG_DATA_HOME/rstar2`, else `~/.local/share/rstar2`. The environment is read at each call.
"""

import os
from pathlib import Path


def data_home() -> Path:
    if home := os.environ.get("RSTAR2_HOME"):
        return Path(home).expanduser().absolute()
    # The XDG specification tells programs to ignore a relative path here.
    xdg = Path(os.environ.get("XDG_DATA_HOME", ""))
    return (xdg if xdg.is_absolute() else Path.home() / ".local" / "share") / "rstar2"


def model_folder(name: str) -> Path:
    """Where the catalog's model of that name is, or would be."""
    return data_home() / "models" / name


def wheel_cache() -> Path:
    """Wheels whose checksum was right, kept so that getting a model again needs no network."""
    return data_home() / "cache" / "wheels"
