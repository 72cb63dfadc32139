"""Checks and prepares this machine for getting a model: packages, disk space, and a folder that appears once it is
complete."""

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from rstar2.errors import InfrastructureError, UserError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)


def is_storage_error(error: OSError) -> bool:
    return error.errno in _FULL + _FORBIDDEN


@contextmanager
def storage_errors(folder: Path) -> Iterator[None]:
    """Turns the errors of a full or forbidden disk under `folder` into one sentence with the way out."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise InfrastructureError(
                f"the disk of {folder} is full ({error.strerror}): free some space, or choose another place with --dir"
            ) from error
        if error.errno in _FORBIDDEN:
            raise UserError(
                f"cannot write to {error.filename or folder} ({error.strerror}): "
                "choose another place with --dir or RSTAR2_HOME"
            ) from error
        raise


def require_free(folder: Path, num_bytes: int) -> None:
    """Raises an error if the disk lacks this space, before a download rather than after it."""
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < num_bytes:
        raise InfrastructureError(
            f"this needs {num_bytes / 1e9:.1f} GB and the disk of the model has {free_bytes / 1e9:.1f} GB free: "
            "free some space, or choose another place with --dir"
        )


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Only one process at a time fills a folder; a second one fails at once. The lock is released with its process."""
    lock_path = folder.parent / f".{folder.name}.lock"
    lock_file = _lock(lock_path)
    if lock_file is None:
        raise InfrastructureError(f"another process is writing {folder}: wait for it to end")
    try:
        yield
    finally:
        lock_path.unlink(missing_ok=True)
        os.close(lock_file)


def _lock(path: Path) -> int | None:
    """An open, locked descriptor of the file at `path`; None if another process holds it."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        # The last holder may have unlinked the file between our open and our lock; then it protects nothing.
        if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
            return descriptor
        os.close(descriptor)


@contextmanager
def staged(folder: Path) -> Iterator[Path]:
    """A scratch folder beside `folder`, removed at the end in any case; call it under `exclusive`.

    Files that a killed process left are removed first: the lock is held, so no other process can be using them.
    """
    prefix, suffix = f".{folder.name}.", ".partial"
    for leftover in folder.parent.glob(f"{prefix}*{suffix}"):
        shutil.rmtree(leftover)
    scratch = Path(tempfile.mkdtemp(prefix=prefix, suffix=suffix, dir=folder.parent))
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def put_in_place(finished: Path, folder: Path, scratch: Path) -> None:
    """Renames `finished` to `folder`. The old content moves to `scratch`, and is restored if the rename fails."""
    replaced = scratch / "replaced"
    if folder.exists():
        folder.rename(replaced)
    try:
        finished.rename(folder)
    except OSError:
        if replaced.exists():
            replaced.rename(folder)
        raise


def require_installed(modules: Sequence[str], purpose: str) -> None:
    """Raises UserError if a part of the `train` extra is missing, before a download and not after it."""
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        raise UserError(f"{purpose} needs {', '.join(missing)}: run `pip install 'rstar2[train]'`")
