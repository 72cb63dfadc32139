"""Everything that is looked at, in the order in which it is shown."""

from pathlib import Path

import rstar2
from rstar2.doctor.check import DoctorReport
from rstar2.doctor.gpu import gpu_check
from rstar2.doctor.hub import begin_hub_check
from rstar2.doctor.isolation import isolation_checks
from rstar2.doctor.machine import machine_checks
from rstar2.doctor.software import package_checks, sandbox_software_checks


def examine(run_folder: Path, *, offline: bool) -> DoctorReport:
    """Look at this machine. With `offline` nothing is asked over the network, and nothing said about it."""
    from rstar2.models import data_home

    hub_finding = None if offline else begin_hub_check()
    checks = [
        *machine_checks(run_folder, data_home()),
        *sandbox_software_checks(),
        *isolation_checks(),
        gpu_check(),
        *package_checks(),
    ]
    if hub_finding is not None:
        checks.append(hub_finding())
    return DoctorReport(rstar2.__version__, tuple(checks))
