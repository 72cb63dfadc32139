"""A run directory to its analysis: which traces are looked at, and for what.

Tokens are looked at in the newest of the chosen steps, because a sample over hundreds of them would describe no policy
that ever was; tool errors over training in each of up to 100 steps, spread evenly.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain

from rstar2.analysis.analyze import Analysis, LookedAt, analyze
from rstar2.analysis.over_training import ErrorCollector
from rstar2.analysis.sample import sample_newest, sample_step, spread
from rstar2.analysis.token_texts import TokenTexts
from rstar2.analysis.uncertainty import Measure
from rstar2.records import RunView

MAX_TRACES = 64
"""As many as the report looks at."""
MAX_CURVE_STEPS = 100


def nobody(num_done: int, num_parts: int) -> None:
    """The watcher that does not look."""


def analyze_run(
    run: RunView,
    steps: Sequence[int],
    *,
    token_texts: TokenTexts | None = None,
    measure: Measure = Measure.ENTROPY,
    max_traces: int = MAX_TRACES,
    on_progress: Callable[[int, int], None] = nobody,
) -> Analysis:
    """`max_traces` bounds the traces whose tokens are looked at, and those of each step for the errors over training.
    `on_progress` is told how many of how many parts are done."""
    curve_steps = spread(steps, MAX_CURVE_STEPS)
    on_progress(0, len(curve_steps) + 1)
    samples = sample_newest(run, steps, max_traces)
    analysis = analyze(chain.from_iterable(sample.traces for sample in samples), token_texts, measure)
    errors = ErrorCollector()
    for number, step in enumerate(curve_steps, start=1):
        on_progress(number, len(curve_steps) + 1)
        for trace in sample_step(run, step, max_traces).traces:
            errors.add(trace)
    on_progress(len(curve_steps) + 1, len(curve_steps) + 1)
    num_held = sum(sample.num_held for sample in samples)
    looked_at = LookedAt(tuple(sample.step for sample in reversed(samples)), analysis.num_traces, num_held)
    return replace(analysis, over_training=errors.rows(), looked_at=looked_at)
