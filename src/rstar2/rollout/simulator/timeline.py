"""What one engine did over time: the source of its idle share and of the chart."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class EngineTimeline:
    busy_s: float = 0.0
    recompute_s: float = 0.0
    """Of the busy time, what went into tokens that had been computed before."""
    keeps_spans: bool = False
    spans: list[tuple[float, float, float, int]] = field(default_factory=list)
    """Begin, end, recomputing seconds within, tokens of cache used at the end; empty unless `keeps_spans`."""

    def add(self, begin_s: float, end_s: float, recompute_s: float, num_used_tokens: int) -> None:
        self.busy_s += end_s - begin_s
        self.recompute_s += recompute_s
        if self.keeps_spans:
            self.spans.append((begin_s, end_s, recompute_s, num_used_tokens))
