"""Tells whether a session's scratch directory, which all its branches share, is as a cell left it."""

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path


def scratch_usage() -> tuple[int, ...]:
    """What a cell can see of the scratch directory besides its entries, such as traces of files that were removed or
    are still open."""
    usage, facts = os.statvfs("."), Path().stat()
    return usage.f_ffree, usage.f_bfree, facts.st_mode, facts.st_nlink, facts.st_mtime_ns, facts.st_ctime_ns


def scratch_fingerprint(when_empty: tuple[int, ...], uid: int) -> int:
    """0 while the scratch directory is untouched, else a digest of its entries. It is read as the cells' user, who
    alone may enter all folders, and by descriptor, because a path may be too long. An unreadable directory counts as
    changed."""
    usage = scratch_usage()
    if usage == when_empty:
        return 0
    digest = hashlib.blake2b(repr(usage).encode(), digest_size=8)
    try:
        with as_user(uid):
            for path, folders, names, folder_fd in os.fwalk(".", onerror=_raise):
                folders.sort()
                for name in sorted([*folders, *names]):
                    facts = os.lstat(name, dir_fd=folder_fd)
                    # The time of change, unlike that of modification, cannot be set back.
                    line = f"{path}/{name}\0{facts.st_mode}\0{facts.st_size}\0{facts.st_ctime_ns}\0{facts.st_ino}\n"
                    digest.update(line.encode("utf-8", "surrogateescape"))
    except (OSError, RecursionError):
        digest.update(os.urandom(8))
    return int.from_bytes(digest.digest(), "little") or 1


@contextlib.contextmanager
def as_user(uid: int) -> Iterator[None]:
    """Run the block with the uid of the session's cells, which alone may enter all of their folders."""
    if uid >= 0:
        os.setresuid(-1, uid, -1)
    try:
        yield
    finally:
        if uid >= 0:
            os.setresuid(-1, 0, -1)


def _raise(error: OSError) -> None:
    raise error
