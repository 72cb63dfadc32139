"""The view holds what an interpreter needs and nothing that a program should not see."""

import os
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

from rstar2.sandbox.isolation import packages, rootfs
from rstar2.sandbox.isolation.rootfs import View

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def view() -> View:
    return rootfs.runtime_view()


def is_in(view: View, path: str) -> bool:
    """Reachable under the view: below a bind, after following the view's own links."""
    for _ in range(40):
        for link, target in view.links:
            if path == link or path.startswith(link + "/"):
                path = os.path.normpath(Path(link).parent / target) + path[len(link) :]
                break
        else:
            shown = [shown for folder, shown in view.package_folders if path.startswith(folder + "/")]
            binds = shown[0] if shown else view.binds
            return any(path == bind or path.startswith(bind.rstrip("/") + "/") for bind in binds)
    raise AssertionError("links go in a circle")


def test_the_interpreter_and_its_packages_are_there(view: View) -> None:
    wanted = [sys.executable, sysconfig.get_paths()["stdlib"], np.__file__]
    assert [path for path in wanted if not is_in(view, os.path.realpath(path))] == []
    assert is_in(view, sys.executable)


def test_shared_libraries_are_there(view: View) -> None:
    """Ours is loaded before the root changes, and no program has a use for it, nor for those of other packages."""
    own = str(Path(rootfs.__file__).parent.parent)
    promised = packages.paths()
    lines = Path("/proc/self/maps").read_text().splitlines()
    loaded = {line.split(maxsplit=5)[5] for line in lines if ".so" in line}
    assert loaded
    others = {path for path in loaded if "-packages/" in path and not path.startswith(tuple(promised))}
    assert loaded > others
    assert [path for path in loaded - others if not path.startswith(own) and not is_in(view, path)] == []


def test_the_entries_of_a_package_are_those_that_its_files_lie_in() -> None:
    for name in packages.PROMISED:
        distribution = packages._find(name)
        assert distribution is not None and distribution.files is not None
        assert packages._tops(distribution) == {file.parts[0] for file in distribution.files}


@pytest.mark.parametrize("table", [None, "./odd/a.py,,\n", 'plain/a.py,,\n"with,comma/b.py",,\nc.py,,\n'])
def test_the_entries_of_a_package_with_an_odd_table_or_none(tmp_path: Path, table: str | None) -> None:
    folder = tmp_path / "odd-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Name: odd\nVersion: 1\n")
    if table is not None:
        (folder / "RECORD").write_text(table)
    expected = {None: set(), "./o": {"odd"}}.get(table and table[:3], {"plain", "with,comma", "c.py"})
    assert packages._tops(metadata.Distribution.at(folder)) == expected


def test_other_packages_are_not_there(view: View) -> None:
    for package in (pytest, rootfs):
        assert package.__file__ is not None and not is_in(view, package.__file__)
    added = rootfs.runtime_view(("pytest",))
    assert is_in(added, str(Path(pytest.__file__))) and is_in(added, np.__file__)


def test_what_a_package_needs_comes_with_it() -> None:
    names = {Path(path).name for path in packages.paths()}
    assert {"numpy", "pandas", "dateutil", "latex2sympy2_extended"} <= names
    assert not {"pytest", "rstar2", "aiohttp", "pip"} & names


@pytest.mark.parametrize(
    "path",
    ["/", "/proc", "/sys", "/etc", "/etc/passwd", "/etc/shadow", "/home", "/root/.ssh", "/var", "/run", "/bin/sh",
     "/usr/bin", "/usr/bin/env", "/usr/sbin", "/boot", "/mnt", "/opt", "/srv", "/dev/sda", "/dev/mem", "/tmp"],
)  # fmt: skip
def test_the_machine_is_not(view: View, path: str) -> None:
    prefixes = {sys.prefix, sys.base_prefix}
    assert not is_in(view, path) or any(path.startswith(prefix) for prefix in prefixes)


def test_no_bind_lies_below_another(view: View) -> None:
    for one in view.binds:
        for other in view.binds:
            assert one == other or not one.startswith(other.rstrip("/") + "/")


def test_everything_bound_exists(view: View) -> None:
    assert all(Path(path).exists() for path in view.binds)
    assert all(Path(path).is_absolute() for path in (*view.binds, *(link for link, _ in view.links)))


def test_no_link_lies_where_something_is_bound(view: View) -> None:
    for link, _ in view.links:
        assert not any(link == bind or link.startswith(bind + "/") for bind in view.binds)
