"""How entropy is spread over the tokens of a sample: over all of them, and over those of each class."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from rstar2.analysis.classes import TokenClass
from rstar2.analysis.examine import TraceTokens
from rstar2.analysis.uncertainty import Bools, Floats

QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)


@dataclass(frozen=True, slots=True)
class ValueSummary:
    num_tokens: int
    num_high: int
    """Of them, among the highest fifth of their trace."""
    mean: float
    quantiles: tuple[float, ...]
    """At `QUANTILES`."""

    @property
    def high_share(self) -> float:
        return self.num_high / self.num_tokens


@dataclass(frozen=True, slots=True)
class EntropySummary:
    all_tokens: ValueSummary
    by_class: dict[TokenClass, ValueSummary]
    """Classes that occur; none without the tokens' texts."""


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
