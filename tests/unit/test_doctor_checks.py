"""The deciders of `rstar2 doctor`: facts in, a finding out."""

import sys
from pathlib import Path

import pytest

from rstar2.doctor import Check, DoctorReport, State
from rstar2.doctor.check import GIB
from rstar2.doctor.examine import isolation_checks
from rstar2.doctor.gpu import Gpu, decide_gpu, gpu_check, parse_gpus, parse_torch_backend
from rstar2.doctor.machine import cores_check, disk_check, machine_checks, memory_check, platform_check, python_check
from rstar2.doctor.software import OPTIONAL_PACKAGES, compiler_check, fast_path_check, package_check, package_checks
from rstar2.sandbox.isolation.guarantees import Guarantee

pytestmark = pytest.mark.unit


def test_python_and_platform() -> None:
    assert python_check((3, 10, 9)).state is State.MISSING
    assert python_check((3, 11, 0)).state is State.OK
    assert platform_check("Linux", "Linux-6").state is State.OK
    assert platform_check("Darwin", "macOS-15").state is State.LIMITED
    assert platform_check("Windows", "Windows-11").state is State.MISSING


@pytest.mark.parametrize(
    ("num_allowed", "quota", "state", "found"),
    [
        (8, None, State.OK, "8 usable"),
        (8, 16.0, State.OK, "8 usable"),
        (8, 2.5, State.OK, "2.5 usable (8 are there, the control group allows 2.5)"),
        (8, 0.5, State.LIMITED, "0.5 usable (8 are there, the control group allows 0.5)"),
        (1, None, State.LIMITED, "1 usable"),
    ],
)
def test_cores(num_allowed: int, quota: float | None, state: State, found: str) -> None:
    check = cores_check(num_allowed, quota)
    assert (check.state, check.found) == (state, found)
    assert check.fix or state is State.OK


@pytest.mark.parametrize(
    ("physical_gib", "limit_gib", "state"),
    [
        (16, None, State.OK),
        (16, 64, State.OK),
        (16, 2, State.LIMITED),
        (16, 0.5, State.MISSING),
        (2, None, State.LIMITED),
    ],
)
def test_memory(physical_gib: int, limit_gib: float | None, state: State) -> None:
    check = memory_check(physical_gib * GIB, None if limit_gib is None else int(limit_gib * GIB))
    assert check.state is state
    assert ("control group" in check.found) == (limit_gib is not None and limit_gib < physical_gib)
    assert ("container" in check.fix) == (state is not State.OK and limit_gib is not None)


def test_disk() -> None:
    folder = Path("/somewhere")
    assert disk_check("room", folder, 100 * GIB, True, "move").state is State.OK
    assert disk_check("room", folder, 2 * GIB, True, "move").fix == "free some room, or move"
    assert disk_check("room", folder, 1, True, "move").state is State.MISSING
    unwritable = disk_check("room", folder, 100 * GIB, False, "move")
    assert (unwritable.state, unwritable.found) == (State.MISSING, "/somewhere cannot be written to")


def test_folders_that_are_not_there_yet_are_judged_by_where_they_will_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    checks = {check.name: check for check in machine_checks(tmp_path / "a" / "b", tmp_path / "file" / "c")}
    assert checks["room for runs"].found.endswith(f"free at {tmp_path / 'a' / 'b'}")
    assert checks["room for models and data"].state is State.MISSING, "a file is no folder"
    assert not (tmp_path / "a").exists(), "looking changes nothing"


def test_the_fast_path_and_its_compiler() -> None:
    assert fast_path_check(None, None).state is State.OK
    slow = fast_path_check("No module named 'rstar2.sandbox.slots._fork'", None)
    assert slow.state is State.LIMITED
    assert slow.fix.startswith("install a C compiler and the headers of Python, then install rstar2 again")
    assert fast_path_check("no", "/usr/bin/cc").fix.startswith("install rstar2 again")
    assert compiler_check("/usr/bin/cc", False).state is State.OK
    assert compiler_check(None, True).state is State.OK
    assert compiler_check(None, False).state is State.LIMITED


def test_optional_packages_name_their_extra_and_are_not_imported() -> None:
    assert package_check("torch", "2.13.0") == Check("optional", "torch", State.OK, "2.13.0")
    assert package_check("vllm", "0.32.0").state is State.OK
    wrong = package_check("vllm", "0.26.0")
    assert (wrong.state, wrong.found) == (State.MISSING, "0.26.0, which the vLLM engine is not written for")
    assert "0.28 to 0.32" in wrong.fix
    assert package_check("ray", None).fix == "for more than one machine: `pip install 'rstar2[cluster]'`"
    before = set(sys.modules)
    assert [check.name for check in package_checks()] == list(OPTIONAL_PACKAGES)
    assert not {"torch", "vllm", "ray"} & (set(sys.modules) - before)


NVIDIA_SMI = "NVIDIA H200, 143771, 570.86.15\nNVIDIA H200, 143771, 570.86.15\n"


def test_gpus() -> None:
    gpus = parse_gpus(NVIDIA_SMI)
    assert gpus == (Gpu("NVIDIA H200", "143771", "570.86.15"),) * 2
    good = decide_gpu(gpus, "", "cuda 13.0")
    assert (good.state, good.found) == (
        State.OK,
        "2: NVIDIA H200 (143771 MiB), NVIDIA H200 (143771 MiB), driver 570.86.15; torch is built for cuda 13.0",
    )
    assert decide_gpu(gpus, "", None).state is State.OK
    assert decide_gpu(gpus, "", "cpu").state is State.LIMITED
    assert decide_gpu((), "nvidia-smi is not there", None).found == "none found (nvidia-smi is not there)"


@pytest.mark.parametrize(
    ("version_file", "backend"),
    [
        ("cuda: Optional[str] = None\nhip: Optional[str] = None\n", "cpu"),
        ("cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n", "cuda 13.0"),
        ("cuda = '12.8'\n", "cuda 12.8"),
        ("cuda: Optional[str] = None\nhip: Optional[str] = '7.1'\n", "hip 7.1"),
    ],
)
def test_what_torch_is_built_for(version_file: str, backend: str) -> None:
    assert parse_torch_backend(version_file) == backend


def fake_tool(folder: Path, script: str) -> None:
    tool = folder / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)


def test_a_driver_tool_that_fails_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    fake_tool(tmp_path, "echo 'NVIDIA-SMI has failed: no driver'; exit 9")
    assert gpu_check().found == "none found (nvidia-smi says: NVIDIA-SMI has failed: no driver)"
    fake_tool(tmp_path, "echo 'NVIDIA H200, 143771, 570.86.15'")
    assert gpu_check().found.startswith("1: NVIDIA H200 (143771 MiB), driver 570.86.15")
    monkeypatch.setattr("rstar2.doctor.gpu.QUERY_DEADLINE_S", 0.1)
    fake_tool(tmp_path, "exec sleep 20")
    assert gpu_check().found == "none found (nvidia-smi gave no answer within 0.1 s)"


def test_guarantees_become_checks() -> None:
    provided, weaker, lacking = isolation_checks(
        [
            Guarantee("no network", True, "network namespace", "not needed", required=True),
            Guarantee("memory", False, "", "run as root", required=False),
            Guarantee("filter", False, "", "use x86_64", required=True),
        ]
    )
    assert provided == Check("isolation", "no network", State.OK, "network namespace", required=True)
    assert weaker == Check("isolation", "memory", State.LIMITED, "not provided", "run as root")
    assert lacking == Check("isolation", "filter", State.MISSING, "not provided", "use x86_64", required=True)


def test_only_what_is_required_and_missing_makes_a_report_bad() -> None:
    fine = Check("machine", "python", State.OK, "3.11", required=True)
    limited = Check("machine", "memory", State.LIMITED, "2 GiB", "more", required=True)
    optional = Check("optional", "ray", State.MISSING, "not installed", "install it")
    missing = Check("machine", "platform", State.MISSING, "Windows", "use Linux", required=True)
    assert DoctorReport("1", (fine, limited, optional)).ok
    bad = DoctorReport("1", (fine, missing, optional))
    assert not bad.ok
    assert bad.blocking == (missing,)
    assert bad.as_json()["ok"] is False
    assert bad.as_json()["checks"][1] == {
        "section": "machine",
        "name": "platform",
        "state": "missing",
        "found": "Windows",
        "fix": "use Linux",
        "required": True,
    }
