"""Speculative decoding by lookup in the sequence itself (prompt lookup): guesses of the next tokens, for rows of a
CPU's pass that would otherwise be padding.

An agent copies much: the numbers of the problem into its program, the program's output into its answer. So the guess
is what followed when the sequence last had the same ids. Each guessed token has a row in the pass that samples it.

Invariant: guesses change no bit of what is sampled. A row's result does not depend on its neighbours (`kernels_cpu`), a
row counts only if the row before it sampled exactly the token that was guessed, and the keys and values of a wrong
guess are overwritten before they are read.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from rstar2.engine.embedded.scheduler import EngineSequence

_WINDOW_TOKENS = 4096
"""How many tokens back the sequence is searched: some tens of microseconds in a pass of milliseconds."""


@dataclass(frozen=True, slots=True)
class Draft:
    row: int
    """The row of the sequence's last token."""
    first_row: int
    """The row of the first guessed token; the others follow."""
    token_ids: list[int]


def make_drafts(sequences: Sequence[EngineSequence], num_rows: int, block_size: int) -> list[Draft]:
    """Drafts for the rows after the last sequence's, up to `num_rows`, at positions that have a place in the cache."""
    drafts: list[Draft] = []
    next_row = len(sequences)
    for row, sequence in enumerate(sequences):
        if next_row == num_rows:
            break
        end = min(len(sequence.blocks) * block_size, sequence.max_total_tokens - 1)
        guess = guess_next(sequence.token_ids, min(num_rows - next_row, end - len(sequence.token_ids)))
        if guess:
            drafts.append(Draft(row, next_row, guess))
            next_row += len(guess)
    return drafts


def guess_next(token_ids: list[int], num_tokens: int) -> list[int]:
    """At most `num_tokens` ids: those that followed the last earlier place of the final two ids, or else of the final
    one."""
    newest_first = token_ids[-2:-_WINDOW_TOKENS:-1]
    if num_tokens < 1 or not newest_first:
        return []
    last, before = token_ids[-1], newest_first[0]
    best, index = -1, -1
    with suppress(ValueError):  # `index` raises it when there is no further one
        while True:
            index = newest_first.index(last, index + 1)
            best = index if best < 0 else best
            if newest_first[index + 1 : index + 2] == [before]:
                best = index
                break
    if best < 0:
        return []
    following = len(token_ids) - 1 - best
    return token_ids[following : following + num_tokens]
