"""A histogram in the Prometheus text format, version 0.0.4."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence


class Histogram:
    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, number: int = 1) -> None:
        """Count `number` observations of one value."""
        self._counts[bisect_left(self._bounds, value)] += number
        self._sum += value * number

    def lines(self, name: str, label: str = "") -> Iterator[str]:
        """The lines of the metrics page; `label` is a name and a value in quotes, as in `model="tiny"`."""
        total, labels = 0, f"{{{label}}}" if label else ""
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            yield f'{name}_bucket{{le="{bound}"{label and f",{label}"}}} {total}'
        yield f"{name}_sum{labels} {self._sum:.6f}"
        yield f"{name}_count{labels} {total}"
