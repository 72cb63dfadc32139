"""One finding about the machine, and all of them together."""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

GIB = 1 << 30


class State(StrEnum):
    """How far the machine meets a check."""

    OK = "ok"
    LIMITED = "limited"
    """It works, but slower, smaller or less often."""
    MISSING = "missing"
    """Whatever needs it does not work."""


@dataclass(frozen=True, slots=True)
class Check:
    """One finding. `fix` is empty where nothing needs to be done."""

    section: str
    name: str
    state: State
    found: str
    fix: str = ""
    required: bool = False
    """Whether the core (sandbox, grading, scheduler, viewer) needs it."""


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """All findings, in the order in which a person reads them."""

    rstar2_version: str
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        return not self.blocking

    @property
    def blocking(self) -> tuple[Check, ...]:
        """What the core needs and does not have."""
        return tuple(check for check in self.checks if check.required and check.state is State.MISSING)

    def as_json(self) -> dict[str, Any]:
        return {"ok": self.ok, "version": self.rstar2_version, "checks": [asdict(check) for check in self.checks]}
