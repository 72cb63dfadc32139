"""Groups of cgroup v2 on an emulated tree, because few kernels of test machines have the controllers free. It keeps the
kernel's rules that matter: controllers reach only the children of a group without processes, except at the root."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rstar2.sandbox.isolation import cgroup
from rstar2.sandbox.isolation.cgroup import ServiceGroup

pytestmark = pytest.mark.unit
CONTROLLERS = "cpu io memory pids"


class Tree:
    """`/sys/fs/cgroup` of a machine whose service was started in `service.scope`."""

    def __init__(self, root: Path, own_group: str) -> None:
        self.root = root
        self.mount_point = root / "sys/fs/cgroup"
        self.own = self.mount_point / own_group
        (root / "proc/self").mkdir(parents=True)
        (root / "proc/self/mounts").write_text("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n")
        self.mount_point.mkdir(parents=True)
        self._fill(self.mount_point, CONTROLLERS)
        (self.mount_point / "cgroup.type").unlink()
        (self.mount_point / "cgroup.subtree_control").write_text(CONTROLLERS)
        if own_group:
            self.make(self.own)
        self._enter(self.own, os.getpid())

    def _fill(self, group: Path, controllers: str) -> None:
        for name in ("cgroup.procs", "cgroup.subtree_control"):
            (group / name).write_text("")
        (group / "cgroup.type").write_text("domain\n")
        (group / "cgroup.controllers").write_text(controllers)
        if "memory" in controllers:
            for name in ("memory.max", "memory.swap.max", "memory.oom.group"):
                (group / name).write_text("")
            (group / "memory.events").write_text("oom 0\noom_kill 0\n")
        if "pids" in controllers:
            (group / "pids.max").write_text("max")

    def _enter(self, group: Path, pid: int) -> None:
        for procs in self.mount_point.glob("**/cgroup.procs"):
            procs.write_text("".join(line for line in procs.read_text().splitlines(True) if line.strip() != str(pid)))
        with (group / "cgroup.procs").open("a") as file:
            file.write(f"{pid}\n")
        if pid == os.getpid():
            own = f"0::/{group.relative_to(self.mount_point)}\n"
            (self.root / "proc/self/cgroup").write_text(own.replace("/.", "/"))

    def make(self, group: Path) -> None:
        group.mkdir()
        self._fill(group, (group.parent / "cgroup.subtree_control").read_text())

    def write(self, file: Path, text: str) -> None:
        group = file.parent
        if file.name == "cgroup.procs":
            self._enter(group, int(text))
        elif file.name == "cgroup.subtree_control":
            if group != self.mount_point and (group / "cgroup.procs").read_text():
                raise OSError(errno.EBUSY, "the group has processes")
            file.write_text(f"{file.read_text()} {text.removeprefix('+')}".strip())
        else:
            file.write_text(text)


@pytest.fixture
def make_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Tree]:
    def make(own_group: str) -> Tree:
        tree = Tree(tmp_path, own_group)
        monkeypatch.setattr(cgroup, "_make", tree.make)
        monkeypatch.setattr(cgroup, "_write", tree.write)
        monkeypatch.setattr(cgroup, "_remove", lambda group, *_, **__: shutil.rmtree(group) is None)
        return tree

    return make


@pytest.mark.parametrize("own_group", ["service.scope", ""], ids=["in its scope", "at the root"])
def test_slots_have_all_limits(make_tree: Callable[[str], Tree], own_group: str) -> None:
    tree = make_tree(own_group)
    hierarchy = cgroup.find_hierarchy(tree.root)
    assert hierarchy is not None and hierarchy.version == 2 and hierarchy.root == tree.own
    slot = ServiceGroup(hierarchy).make_slot("slot-0")
    slot.set_limit(64 << 20)
    read = {name: (slot.path / name).read_text() for name in ("memory.max", "memory.swap.max", "memory.oom.group")}
    assert read == {"memory.max": str(64 << 20), "memory.swap.max": "0", "memory.oom.group": "1"}
    assert (slot.path / "pids.max").read_text() == str(cgroup.MAX_PROCESSES)
    assert slot.num_kills() == 0
    slot.close()


def test_the_service_moves_into_a_leaf_and_finds_its_slots_again(make_tree: Callable[[str], Tree]) -> None:
    tree = make_tree("service.scope")
    first = cgroup.find_hierarchy(tree.root)
    assert (tree.own / "cgroup.procs").read_text() == ""
    assert str(os.getpid()) in (tree.own / "rstar2-sandbox-leaf/cgroup.procs").read_text()
    assert cgroup.find_hierarchy(tree.root) == first
    assert first is not None and first.root == tree.own


def test_processes_of_others_are_not_moved(make_tree: Callable[[str], Tree]) -> None:
    tree = make_tree("session.scope")
    stranger = next(int(path.name) for path in Path("/proc").glob("[0-9]*") if path.name not in _relatives())
    tree._enter(tree.own, stranger)
    assert cgroup.find_hierarchy(tree.root) is None
    assert set((tree.own / "cgroup.procs").read_text().split()) == {str(stranger), str(os.getpid())}


def _relatives() -> set[str]:
    """This process and its ancestors, as names in /proc."""
    return {str(pid) for pid in cgroup._line_of(os.getpid())}


def test_no_memory_controller(make_tree: Callable[[str], Tree]) -> None:
    tree = make_tree("service.scope")
    (tree.own / "cgroup.controllers").write_text("cpu pids")
    assert cgroup.find_hierarchy(tree.root) is None
    assert str(os.getpid()) in (tree.own / "cgroup.procs").read_text()
