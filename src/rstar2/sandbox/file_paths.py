"""Checks that callers name only files below a program's working directory. Pure."""

from collections.abc import Mapping

from rstar2.errors import UserError
from rstar2.sandbox.execution import MIB

MAX_FILE_BYTES = 16 * MIB
"""The size limit of one file, and of all files of one stateless program together."""
MAX_FILES = 256
"""The maximum number of files put into a stateless program, and of those fetched from it."""
_MAX_PATH_BYTES, _MAX_NAME_BYTES, _MAX_DEPTH = 1024, 255, 32


def check_path(path: str) -> tuple[str, ...]:
    """Split a path into its parts. UserError if it could lead out of the working directory, or names no file there."""
    parts = tuple(path.split("/"))
    try:
        sizes = [len(part.encode()) for part in parts]
    except UnicodeEncodeError:
        raise UserError(f"path: {path!a} is not Unicode text") from None
    if "\0" in path or any(part in ("", ".", "..") for part in parts):
        shown = path[:100]
        raise UserError(f"path: {shown!r} must be relative to the working directory, as in data/table.csv")
    if max(sizes) > _MAX_NAME_BYTES or sum(sizes) > _MAX_PATH_BYTES or len(parts) > _MAX_DEPTH:
        raise UserError(
            f"path: at most {_MAX_NAME_BYTES} bytes in a name, {_MAX_PATH_BYTES} and {_MAX_DEPTH} names in a path"
        )
    return parts


def check_size(num_bytes: int) -> None:
    if num_bytes > MAX_FILE_BYTES:
        raise UserError(f"content: a file of {num_bytes} bytes is too large; at most {MAX_FILE_BYTES} can be put")


def check_files(files: Mapping[str, bytes], fetch_files: tuple[str, ...]) -> None:
    """Check the files of a stateless program."""
    if max(len(files), len(fetch_files)) > MAX_FILES:
        raise UserError(f"files: at most {MAX_FILES} can be given, and at most {MAX_FILES} fetched")
    for path in (*files, *fetch_files):
        check_path(path)
    check_size(sum(map(len, files.values())))
