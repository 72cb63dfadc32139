"""Entropy over the tokens of a sample: over all of them, over each class, and around tool responses.

Around a response, offset -1 is the last token that the model wrote before it, and offset 0 the first that it wrote
after it. The response itself was not sampled and has no entropy.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from rstar2.analysis.classes import TokenClass
from rstar2.analysis.examine import Bools, Floats, Response, TraceTokens

QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)


@dataclass(frozen=True, slots=True)
class ValueSummary:
    num_tokens: int
    num_high: int
    """Tokens among the highest fifth of their trace."""
    mean: float
    quantiles: tuple[float, ...]
    """The quantiles of the values at `QUANTILES`."""

    @property
    def high_share(self) -> float:
        return self.num_high / self.num_tokens


@dataclass(frozen=True, slots=True)
class EntropySummary:
    all_tokens: ValueSummary
    by_class: dict[TokenClass, ValueSummary]
    """The summaries of the classes that occur; empty without the tokens' texts."""


class EntropyCollector:
    """Gathers the values of a bounded sample, so that quantiles are exact."""

    def __init__(self) -> None:
        self._all: list[tuple[Floats, Bools]] = []
        self._by_class: dict[TokenClass, list[tuple[Floats, Bools]]] = {}

    def add(self, tokens: TraceTokens) -> None:
        for turn in tokens.turns:
            self._all.append((turn.values, turn.is_high))
            codes = np.array(turn.classes)
            for found in set(turn.classes):
                chosen = codes == found
                self._by_class.setdefault(found, []).append((turn.values[chosen], turn.is_high[chosen]))

    def summary(self) -> EntropySummary | None:
        if not self._all:
            return None
        by_class = {found: _summary(self._by_class[found]) for found in TokenClass if found in self._by_class}
        return EntropySummary(_summary(self._all), by_class)


def _summary(parts: Iterable[tuple[Floats, Bools]]) -> ValueSummary:
    values, is_high = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    quantiles = tuple(float(value) for value in np.quantile(values, QUANTILES))
    return ValueSummary(len(values), int(is_high.sum()), float(values.mean()), quantiles)


NUM_BEFORE, NUM_AFTER = 32, 64
Z_95 = 1.96
"""The 97.5% quantile of the normal distribution."""


@dataclass(frozen=True, slots=True)
class CurvePoint:
    offset: int
    num_responses: int
    """How many responses have a token at this offset."""
    mean: float
    low: float
    high: float
    """`low` to `high`: the 95% interval of the mean, mean ± 1.96 s/√n; for a single response both are the mean."""


@dataclass(frozen=True, slots=True)
class ResponseCurve:
    response: Response
    num_responses: int
    points: tuple[CurvePoint, ...]
    """The points of all offsets at which at least one response has a token, in order."""


class ResponseCollector:
    def __init__(self) -> None:
        self._rows: dict[Response, list[Floats]] = {response: [] for response in Response}

    def add(self, tokens: TraceTokens) -> None:
        for before, after in zip(tokens.turns, tokens.turns[1:], strict=False):
            if after.follows is not None:
                self._rows[after.follows].append(_aligned(before.values, after.values))

    def curves(self) -> tuple[ResponseCurve, ...]:
        return tuple(_curve(response, rows) for response, rows in self._rows.items() if rows)


def _aligned(before: Floats, after: Floats) -> Floats:
    """The values around a response, one for each offset; NaN where a turn is shorter than the window."""
    row = np.full(NUM_BEFORE + NUM_AFTER, np.nan)
    tail, head = before[-NUM_BEFORE:], after[:NUM_AFTER]
    row[NUM_BEFORE - len(tail) : NUM_BEFORE] = tail
    row[NUM_BEFORE : NUM_BEFORE + len(head)] = head
    return row


def _curve(response: Response, rows: list[Floats]) -> ResponseCurve:
    points: list[CurvePoint] = []
    for offset, column in enumerate(np.stack(rows).T, start=-NUM_BEFORE):
        values = column[~np.isnan(column)]
        if len(values):
            mean = float(values.mean())
            margin = Z_95 * float(values.std(ddof=1)) / len(values) ** 0.5 if len(values) > 1 else 0.0
            points.append(CurvePoint(offset, len(values), mean, mean - margin, mean + margin))
    return ResponseCurve(response, len(rows), tuple(points))
