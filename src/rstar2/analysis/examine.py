"""Examines one trace token by token: how unsure the model was, whether that is high, the text, the class and the
kind."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from rstar2.analysis.classes import TokenClass, classify
from rstar2.analysis.kinds import TokenKind, find_kinds
from rstar2.analysis.token_texts import TokenTexts
from rstar2.analysis.words import Word, find_words, words_of_tokens
from rstar2.records import Trace, Turn

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

HIGH_SHARE = 0.2
"""The share of a trace's tokens that count as high, as in the report."""


class Measure(StrEnum):
    """The measure of a token's uncertainty, in nats."""

    ENTROPY = "entropy"
    """The entropy of the distribution that the token was drawn from."""
    SURPRISAL = "surprisal"
    """Minus the log-probability of the token that was drawn. Its mean is the entropy, but a single value says that an
    unlikely token was drawn, not that many were likely. Only for runs that recorded no entropies."""


def turn_values(turn: Turn, measure: Measure) -> Floats | None:
    """One value for each token; None if the run did not record the measure for the turn's tokens."""
    values = turn.entropies if measure is Measure.ENTROPY else turn.log_probs
    if len(values) != len(turn.token_ids):
        return None
    array = np.asarray(values, dtype=np.float64)
    return array if measure is Measure.ENTROPY else np.maximum(-array, 0.0)


def trace_values(trace: Trace, measure: Measure) -> tuple[Floats, ...] | None:
    """The values of a trace, turn by turn. None unless every token has one: a share of a trace needs all of it."""
    turns = [turn_values(turn, measure) for turn in trace.turns]
    known = tuple(values for values in turns if values is not None)
    return known if len(known) == len(turns) and sum(map(len, known)) > 0 else None


def find_high(values: Floats) -> Bools:
    """The ⌈0.2 N⌉ highest of N values, the earlier of equal ones first; a value of 0 is never high."""
    num_high = -(-len(values) // round(1 / HIGH_SHARE))
    is_high: Bools = np.zeros(len(values), dtype=np.bool_)
    is_high[np.argsort(-values, kind="stable")[:num_high]] = True
    return is_high & (values > 0)


class Response(StrEnum):
    """The kind of tool response to a turn's calls."""

    SUCCESSFUL = "successful"
    FAILED = "failed"
    """At least one of the calls failed through the model's fault."""


@dataclass(frozen=True, slots=True, eq=False)
class TurnTokens:
    """The tokens of a turn. Every tuple and array except `words` has one entry for each sampled token."""

    values: Floats
    is_high: Bools
    """Whether each token is among the highest fifth of its trace."""
    follows: Response | None
    """The tool response right before the turn."""
    pieces: tuple[str, ...] = ()
    """The text of each token. This and the fields below are empty without the tokens' texts."""
    classes: tuple[TokenClass, ...] = ()
    kinds: tuple[TokenKind | None, ...] = ()
    words: tuple[Word, ...] = ()
    touched: tuple[tuple[int, ...], ...] = ()
    """For each token, the indices of the words of which it has a character."""


@dataclass(frozen=True, slots=True, eq=False)
class TraceTokens:
    trace: Trace
    turns: tuple[TurnTokens, ...]
    num_misread_turns: int = 0
    """How many turns decode to another text than the trace has: a sign of another tokenizer."""

    @property
    def values(self) -> Floats:
        return np.concatenate([turn.values for turn in self.turns])

    @property
    def is_high(self) -> Bools:
        return np.concatenate([turn.is_high for turn in self.turns])


def response_of(turn: Turn) -> Response | None:
    """The response to the turn's calls; None if no result came back to the model."""
    if not turn.results:
        return None
    return Response.FAILED if any(result.status.is_tool_error for result in turn.results) else Response.SUCCESSFUL


def examine(trace: Trace, token_texts: TokenTexts | None, measure: Measure = Measure.ENTROPY) -> TraceTokens | None:
    """The tokens of a trace; None if it has no token, or lacks the measure of some."""
    values = trace_values(trace, measure)
    if values is None:
        return None
    ends = np.cumsum([len(of_turn) for of_turn in values])[:-1]
    is_high = np.split(find_high(np.concatenate(values)), ends)
    follows = [None, *(response_of(turn) for turn in trace.turns[:-1])]
    if token_texts is None:
        bare = [TurnTokens(*facts) for facts in zip(values, is_high, follows, strict=True)]
        return TraceTokens(trace, tuple(bare))
    pieces = [token_texts.pieces(turn.token_ids) for turn in trace.turns]
    turns = [_read(*facts) for facts in zip(trace.turns, pieces, values, is_high, follows, strict=True)]
    num_misread = sum(not _same("".join(p), turn.text) for p, turn in zip(pieces, trace.turns, strict=True))
    return TraceTokens(trace, tuple(turns), num_misread)


def _read(turn: Turn, pieces: Sequence[str], values: Floats, is_high: Bools, follows: Response | None) -> TurnTokens:
    assert len(pieces) == len(turn.token_ids), "one piece for each token"
    classes = classify(turn, pieces, follows_response=follows is not None)
    words = find_words("".join(pieces))
    touched = tuple(tuple(indices) for indices in words_of_tokens(pieces, words))
    kinds = find_kinds(classes, is_high, words, touched, follows_response=follows is not None)
    return TurnTokens(values, is_high, follows, tuple(pieces), classes, kinds, words, touched)


def _same(first: str, second: str) -> bool:
    """Whether two texts are the same, up to spaces at the ends and bytes that are no text, which decoders treat
    differently."""
    return first.replace("\ufffd", "").strip() == second.replace("\ufffd", "").strip()
