"""The machine itself: Python, platform, cores, memory, room on disk.

The functions named `*_check` decide from facts alone; `machine_checks` gathers the facts.
"""

import os
import platform
import shutil
import sys
from pathlib import Path

from rstar2.doctor.check import GIB, Check, State
from rstar2.sandbox.isolation.quota import core_quota, memory_limit_bytes

SECTION = "machine"

MIN_PYTHON = (3, 11)
MIN_MEMORY_BYTES = 1 * GIB
"""One execution at its default limit."""
ROOMY_MEMORY_BYTES = 4 * GIB
"""The 135M model with its gradients and Adam's moments in 32 bits (2.2 GB), and warm sandbox workers."""
MIN_DISK_BYTES = GIB // 2
"""The smallest model, in 16 bits, and a short run."""
ROOMY_DISK_BYTES = 8 * GIB
"""A run of that model that keeps a few checkpoints (2 GB each, with the optimizer) and its traces."""


def machine_checks(run_folder: Path, data_home: Path) -> tuple[Check, ...]:
    return (
        python_check(sys.version_info[:3]),
        platform_check(platform.system(), f"{platform.system()} {platform.release()}, {platform.machine()}"),
        cores_check(_num_allowed_cores(), core_quota()),
        memory_check(_physical_bytes(), memory_limit_bytes()),
        _disk_check_of("room for runs", run_folder, "start runs in another folder"),
        _disk_check_of("room for models and data", data_home, "set RSTAR2_HOME to another folder"),
    )


def python_check(version: tuple[int, ...]) -> Check:
    found = ".".join(map(str, version))
    if version < MIN_PYTHON:
        needed = ".".join(map(str, MIN_PYTHON))
        return Check(SECTION, "python", State.MISSING, found, f"use Python {needed} or later", required=True)
    return Check(SECTION, "python", State.OK, found, required=True)


def platform_check(system: str, description: str) -> Check:
    if system == "Linux":
        return Check(SECTION, "platform", State.OK, description, required=True)
    fix = "use Linux, in a virtual machine if need be: isolation is made of Linux's own parts"
    state = State.LIMITED if system == "Darwin" else State.MISSING
    return Check(SECTION, "platform", state, description, fix, required=True)


def cores_check(num_allowed: int, quota: float | None) -> Check:
    """`num_allowed` by the affinity mask, `quota` by the control group."""
    usable = num_allowed if quota is None else min(float(num_allowed), quota)
    found = f"{usable:g} usable"
    fix = ""
    if quota is not None and quota < num_allowed:
        found += f" ({num_allowed} are there, the control group allows {quota:g})"
        fix = "raise the container's CPU limit"
    if usable < 2:
        fix = fix or "use a machine with more cores: the sandbox shares this one with everything else"
        return Check(SECTION, "cores", State.LIMITED, found, fix, required=True)
    return Check(SECTION, "cores", State.OK, found, fix, required=True)


def memory_check(physical_bytes: int, limit_bytes: int | None) -> Check:
    usable_bytes = physical_bytes if limit_bytes is None else min(physical_bytes, limit_bytes)
    found = f"{usable_bytes / GIB:.1f} GiB usable"
    fix = "use a machine with more memory"
    if usable_bytes < physical_bytes:
        found += f" (of {physical_bytes / GIB:.1f} GiB; the control group allows no more)"
        fix = "raise the container's memory limit"
    state = _state_by_size(usable_bytes, MIN_MEMORY_BYTES, ROOMY_MEMORY_BYTES)
    if state is State.LIMITED:
        fix += ", to train more than the smallest models"
    return Check(SECTION, "memory", state, found, "" if state is State.OK else fix, required=True)


def disk_check(name: str, folder: Path, free_bytes: int, writable: bool, fix: str) -> Check:
    if not writable:
        return Check(SECTION, name, State.MISSING, f"{folder} cannot be written to", fix, required=True)
    state = _state_by_size(free_bytes, MIN_DISK_BYTES, ROOMY_DISK_BYTES)
    found = f"{free_bytes / GIB:.1f} GiB free at {folder}"
    return Check(SECTION, name, state, found, "" if state is State.OK else f"free some room, or {fix}", required=True)


def _state_by_size(num_bytes: int, minimum_bytes: int, roomy_bytes: int) -> State:
    if num_bytes < minimum_bytes:
        return State.MISSING
    return State.LIMITED if num_bytes < roomy_bytes else State.OK


def _disk_check_of(name: str, folder: Path, fix: str) -> Check:
    there = folder.absolute()
    while not there.exists():
        there = there.parent
    writable = there.is_dir() and os.access(there, os.W_OK | os.X_OK)
    return disk_check(name, folder.absolute(), shutil.disk_usage(there).free, writable, fix)


def _num_allowed_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _physical_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
