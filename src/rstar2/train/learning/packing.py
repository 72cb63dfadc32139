"""Divides sequences into micro-batches by tokens. Pure.

Invariant: every sequence is in exactly one micro-batch, uncut; none has more than `max_tokens` unless it is alone in
it. The order is a function of the lengths, so the same step is always packed in the same way. All this holds for
families of sequences too, which share a prefix.
"""

import heapq
from collections.abc import Sequence

import numpy as np


def pack(lengths: Sequence[int], max_tokens: int, num_ranks: int = 1) -> list[list[int]]:
    """Indices of the sequences of each micro-batch: as few as possible, or as even as possible for many ranks."""
    longest_first = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    if num_ranks == 1:
        return _first_fit(longest_first, lengths, max_tokens)
    # Ranks wait for the slowest at every micro-batch, so all of them get one of about the same size.
    num_packs = num_ranks * max(1, -(-sum(lengths) // (max_tokens * num_ranks)))
    while True:
        packs = _level(longest_first, lengths, num_packs)
        if all(len(indices) == 1 or _size(indices, lengths) <= max_tokens for indices in packs):
            return sorted(packs, key=lambda indices: (-_size(indices, lengths), indices))
        num_packs += num_ranks


def num_shared_tokens(sequences: Sequence[Sequence[int]]) -> int:
    """The length of the sequences' common prefix, which leaves each at least one more token. 0 for a single
    sequence."""
    if len(sequences) == 1:
        return 0
    num_shared = min(len(ids) for ids in sequences) - 1
    first = np.asarray(sequences[0][:num_shared])
    for ids in sequences[1:]:
        differs = np.flatnonzero(first[:num_shared] != np.asarray(ids[:num_shared]))
        num_shared = int(differs[0]) if len(differs) else num_shared
    return num_shared


def cut_family(lengths: Sequence[int], num_shared: int, max_tokens: int) -> list[list[int]]:
    """Indices of the sequences of one family, in parts of at most `max_tokens` each, counting the shared prefix once; a
    longer sequence is alone."""
    parts: list[list[int]] = []
    room = 0
    for index, length in enumerate(lengths):
        if not parts or length - num_shared > room:
            parts.append([])
            room = max_tokens - num_shared
        parts[-1].append(index)
        room -= length - num_shared
    return parts


def _first_fit(order: Sequence[int], lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    batches: list[list[int]] = []
    room: list[int] = []
    for index in order:
        for number, left in enumerate(room):
            if lengths[index] <= left:
                batches[number].append(index)
                room[number] -= lengths[index]
                break
        else:
            batches.append([index])
            room.append(max_tokens - lengths[index])
    return batches


def _level(order: Sequence[int], lengths: Sequence[int], num_packs: int) -> list[list[int]]:
    """Puts each sequence into the pack with the fewest tokens so far; packs that stay empty are left out."""
    packs: list[list[int]] = [[] for _ in range(num_packs)]
    smallest = [(0, number) for number in range(num_packs)]
    for index in order:
        size, number = smallest[0]
        packs[number].append(index)
        heapq.heapreplace(smallest, (size + lengths[index], number))
    return [indices for indices in packs if indices]


def _size(indices: Sequence[int], lengths: Sequence[int]) -> int:
    return sum(lengths[index] for index in indices)
