"""Where a stage stands in its problems. Pure.

Invariant: from one permutation to the next every problem comes once; a cursor and the stream's name say all that comes
after it, so a run that is taken up again skips no problem and repeats none.
"""

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cursor:
    epoch: int = 0
    position: int = 0
    """Problems of this epoch that were taken."""


def take(cursor: Cursor, num_wanted: int, num_problems: int, stream: str) -> tuple[list[int], Cursor]:
    """The indices of the next problems, and the cursor behind them."""
    assert num_problems > 0, "an empty set has no next problem"
    taken: list[int] = []
    while len(taken) < num_wanted:
        order = random.Random(f"{stream}/{cursor.epoch}").sample(range(num_problems), num_problems)
        piece = order[cursor.position : cursor.position + num_wanted - len(taken)]
        taken += piece
        position = cursor.position + len(piece)
        cursor = Cursor(cursor.epoch + 1, 0) if position == num_problems else Cursor(cursor.epoch, position)
    return taken, cursor
