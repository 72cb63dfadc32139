"""The table of guarantees, and the refusal to run below its minimum."""

import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from rstar2.errors import UserError
from rstar2.sandbox.isolation import guarantees, linux, uids
from rstar2.sandbox.isolation.guarantees import Capabilities
from rstar2.sandbox.slots import slot_factory

pytestmark = pytest.mark.unit

EVERYTHING = Capabilities(
    True,
    True,
    True,
    True,
    guarantees.cgroup.Hierarchy(guarantees.cgroup.Path("/"), guarantees.cgroup._V2),
    landlock_version=1,
    can_raise_priority=True,
)
UNPRIVILEGED = Capabilities(True, False, True, True, None)
ROOT_WITHOUT_RIGHTS = Capabilities(True, False, True, True, None, "give root CAP_KILL", is_machine_root=True)
BARE = Capabilities(True, False, False, True, None)
FOREIGN = Capabilities(False, False, False, False, None)


def test_everything_is_provided_as_root() -> None:
    rows = [row for row in guarantees.describe(EVERYTHING) if row.name != guarantees.COUNTS_OF_THE_MACHINE]
    assert all(row.provided and row.how for row in rows)
    assert guarantees.COUNTS_OF_THE_MACHINE not in guarantees.lacking(guarantees.describe(EVERYTHING))
    layers = guarantees.choose_layers(EVERYTHING)
    assert layers.namespaces and layers.distinct_uid and not layers.user_namespace


def test_an_ordinary_user_lacks_only_what_is_not_required() -> None:
    lacking = [row for row in guarantees.describe(UNPRIVILEGED) if not row.provided]
    assert lacking and not any(row.required for row in lacking)
    assert all(row.fix for row in lacking)
    layers = guarantees.choose_layers(UNPRIVILEGED)
    assert layers.namespaces and layers.user_namespace and not layers.distinct_uid


def test_below_the_minimum_it_refuses_and_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarantees, "detect", lambda: BARE)
    with pytest.raises(UserError, match=r"(?s)no network.*--allow-weak-isolation") as refusal:
        slot_factory.decide_layers(slot_factory.SlotConfig())
    assert "unprivileged_userns_clone" in str(refusal.value)
    weak = slot_factory.decide_layers(slot_factory.SlotConfig(allow_weak_isolation=True))
    assert weak.seccomp and not weak.namespaces


def test_other_systems_are_told_of_the_unsafe_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarantees, "detect", lambda: FOREIGN)
    with pytest.raises(UserError, match=r"needs Linux.*--unsafe"):
        slot_factory.decide_layers(slot_factory.SlotConfig(allow_weak_isolation=True))


ALL_IDS, SOME_IDS, OWN_ID = "         0          0 4294967295\n", "0 100000 65536\n", "0 1000 1\n1 100000 65536\n"
ALL_CAPABILITIES = (1 << 41) - 1


def test_root_that_has_the_rights_and_the_ids_needs_nothing() -> None:
    assert guarantees.what_privilege_needs(0, ALL_CAPABILITIES, ALL_IDS, ALL_IDS) == ""


@pytest.mark.parametrize(("uid_map", "gid_map"), [(SOME_IDS, SOME_IDS), (OWN_ID, ALL_IDS), (ALL_IDS, SOME_IDS)])
def test_root_of_a_small_user_namespace_is_not_privileged(uid_map: str, gid_map: str) -> None:
    """As in rootless Docker, or a Kubernetes pod with `hostUsers: false`: the slots' uids do not exist there."""
    needed = guarantees.what_privilege_needs(0, ALL_CAPABILITIES, uid_map, gid_map)
    assert needed == "map the uids and gids 1073741824 to 2147418111 into this user namespace"


def test_every_uid_that_a_slot_can_get_is_among_those_asked_for() -> None:
    numbers = [uids.STATELESS_NUMBERS.draw(), uids.SESSION_NUMBERS.draw(), 0, uids.NUM_UIDS_PER_BLOCK - 1]
    found = [uids.uid_of(block, number) for block in (0, uids.NUM_BLOCKS - 1) for number in numbers]
    assert min(found) >= 1073741824 and max(found) <= 2147418111


def test_two_processes_never_lease_the_same_block(tmp_path: Path) -> None:
    """Whatever their process ids, which repeat between process namespaces."""
    program = (
        "import pathlib\nfrom rstar2.sandbox.isolation import uids\n"
        f"print(uids.lock_block(pathlib.Path({str(tmp_path)!r}), 7))"
    )

    def ask() -> str:
        return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout

    assert ask() == "True\n"  # and it has ended
    assert uids.lock_block(tmp_path, 7)
    assert ask() == "False\n"


def test_uids_tell_nothing_of_how_many_were_used() -> None:
    drawn = [uids.STATELESS_NUMBERS.draw() for _ in range(200)]
    assert len(set(drawn)) == 200
    assert max(abs(one - other) for one, other in itertools.pairwise(drawn)) > 100


@pytest.mark.parametrize(
    "capability",
    [linux.CAP_SYS_ADMIN, linux.CAP_SETUID, linux.CAP_SETGID, linux.CAP_SETPCAP, linux.CAP_KILL, linux.CAP_SYS_NICE],
)
def test_root_without_a_right_that_a_slot_uses_is_not_privileged(capability: int) -> None:
    needed = guarantees.what_privilege_needs(0, ALL_CAPABILITIES & ~(1 << capability), ALL_IDS, ALL_IDS)
    assert needed.startswith("give root CAP_")


def test_root_without_rights_is_refused_because_its_processes_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarantees, "detect", lambda: ROOT_WITHOUT_RIGHTS)
    with pytest.raises(UserError, match=r"processes are limited: give root CAP_KILL, or run as an ordinary user"):
        slot_factory.decide_layers(slot_factory.SlotConfig())
    assert slot_factory.decide_layers(slot_factory.SlotConfig(allow_weak_isolation=True)).user_namespace
