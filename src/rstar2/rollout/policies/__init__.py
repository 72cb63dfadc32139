"""The scheduling policies. Each baseline does what its original does; `kv-aware` is ours."""

from collections.abc import Callable

from rstar2.errors import UserError
from rstar2.rollout.policies.kv_aware import KvAware, KvAwareSettings
from rstar2.rollout.policies.static import Static
from rstar2.rollout.policies.sticky import LeastRequests, RoundRobin
from rstar2.rollout.policies.worst_case import WorstCase
from rstar2.rollout.scheduler import Scheduler

POLICIES: dict[str, Callable[[], Scheduler]] = {
    "static": Static,
    "round-robin": RoundRobin,
    "least-requests": LeastRequests,
    "worst-case": WorstCase,
    "kv-aware": KvAware,
}


def make_policy(name: str) -> Scheduler:
    if name not in POLICIES:
        raise UserError(f"there is no policy {name!r}; there are {', '.join(POLICIES)}")
    return POLICIES[name]()


__all__ = [
    "POLICIES",
    "KvAware",
    "KvAwareSettings",
    "LeastRequests",
    "RoundRobin",
    "Static",
    "WorstCase",
    "make_policy",
]
