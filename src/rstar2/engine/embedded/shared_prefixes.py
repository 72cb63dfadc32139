"""Which decoding rows begin alike: the rollouts of a group have the blocks of their prompt in common.

Invariant: every row is in exactly one group, and what its group has in common lies in its past, so that no mask is
needed there. Nothing but the order and the number of reads depends on the grouping.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_FEWEST = 4
"""Rows whose common tile is read once for all. A group of its own costs a dozen calls a layer: fewer do not pay."""


@dataclass(frozen=True, slots=True)
class Alike:
    rows: list[int]
    num_tiles: int
    """Of the cache, that all of them begin with."""


def group_alike(table_RP: NDArray[np.int32], num_past_tiles_R: Sequence[int], blocks_per_tile: int) -> list[Alike]:
    """Of rows that look at these blocks, each with so many tiles that end before its own token."""
    groups: list[Alike] = []
    candidates = [Alike(list(range(len(table_RP))), 0)]
    while candidates:
        group = candidates.pop()
        tile = slice(group.num_tiles * blocks_per_tile, (group.num_tiles + 1) * blocks_per_tile)
        rows_by_blocks: dict[bytes, list[int]] = defaultdict(list)
        rest: list[int] = []
        for row in group.rows:
            if num_past_tiles_R[row] > group.num_tiles:
                rows_by_blocks[table_RP[row, tile].tobytes()].append(row)
            else:
                rest.append(row)
        for rows in rows_by_blocks.values():
            if len(rows) >= _FEWEST:
                candidates.append(Alike(rows, group.num_tiles + 1))
            else:
                rest += rows
        if rest:
            groups.append(Alike(rest, group.num_tiles))
    return groups
