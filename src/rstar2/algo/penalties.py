"""The penalties of a trace: `p_err` from its tool calls, `p_format` from its answer blocks. Their sum is the penalty.

Invariant: each is in [0, 1] and comes from counts alone. `ToolStatus` says what failed, never a word in the text; turns
are the assistant's own.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rstar2.errors import UserError
from rstar2.records import Trace

REPEATED_TOKENS = 16
"""A line of code or a sentence: shorter runs of tokens come again in honest work."""
NO_CALL_PENALTY = 0.5
"""`p_err` of a trace that never called a tool: better than failing more often than not, worse than working calls."""


@dataclass(frozen=True, slots=True)
class TracePenalty:
    error: float
    format: float
    repetition: float = 0.0
    """Computed, and read, only where repetition counts."""

    @property
    def total(self) -> float:
        return self.error + self.format


class Penalty(StrEnum):
    """Which penalty of a success weighs against it."""

    BOTH = "both"
    """`p_err + p_format`, as in the report."""
    ERRORS = "errors"
    FORMAT = "format"
    REPETITION = "repetition"
    """Both, and the share of repeated n-grams, which the report tried and gave up."""

    def of(self, trace: TracePenalty) -> float:
        match self:
            case Penalty.BOTH:
                return trace.total
            case Penalty.ERRORS:
                return trace.error
            case Penalty.FORMAT:
                return trace.format
            case Penalty.REPETITION:
                return trace.total + trace.repetition


def error_penalties(num_calls: ArrayLike, num_failed: ArrayLike) -> NDArray[np.float64]:
    """`p_err`, elementwise: the share of tool calls that failed; 0.5 without a call."""
    calls, failed = _counts("num_calls", num_calls), _counts("num_failed", num_failed)
    if np.any(failed > calls):
        raise UserError("num_failed is larger than num_calls: count failed calls among all calls of the same trace")
    return np.where(calls == 0, NO_CALL_PENALTY, failed / np.maximum(calls, 1))


def format_penalties(num_answer_blocks: ArrayLike, num_turns: ArrayLike) -> NDArray[np.float64]:
    """`p_format`, elementwise: 1 without an answer block, else one more block than needed a turn, at most 1."""
    blocks, turns = _counts("num_answer_blocks", num_answer_blocks), _counts("num_turns", num_turns)
    if np.any((blocks > 0) & (turns == 0)):
        raise UserError("num_turns is 0 where num_answer_blocks is not: count the assistant's turns, the last included")
    return np.where(blocks == 0, 1.0, np.minimum(1.0, (blocks - 1) / np.maximum(turns, 1)))


def repetition_penalty(turns: Iterable[Sequence[int]], length: int = REPEATED_TOKENS) -> float:
    """The share of n-grams of this length, within turns, that stood in this or an earlier turn before. 0 if there are
    none."""
    seen: set[tuple[int, ...]] = set()
    num_all = 0
    for token_ids in turns:
        ngrams = [tuple(token_ids[start : start + length]) for start in range(len(token_ids) - length + 1)]
        num_all += len(ngrams)
        seen.update(ngrams)
    return 1 - len(seen) / num_all if num_all else 0.0


def trace_penalty(trace: Trace, num_answer_blocks: int) -> TracePenalty:
    """Both penalties of a trace, whose answer blocks `rstar2.grading.count_answer_blocks(*trace.turn_texts)` counts. An
    environment may have computed the second.

    Only calls that returned are counted: one that was pending when the rollout ended says nothing about its code.
    """
    num_calls, num_failed = trace.own_calls
    return TracePenalty(
        error=float(error_penalties(num_calls, num_failed)),
        format=_format_penalty(trace, num_answer_blocks),
    )


def _format_penalty(trace: Trace, num_answer_blocks: int) -> float:
    """The format penalty that the environment computed, or else the one from the answer blocks."""
    if trace.format_penalty is not None:
        return trace.format_penalty
    return float(format_penalties(num_answer_blocks, len(trace.turns)))


def _counts(name: str, values: ArrayLike) -> NDArray[np.float64]:
    counts = np.asarray(values, dtype=np.float64)
    if not np.all(counts >= 0):
        raise UserError(f"{name} holds a number that is not a count: each must be 0 or more")
    return counts
