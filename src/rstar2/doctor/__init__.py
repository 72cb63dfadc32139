"""What this machine can do, what is missing, and how to fix it.

Promise: looking changes nothing, takes seconds, and imports nothing heavy. A probe that finds nothing out reports
that; it never fails the report.
May import: sandbox, models, engine.
"""

from rstar2.doctor.check import Check, DoctorReport, State
from rstar2.doctor.examine import examine

__all__ = ["Check", "DoctorReport", "State", "examine"]
