"""The file system that a program sees: the Python runtime, read-only, and nothing else of the machine.

No /proc, no /sys, no /etc of the host, no home, no shell, and of the installed packages only those of `packages.py`.
The scratch directory is mounted per slot on top.
"""

import os
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rstar2.sandbox.isolation import linux, packages

_USUAL_SCRATCH, _OTHER_SCRATCH = "/tmp", "/scratch"
_DEVICES = ("null", "zero", "full", "random", "urandom")
_LIBRARY_FOLDERS = ("/lib", "/lib32", "/lib64", "/usr/lib32", "/usr/lib64", "/usr/local/lib")
_SYSTEM_PREFIXES = ("/usr", "/usr/local")
_PACKAGE_FOLDERS = ("site-packages", "dist-packages")
_SMALL = "mode=0755,size=4m,nr_inodes=4096"
_READ_ONLY = linux.MS_REMOUNT | linux.MS_BIND | linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV
_OTHER = ("/usr/share/zoneinfo", "/etc/ld.so.cache", "/etc/localtime")


@dataclass(frozen=True, slots=True)
class View:
    """The paths that are mounted read-only, and the symbolic links to them."""

    binds: tuple[str, ...]
    links: tuple[tuple[str, str], ...]
    package_folders: tuple[tuple[str, tuple[str, ...]], ...]
    """The folders of installed packages, each with the paths in it that programs see; the rest is hidden."""


def runtime_view(added_packages: tuple[str, ...] = ()) -> View:
    """Everything this interpreter needs to start and to import the packages that programs may use."""
    wanted: set[str] = set()
    links: dict[str, str] = {}
    multiarch = sysconfig.get_config_var("MULTIARCH")
    libraries = [*_LIBRARY_FOLDERS, *([f"/usr/lib/{multiarch}"] if multiarch else [])]
    for prefix in {sys.prefix, sys.base_prefix}:
        if prefix in _SYSTEM_PREFIXES:  # all of /usr would include shells and every program of the machine
            wanted |= {path for name, path in sysconfig.get_paths().items() if name in ("stdlib", "platstdlib")}
        else:
            wanted |= {f"{prefix}/pyvenv.cfg", *([f"{prefix}/lib"] if prefix == sys.base_prefix else [])}
    executable = sys.executable
    while executable not in links and os.path.islink(executable):  # noqa: PTH114
        links[executable] = os.readlink(executable)  # noqa: PTH115
        executable = os.path.normpath(Path(executable).parent / links[executable])
    wanted.add(executable)
    for path in [*libraries, *_OTHER]:
        if os.path.islink(path):  # noqa: PTH114 - merged-usr: /lib is a link to usr/lib
            if Path(path).is_dir():
                links[path] = os.readlink(path)  # noqa: PTH115
                if multiarch is None:
                    wanted.add(os.path.realpath(path))
            else:
                wanted.add(path)
        else:
            wanted.add(path)
    present = sorted(path for path in wanted if path and Path(path).exists())
    binds = [path for path in present if not any(_is_below(path, other) for other in present)]
    covered = {link: target for link, target in links.items() if not any(_is_below(link, bind) for bind in binds)}
    shown = packages.paths(added_packages)
    folders = tuple(
        (folder, tuple(sorted(path for path in shown if _is_below(path, folder))))
        for folder in sorted(_package_folders(binds))
    )
    return View(tuple(binds), tuple(sorted(covered.items())), folders)


def _package_folders(binds: Iterable[str]) -> set[str]:
    """Package folders on this interpreter's path, and others that a bind mount would show."""
    named = {path for path in sys.path if Path(path).name in _PACKAGE_FOLDERS}
    for bind in binds:
        for name in _PACKAGE_FOLDERS:
            named |= {str(path) for pattern in (name, f"*/{name}") for path in Path(bind).glob(pattern)}
    return {path for path in named if Path(path).is_dir() and os.path.realpath(path) == path}


def scratch_path() -> str:
    """The scratch directory of programs. It must not hide an interpreter in /tmp."""
    is_taken = any(_is_below(bind, _USUAL_SCRATCH) for bind in runtime_view().binds)
    return _OTHER_SCRATCH if is_taken else _USUAL_SCRATCH


def _is_below(path: str, folder: str) -> bool:
    return path != folder and path.startswith(folder.rstrip("/") + "/")


def enter(view: View, mount_point: Path, scratch: str) -> None:
    """Make the view the root of this process's mount namespace. Irreversible; needs a private mount namespace."""
    root = str(mount_point)
    linux.mount(None, "/", None, linux.MS_REC | linux.MS_PRIVATE)
    linux.mount("tmpfs", root, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, _SMALL)
    for source in view.binds:
        _bind(source, root + source)
    for folder, shown in view.package_folders:
        Path(root + folder).mkdir(parents=True, exist_ok=True)
        linux.mount("tmpfs", root + folder, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, _SMALL)
        for path in shown:
            _bind(path, root + path)
        linux.mount(None, root + folder, None, _READ_ONLY)
    (mount_point / "dev").mkdir(exist_ok=True)
    for device in _DEVICES:
        _bind(f"/dev/{device}", f"{root}/dev/{device}")
    for link, target in view.links:
        Path(root + link).parent.mkdir(parents=True, exist_ok=True)
        Path(root + link).symlink_to(target)
    Path(root + scratch).mkdir(parents=True, exist_ok=True)
    (mount_point / "dev/shm").symlink_to(scratch)
    old_parent = os.open(mount_point.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    os.chdir(root)
    linux.pivot_root(".", ".")  # the old root is now mounted over the new one; detaching it leaves the new one
    linux.unmount_detached(".")
    os.chdir("/")
    os.rmdir(mount_point.name, dir_fd=old_parent)
    os.close(old_parent)
    linux.mount(None, "/", None, _READ_ONLY)


def _bind(source: str, target: str) -> None:
    place = Path(target)
    if Path(source).is_dir():
        place.mkdir(parents=True, exist_ok=True)
    else:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    linux.bind_read_only(source, target)
