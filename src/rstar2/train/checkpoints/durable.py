"""Writes that survive a loss of power."""

import os
from pathlib import Path

from rstar2.errors import InfrastructureError


class CannotWrite(InfrastructureError):  # noqa: N818
    """A disk is full, or cannot be written."""


def sync(path: Path) -> None:
    """A file's contents, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """A folder of files, and all of them."""
    for file in folder.iterdir():
        sync(file)
    sync(folder)
