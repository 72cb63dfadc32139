"""The scheduling policies. Each baseline does what its original does; `kv-aware` is ours.

`KvAware` is imported from its own module: it loads SciPy.
"""

from collections.abc import Callable

from rstar2.extensions import POLICIES
from rstar2.rollout.policies.static import Static
from rstar2.rollout.policies.sticky import LeastRequests, RoundRobin
from rstar2.rollout.policies.worst_case import WorstCase
from rstar2.rollout.scheduler import Scheduler


def make_policy(name: str) -> Scheduler:
    """Makes the policy that the table has under this name, or that is at `package.module:name`."""
    make: Callable[[], Scheduler] = POLICIES.load(name)
    return make()


__all__ = ["POLICIES", "LeastRequests", "RoundRobin", "Static", "WorstCase", "make_policy"]
