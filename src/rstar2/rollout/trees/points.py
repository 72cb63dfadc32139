"""Rules for the places where a rollout may be forked: before one of its turns, or inside it. Pure.

A rule says before which turns the state of a running rollout is copied, and, when the rollout has ended, how many of
the first tokens of such a turn its branches keep. They sample the rest of the turn anew, from that state.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rstar2.records import Fault, Turn


@dataclass(frozen=True, slots=True)
class PointRule:
    copies: Callable[[Sequence[Turn]], bool]
    """Whether a branch may begin in the turn after these."""
    cut: Callable[[Turn, int, np.random.Generator], int | None] = lambda _turn, _first, _rng: 0
    """Takes a turn, the number of its first token that may be sampled anew, and a generator; returns how many of the
    turn's tokens branches keep. None: they do not fork here."""
    is_inside: bool = False
    """Whether it may fork inside a turn, also the first one of a rollout."""
    needs_entropies: bool = False
    """Whether the engine must report the entropy of each token."""


def has_failed(turn: Turn) -> bool:
    """Whether one of the turn's calls failed through the model's fault."""
    return any(result.fault is Fault.POLICY for result in turn.results)


def _after_result(turns: Sequence[Turn]) -> bool:
    return bool(turns) and bool(turns[-1].results)


def _after_first_result(turns: Sequence[Turn]) -> bool:
    return _after_result(turns) and not any(turn.results for turn in turns[:-1])


def _after_error(turns: Sequence[Turn]) -> bool:
    return bool(turns) and has_failed(turns[-1])


def _anywhere(_turns: Sequence[Turn]) -> bool:
    return True


def _at_random(turn: Turn, first: int, rng: np.random.Generator) -> int | None:
    return int(rng.integers(first, len(turn.token_ids))) if first < len(turn.token_ids) else None


def _at_highest_entropy(turn: Turn, first: int, _rng: np.random.Generator) -> int | None:
    """Where the token with the highest entropy is, the earliest of equal ones."""
    places = range(first, len(turn.entropies))
    return max(places, key=lambda place: (turn.entropies[place], -place), default=None)


RESULTS = PointRule(_after_result)
FIRST_RESULT = PointRule(_after_first_result)
ERRORS = PointRule(_after_error)
RANDOM = PointRule(_anywhere, _at_random, is_inside=True)
ENTROPY = PointRule(_anywhere, _at_highest_entropy, is_inside=True, needs_entropies=True)
