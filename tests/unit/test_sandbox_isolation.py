"""The table of guarantees, and the refusal to run below its minimum."""

import pytest

from rstar2.errors import UserError
from rstar2.sandbox import host, isolation
from rstar2.sandbox.isolation import Capabilities

pytestmark = pytest.mark.unit

EVERYTHING = Capabilities(
    True, True, True, True, isolation.cgroup.Hierarchy(isolation.cgroup.Path("/"), isolation.cgroup._V2)
)
UNPRIVILEGED = Capabilities(True, False, True, True, None)
BARE = Capabilities(True, False, False, True, None)
FOREIGN = Capabilities(False, False, False, False, None)


def test_everything_is_provided_as_root() -> None:
    assert all(row.provided and row.how for row in isolation.describe(EVERYTHING))
    layers = isolation.choose_layers(EVERYTHING)
    assert layers.namespaces and layers.distinct_uid and not layers.user_namespace


def test_an_ordinary_user_lacks_only_what_is_not_required() -> None:
    lacking = [row for row in isolation.describe(UNPRIVILEGED) if not row.provided]
    assert lacking and not any(row.required for row in lacking)
    assert all(row.fix for row in lacking)
    layers = isolation.choose_layers(UNPRIVILEGED)
    assert layers.namespaces and layers.user_namespace and not layers.distinct_uid


def test_below_the_minimum_it_refuses_and_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "detect", lambda: BARE)
    with pytest.raises(UserError, match=r"(?s)no network.*--allow-weak-isolation") as refusal:
        host.decide_layers(host.HostConfig())
    assert "unprivileged_userns_clone" in str(refusal.value)
    weak = host.decide_layers(host.HostConfig(allow_weak_isolation=True))
    assert weak.seccomp and not weak.namespaces


def test_other_systems_are_told_of_the_unsafe_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "detect", lambda: FOREIGN)
    with pytest.raises(UserError, match=r"needs Linux.*--unsafe"):
        host.decide_layers(host.HostConfig(allow_weak_isolation=True))
