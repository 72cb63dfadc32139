"""How the threads of a process that computes share the machine with others."""

import os
from collections.abc import MutableMapping

from rstar2.errors import UserError

SPIN_COUNT = 1000
"""A few microseconds. GNU's OpenMP spins for milliseconds by default: two runs on the same cores then keep each other
from running."""


def bound_spinning(environment: MutableMapping[str, str] = os.environ) -> None:
    """Before torch is loaded, since OpenMP reads this only then. Child processes inherit it; a user's own choice
    remains."""
    if "OMP_WAIT_POLICY" not in environment:
        environment.setdefault("GOMP_SPINCOUNT", str(SPIN_COUNT))


def check_threads(num_threads: int | None) -> None:
    """More threads than cores hinder each other; more than a process may have end it without a message."""
    num_cores = os.cpu_count() or 1
    if num_threads is not None and num_threads > num_cores:
        raise UserError(f"--threads of {num_threads} is more than the {num_cores} cores of this machine: lower it")


def use_threads(num_threads: int | None) -> None:
    """Use `num_threads`, or as many as this process has cores. Loads torch."""
    import torch

    from rstar2.sandbox.local import usable_cores

    torch.set_num_threads(num_threads or usable_cores())
