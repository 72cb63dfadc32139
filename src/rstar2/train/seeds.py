"""Seeds for every random choice of a run, from the recipe's seed and a name, so no generator state has to be saved.

Invariant: every problem of a stage comes once in each epoch, in a new order; the cursor and the stream's name determine
all problems that follow, so a resumed run skips none and repeats none.
"""

import hashlib
import random
from dataclasses import dataclass


def named_seed(seed: int, *names: str | int) -> int:
    """63 bits that depend on the seed and on every name, in order."""
    text = "/".join(map(str, (seed, *names)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


@dataclass(frozen=True, slots=True)
class Cursor:
    """The position in a stage's problems."""

    epoch: int = 0
    position: int = 0
    """How many problems of this epoch were taken."""


def take(cursor: Cursor, num_wanted: int, num_problems: int, stream: str) -> tuple[list[int], Cursor]:
    """The indices of the next problems, and the cursor after them."""
    assert num_problems > 0, "an empty set has no next problem"
    taken: list[int] = []
    while len(taken) < num_wanted:
        order = random.Random(f"{stream}/{cursor.epoch}").sample(range(num_problems), num_problems)
        piece = order[cursor.position : cursor.position + num_wanted - len(taken)]
        taken += piece
        position = cursor.position + len(piece)
        cursor = Cursor(cursor.epoch + 1, 0) if position == num_problems else Cursor(cursor.epoch, position)
    return taken, cursor
