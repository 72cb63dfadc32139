"""Control group limits, read from folders that look like the kernel's."""

from pathlib import Path

import pytest

from rstar2.sandbox.isolation.quota import core_quota, memory_limit_bytes

pytestmark = pytest.mark.unit

V2_MOUNTS = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n"
V1_MOUNTS = (
    "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n"
    "cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n"
    "cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n"
)


def make_root(root: Path, mounts: str, groups: str, files: dict[str, str]) -> Path:
    for name, text in {"proc/self/mounts": mounts, "proc/self/cgroup": groups, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_version_2_takes_the_tightest_limit_on_the_way_up(tmp_path: Path) -> None:
    root = make_root(
        tmp_path,
        V2_MOUNTS,
        "0::/slice/job\n",
        {
            "sys/fs/cgroup/slice/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/slice/memory.max": "max\n",
            "sys/fs/cgroup/slice/job/cpu.max": "400000 100000\n",
            "sys/fs/cgroup/slice/job/memory.max": "1073741824\n",
            "sys/fs/cgroup/other/cpu.max": "1000 100000\n",
        },
    )
    assert core_quota(root) == 1.5
    assert memory_limit_bytes(root) == 1 << 30


def test_version_2_without_limits(tmp_path: Path) -> None:
    files = {"sys/fs/cgroup/a/cpu.max": "max 100000\n", "sys/fs/cgroup/a/memory.max": "max\n"}
    root = make_root(tmp_path, V2_MOUNTS, "0::/a\n", files)
    assert core_quota(root) is None
    assert memory_limit_bytes(root) is None


def test_version_1(tmp_path: Path) -> None:
    root = make_root(
        tmp_path,
        V1_MOUNTS,
        "3:memory:/job\n2:cpu,cpuacct:/job\n0::/\n",
        {
            "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "50000\n",
            "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "536870912\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        },
    )
    assert core_quota(root) == 0.5
    assert memory_limit_bytes(root) == 1 << 29


def test_a_container_that_sees_its_group_as_the_mount_point(tmp_path: Path) -> None:
    root = make_root(
        tmp_path,
        V1_MOUNTS,
        "3:memory:/docker/0123abcd\n2:cpu,cpuacct:/docker/0123abcd\n",
        {
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "200000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "2147483648\n",
        },
    )
    assert core_quota(root) == 2.0
    assert memory_limit_bytes(root) == 2 << 30


def test_a_system_without_control_groups(tmp_path: Path) -> None:
    assert core_quota(tmp_path) is None
    assert memory_limit_bytes(tmp_path) is None
