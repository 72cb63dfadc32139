"""All checks of this machine, in the order in which they are shown."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import rstar2
from rstar2.doctor.check import Check, DoctorReport, State
from rstar2.doctor.gpu import gpu_check
from rstar2.doctor.hub import begin_hub_check
from rstar2.doctor.machine import machine_checks
from rstar2.doctor.software import package_checks, sandbox_software_checks

if TYPE_CHECKING:
    from rstar2.sandbox.isolation.guarantees import Guarantee


def examine(run_folder: Path, *, offline: bool) -> DoctorReport:
    """With `offline` nothing is asked over the network, and nothing is reported about it."""
    from rstar2.models import data_home
    from rstar2.sandbox.isolation.guarantees import probe

    hub_finding = None if offline else begin_hub_check()
    checks = [
        *machine_checks(run_folder, data_home()),
        *sandbox_software_checks(),
        *isolation_checks(probe()),
        gpu_check(),
        *package_checks(),
    ]
    if hub_finding is not None:
        checks.append(hub_finding())
    return DoctorReport(rstar2.__version__, tuple(checks))


def isolation_checks(guarantees: "Iterable[Guarantee]") -> tuple[Check, ...]:
    """One for each guarantee. The sandbox starts without those that are not required: then they are limited."""
    return tuple(_check_of(guarantee) for guarantee in guarantees)


def _check_of(guarantee: "Guarantee") -> Check:
    if guarantee.provided:
        return Check("isolation", guarantee.name, State.OK, guarantee.how, required=guarantee.required)
    state = State.MISSING if guarantee.required else State.LIMITED
    return Check("isolation", guarantee.name, state, "not provided", guarantee.fix, required=guarantee.required)
