"""Puts, reads and lists the files of a session in its controller, with the rights of the cells' user, folder by folder.

The path comes from the caller, its folders and links from the cells. So no link is followed, and only regular files are
read or written.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator

from rstar2.sandbox.execution import FileInfo
from rstar2.sandbox.file_paths import MAX_FILE_BYTES, check_path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
MAX_LISTED = 4096


def put(path: str, data: bytes) -> None:
    """Write a file, replacing an existing one. A file that did not fit is removed."""
    *folders, name = check_path(path)
    with _open_folder(folders, make=True) as folder_fd:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder_fd)  # and not truncated: the name may be a link, or a file that is shared
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE, 0o644, dir_fd=folder_fd)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(fd, rest) :]
        except OSError:
            os.unlink(name, dir_fd=folder_fd)
            raise
        finally:
            os.close(fd)


def read(path: str) -> bytes:
    *folders, name = check_path(path)
    with _open_folder(folders, make=False) as folder_fd:
        fd = os.open(name, os.O_RDONLY | _FILE, dir_fd=folder_fd)
        try:
            facts = os.fstat(fd)
            if not stat.S_ISREG(facts.st_mode):
                raise OSError(errno.EISDIR if stat.S_ISDIR(facts.st_mode) else errno.EINVAL, "not a file")
            if facts.st_size > MAX_FILE_BYTES:
                raise OSError(errno.EFBIG, "too large")
            with open(fd, "rb", closefd=False) as file:
                return file.read(MAX_FILE_BYTES)
        finally:
            os.close(fd)


def listed() -> Iterator[FileInfo]:
    """Regular files, sorted by name. Folders that cannot be entered and names that are not Unicode are left out."""
    num_left = MAX_LISTED
    for path, folders, names, folder_fd in os.fwalk("."):
        folders.sort()
        for name in sorted(names):
            facts = os.lstat(name, dir_fd=folder_fd)
            whole = f"{path}/{name}"[2:]
            if stat.S_ISREG(facts.st_mode) and num_left and _is_text(whole):
                num_left -= 1
                yield FileInfo(whole, facts.st_size)


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


@contextlib.contextmanager
def _open_folder(folders: list[str], *, make: bool) -> Iterator[int]:
    fd = os.open(".", _FOLDER)
    try:
        for name in folders:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o755, dir_fd=fd)
            inner = os.open(name, _FOLDER, dir_fd=fd)
            os.close(fd)
            fd = inner
        yield fd
    finally:
        os.close(fd)
