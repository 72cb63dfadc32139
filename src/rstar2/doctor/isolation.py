"""What the sandbox can guarantee on this machine, each guarantee as a check."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rstar2.doctor.check import Check, State

if TYPE_CHECKING:
    from rstar2.sandbox.isolation.guarantees import Guarantee


def isolation_checks() -> tuple[Check, ...]:
    from rstar2.sandbox.isolation.guarantees import probe

    return checks_of(probe())


def checks_of(guarantees: "Iterable[Guarantee]") -> tuple[Check, ...]:
    return tuple(_check_of(guarantee) for guarantee in guarantees)


def _check_of(guarantee: "Guarantee") -> Check:
    """The sandbox starts without what is not required, and is then a weaker one: limited, not missing."""
    if guarantee.provided:
        return Check("isolation", guarantee.name, State.OK, guarantee.how, required=guarantee.required)
    state = State.MISSING if guarantee.required else State.LIMITED
    return Check("isolation", guarantee.name, state, "not provided", guarantee.fix, required=guarantee.required)
