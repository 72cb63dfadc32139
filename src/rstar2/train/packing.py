"""Sequences into micro-batches by tokens. Pure.

Invariant: every sequence is in exactly one micro-batch, whole; none has more than `max_tokens` unless it is alone in
it. The order is a function of the lengths, so the same step is always cut in the same way.
"""

from collections.abc import Sequence


def pack(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Indices of the sequences of each micro-batch: the longest first, each where it fits first."""
    batches: list[list[int]] = []
    room: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        for number, left in enumerate(room):
            if lengths[index] <= left:
                batches[number].append(index)
                room[number] -= lengths[index]
                break
        else:
            batches.append([index])
            room.append(max_tokens - lengths[index])
    return batches
