"""How many cores the sandbox counts on."""

import os

import pytest

from rstar2.sandbox import local

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("quota", "expected"), [(None, 4), (0.2, 1), (1.0, 1), (1.5, 2), (4.0, 4), (64.0, 4)], ids=lambda value: str(value)
)
def test_a_control_group_may_leave_fewer_cores_than_there_are(
    monkeypatch: pytest.MonkeyPatch, quota: float | None, expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    monkeypatch.setattr(local, "core_quota", lambda: quota)
    assert local.usable_cores() == expected
    assert local.LocalConfig().num_young == 4 * expected
