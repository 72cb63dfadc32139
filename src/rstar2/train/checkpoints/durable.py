"""Writes that survive a loss of power."""

import os
from pathlib import Path

from rstar2.errors import InfrastructureError


class CannotWrite(InfrastructureError):  # noqa: N818
    """A disk is full, or cannot be written."""


def sync(path: Path) -> None:
    """Sync a file's contents, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Sync a folder and all files in it to the disk."""
    for file in folder.iterdir():
        sync(file)
    sync(folder)
