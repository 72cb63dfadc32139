"""Chooses the node for the next call: the less loaded of two drawn at random. Pure; the caller passes the random
generator.

Two choices keep the fullest node close to the mean, which one random choice does not. Always choosing the least loaded
would send simultaneous callers to the same node; two choices spread them.
"""

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Candidate:
    """The facts about a node that the choice needs."""

    name: str
    num_slots: int
    """Programs it can run at a time, in units that all nodes share (usually cores)."""
    num_outstanding: int
    capacity: int
    """The maximum number of its outstanding calls."""
    takes_calls: bool

    @property
    def has_room(self) -> bool:
        return self.takes_calls and self.num_outstanding < self.capacity

    @property
    def load_with_one_more(self) -> float:
        return (self.num_outstanding + 1) / self.num_slots


def choose(candidates: Sequence[Candidate], rng: random.Random, avoid: Collection[str] = ()) -> Candidate | None:
    """Choose a node that takes calls and has room; None if there is none. Of two, drawn by their slots, it is the one
    less loaded with the call. A node in `avoid` is chosen only if there is no other."""
    with_room = [candidate for candidate in candidates if candidate.has_room]
    drawable = [candidate for candidate in with_room if candidate.name not in avoid] or with_room
    if len(drawable) < 2:
        return drawable[0] if drawable else None
    first = _draw(drawable, rng)
    second = _draw([candidate for candidate in drawable if candidate is not first], rng)
    return min(first, second, key=lambda candidate: candidate.load_with_one_more)


def _draw(candidates: Sequence[Candidate], rng: random.Random) -> Candidate:
    return rng.choices(candidates, weights=[candidate.num_slots for candidate in candidates])[0]
