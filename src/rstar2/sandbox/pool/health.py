"""Whether a node can be given work: a pure reading of what it answered, or did not, when it was last asked."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from rstar2.sandbox.isolation.guarantees import Guarantee


class NodeState(StrEnum):
    JOINING = "joining"
    """Known, and not heard from yet."""
    READY = "ready"
    """The only state in which it is given calls."""
    SUSPECT = "suspect"
    """It failed a call or did not answer. What it has, it keeps; it is asked again before it is given more."""
    LOST = "lost"
    """It failed to answer too often. What it had is rerun elsewhere. One answer brings it back."""
    DRAINING = "draining"
    """It is leaving. What it has, it finishes."""


@dataclass(frozen=True, slots=True)
class NodeReport:
    """What a node says of itself."""

    is_draining: bool
    num_slots: int
    guarantees: Sequence[Guarantee] = ()


Probe = Callable[[], Awaitable[NodeReport]]
"""Asks a node how it is. It raises if the node does not answer; how long that may take is the asker's business."""


@dataclass(frozen=True, slots=True)
class HealthConfig:
    period_s: float = 1.0
    """Between an answer and the next question. A failed call asks at once."""
    deadline_s: float = 3.0
    """A node that hangs (stopped, swapping, cut off) is one that does not answer by then. Far above what a node under
    full load needs, because to take a slow one for lost is to do its work twice."""
    num_failures_to_lose: int = 3
    """Unanswered questions in a row; a restart of a node's server takes less."""
    forget_after_s: float = 600.0
    """A node that joined by itself and has been lost for so long will not come back under this name."""


def state_after(report: NodeReport | None, num_failures: int, config: HealthConfig, state: NodeState) -> NodeState:
    """The state that follows an answer, or the lack of one; `num_failures` counts those in a row, this one included."""
    if report is not None:
        return NodeState.DRAINING if report.is_draining else NodeState.READY
    if num_failures >= config.num_failures_to_lose:
        return NodeState.LOST
    return state if state in (NodeState.JOINING, NodeState.LOST, NodeState.DRAINING) else NodeState.SUSPECT
