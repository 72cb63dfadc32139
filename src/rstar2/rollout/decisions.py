"""What a scheduler decides. Whoever asked carries the decisions out in their order.

Invariant: `Start` comes once for each rollout, before any other decision about it; `Resume` and `Move` are answers to a
rollout that wants to go on (its tool returned, its turn was cancelled, its engine was lost).
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Start:
    """Begin the first turn on this engine."""

    rollout: str
    engine: str


@dataclass(frozen=True, slots=True)
class KeepWaiting:
    """There is no room for it now; it is remembered, and a later fact will bring its start or its resumption."""

    rollout: str


@dataclass(frozen=True, slots=True)
class Resume:
    """Go on where it was before: its cache may still be there."""

    rollout: str
    engine: str


@dataclass(frozen=True, slots=True)
class Move:
    """Go on elsewhere, at the price of computing its context again."""

    rollout: str
    source: str
    target: str


@dataclass(frozen=True, slots=True)
class Evict:
    """Give up the cache of a rollout that waits for its tool."""

    rollout: str
    engine: str


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop the running turn. `TurnCancelled` confirms it, unless the turn ended by itself before."""

    rollout: str
    engine: str


Decision = Start | KeepWaiting | Resume | Move | Evict | Cancel
