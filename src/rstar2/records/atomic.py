"""Replaces a file in one step: whatever happens in between, it is the old one or the new one."""

import os
from contextlib import suppress
from pathlib import Path

from rstar2.errors import InfrastructureError


def replace_file(path: Path, content: bytes) -> None:
    """Make `path` hold `content`, on the disk itself, in one step. On failure the old file is untouched."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise InfrastructureError(f"cannot write {path}: {error.strerror or error}") from error


def _sync_folder(folder: Path) -> None:
    """Syncs the folder to the disk, because the rename is a change of the folder."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
