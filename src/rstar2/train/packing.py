"""Sequences into micro-batches by tokens. Pure.

Invariant: every sequence is in exactly one micro-batch, whole; none has more than `max_tokens` unless it is alone in
it. The order is a function of the lengths, so the same step is always cut in the same way.
"""

import heapq
from collections.abc import Sequence


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
    """Each where there is least so far; packs that stay empty are left out."""
    packs: list[list[int]] = [[] for _ in range(num_packs)]
    smallest = [(0, number) for number in range(num_packs)]
    for index in order:
        size, number = smallest[0]
        packs[number].append(index)
        heapq.heapreplace(smallest, (size + lengths[index], number))
    return [indices for indices in packs if indices]


def _size(indices: Sequence[int], lengths: Sequence[int]) -> int:
    return sum(lengths[index] for index in indices)
