"""The two kinds of tokens that stand out among those of high entropy: forking and reflection. Pure.

Invariant: a token of a kind is high and prose, and of one kind at most.

*Reflection*: in the dense run at the start of a turn that follows a tool response. *Forking*: outside of it, part of a
word that opens a sentence or belongs to one of the phrases that open self-reflection or another branch.
"""

from collections.abc import Sequence
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from rstar2.analysis.classes import TokenClass
from rstar2.analysis.words import Word

WINDOW_TOKENS = 8
MIN_HIGH_IN_WINDOW = 4
"""A run is dense while at least half of every window is high. With a fifth of all tokens high, 6% of windows are so by
chance."""


class TokenKind(StrEnum):
    FORKING = "forking"
    REFLECTION = "reflection"


def find_kinds(
    classes: Sequence[TokenClass],
    is_high: NDArray[np.bool_],
    words: Sequence[Word],
    touched: Sequence[Sequence[int]],
    *,
    follows_response: bool,
) -> tuple[TokenKind | None, ...]:
    """The kind of each token of a turn. `touched` has for each token the indices of the words of which it has a
    character."""
    start, end = _reflection_run(classes, is_high) if follows_response else (0, 0)
    kinds: list[TokenKind | None] = []
    for place, found in enumerate(classes):
        kind = None
        if is_high[place] and found.is_prose:
            if start <= place < end:
                kind = TokenKind.REFLECTION
            elif any(words[index].opens_sentence or words[index].is_cue for index in touched[place]):
                kind = TokenKind.FORKING
        kinds.append(kind)
    return tuple(kinds)


def _reflection_run(classes: Sequence[TokenClass], is_high: NDArray[np.bool_]) -> tuple[int, int]:
    """The bounds of the dense run at the start of the turn's opening prose."""
    start = 0
    while start < len(classes) and classes[start] is TokenClass.MARKUP:
        start += 1
    end = start
    while end < len(classes) and classes[end].is_prose:
        end += 1
    return start, start + dense_length(is_high[start:end])


def dense_length(is_high: NDArray[np.bool_]) -> int:
    """The length of the longest beginning in which every window of 8 tokens has at least 4 high ones, up to the last
    high one."""
    if len(is_high) < WINDOW_TOKENS:
        return 0
    counts = np.convolve(is_high.astype(np.int64), np.ones(WINDOW_TOKENS, dtype=np.int64), mode="valid")
    sparse = np.flatnonzero(counts < MIN_HIGH_IN_WINDOW)
    num_dense = int(sparse[0]) if len(sparse) else len(counts)
    if num_dense == 0:
        return 0
    return int(np.flatnonzero(is_high[: num_dense + WINDOW_TOKENS - 1])[-1]) + 1
