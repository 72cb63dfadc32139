"""The OCI bundle that gVisor runs: an interpreter that sees the same files as in our own sandbox. Pure."""

import sys
from pathlib import Path
from typing import Any

from rstar2.sandbox.isolation.rootfs import View

CONTROL = "/control"
"""The folder in which the interpreter finds the program's streams and its own code."""
SCRATCH = "/tmp"
_NOBODY = 65534
_START = """
import runpy, sys
sys.path += sys.argv.pop(1).split(":")
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def mounts(view: View, folder: str, scratch_bytes: int) -> list[dict[str, Any]]:
    """The mounts, in order: package folders are covered before permitted packages are mounted over them."""
    shown = [path for _, paths in view.package_folders for path in paths]
    return [
        *(_bind(path, path, "ro") for path in view.binds),
        *(_memory(folder_of_packages, "ro") for folder_of_packages, _ in view.package_folders),
        *(_bind(path, path, "ro") for path in shown),
        _memory(SCRATCH, f"size={scratch_bytes}", "mode=1777"),
        _bind(folder, CONTROL, "rw"),
    ]


def config(view: View, folder: str, root: str, scratch_bytes: int, num_open_files: int) -> dict[str, Any]:
    """The bundle's `config.json`: no privileges, no network, and no files of the machine but the Python runtime."""
    packages = ":".join(path for path, _ in view.package_folders)
    streams = [f"{CONTROL}/stdout", f"{CONTROL}/stderr"]
    rlimits = {"RLIMIT_NOFILE": num_open_files, "RLIMIT_CORE": 0}
    return {
        "ociVersion": "1.0.2",
        "hostname": "sandbox",
        "root": {"path": root, "readonly": True},
        "process": {
            "terminal": False,
            "user": {"uid": _NOBODY, "gid": _NOBODY},
            "args": [sys.executable, "-I", "-X", "utf8", "-c", _START, packages, f"{CONTROL}/child.py", *streams],
            "env": ["PATH=", f"HOME={SCRATCH}", f"TMPDIR={SCRATCH}", "LANG=C.UTF-8"],
            "cwd": SCRATCH,
            "noNewPrivileges": True,
            "rlimits": [{"type": name, "hard": value, "soft": value} for name, value in rlimits.items()],
        },
        "mounts": mounts(view, folder, scratch_bytes),
        "linux": {"namespaces": [{"type": name} for name in ("pid", "network", "ipc", "uts", "mount")]},
    }


def make_root(view: View, root: Path) -> None:
    """Create the empty mount points and the symbolic links in the root file system."""
    for mount in mounts(view, str(root), 0):
        place = root / mount["destination"].lstrip("/")
        if mount["type"] == "bind" and Path(mount["source"]).is_file():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch()
        else:
            place.mkdir(parents=True, exist_ok=True)
    for link, target in view.links:
        place = root / link.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(target)


def _bind(source: str, destination: str, mode: str) -> dict[str, Any]:
    return {"destination": destination, "type": "bind", "source": source, "options": ["rbind", mode, "nosuid", "nodev"]}


def _memory(destination: str, *options: str) -> dict[str, Any]:
    return {"destination": destination, "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "nodev", *options]}
