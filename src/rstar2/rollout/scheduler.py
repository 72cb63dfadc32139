"""The one interface of every policy: facts in, decisions out.

A scheduler has no clock, does no I/O and waits for nothing, so the live driver and the simulator run the same code, and
the same facts in the same order give the same decisions.
"""

from collections.abc import Sequence
from typing import Protocol

from rstar2.rollout.decisions import Decision
from rstar2.rollout.facts import Fact


class Scheduler(Protocol):
    wants_reports: bool
    """Whether it learns from `TokensGrown` and `EngineReported`; without that they need not be sent."""

    def handle(self, fact: Fact) -> Sequence[Decision]: ...
