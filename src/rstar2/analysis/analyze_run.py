"""Analyses a run directory, and decides which traces are read for what.

Tokens are read in the newest of the chosen steps, because a sample over hundreds of steps would describe no policy that
ever existed. Tool errors over training are read in up to 100 steps, spread evenly.

Traces are written in the order in which rollouts end, so the first ones of a file are short. In a sample of a step each
line must have the same chance: all lines are read, and only those drawn are decoded and kept in memory.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from rstar2.analysis.analyze import Analysis, LookedAt, analyze
from rstar2.analysis.examine import Measure
from rstar2.analysis.over_training import ErrorCollector
from rstar2.analysis.token_texts import TokenTexts
from rstar2.records import RunView, Trace
from rstar2.records.branches import JoinedTraces
from rstar2.records.codec import RecordError, decode
from rstar2.records.jsonl import Line, read_lines
from rstar2.records.run_layout import segment

_SEED = 0
"""The seed of samples, so that analysing a run twice shows the same."""


@dataclass(frozen=True, slots=True)
class StepSample:
    """A sample of a step's traces, decoded lazily."""

    step: int
    num_held: int
    """How many traces the step has."""
    num_traces: int
    traces: Iterable[Trace]


def sample_step(run: RunView, step: int, max_traces: int) -> StepSample:
    """Draws at most `max_traces` of the step, each subset equally likely, in the order of the file."""
    path = segment(run.layout.traces, step)
    draw = random.Random(f"{_SEED}:{step}")
    drawn: list[tuple[int, Line]] = []
    number = -1
    for number, line in enumerate(read_lines(path)):
        if number < max_traces:
            drawn.append((number, line))
        elif (place := draw.randint(0, number)) < max_traces:
            drawn[place] = number, line
    drawn.sort(key=lambda pair: pair[0])
    return StepSample(step, number + 1, len(drawn), _decoded(path, drawn))


def _decoded(path: Path, lines: Sequence[tuple[int, Line]]) -> Iterator[Trace]:
    joined = JoinedTraces(path)
    for number, line in lines:
        try:
            yield joined.join(decode(Trace, line.data), line.start)
        except RecordError as error:
            raise RecordError(f"{path}, line {number + 1}, byte {line.start}: {error}") from error


def sample_newest(run: RunView, steps: Sequence[int], max_traces: int) -> list[StepSample]:
    """Draws at most `max_traces` of the last of these steps and, if it has fewer, of the steps before it."""
    samples, num_left = list[StepSample](), max_traces
    for step in sorted(steps, reverse=True):
        if num_left == 0:
            break
        samples.append(sample_step(run, step, num_left))
        num_left -= samples[-1].num_traces
    return samples


def spread(steps: Sequence[int], max_steps: int) -> list[int]:
    """Chooses at most `max_steps` of the steps, evenly spread, with the first and the last."""
    if len(steps) <= max_steps:
        return list(steps)
    return [steps[round(index * (len(steps) - 1) / (max_steps - 1))] for index in range(max_steps)]


MAX_TRACES = 64
"""The number of traces that the report analyses."""
MAX_CURVE_STEPS = 100


def ignore_progress(num_done: int, num_parts: int) -> None:
    """Shows no progress."""


def analyze_run(
    run: RunView,
    steps: Sequence[int],
    *,
    token_texts: TokenTexts | None = None,
    measure: Measure = Measure.ENTROPY,
    max_traces: int = MAX_TRACES,
    on_progress: Callable[[int, int], None] = ignore_progress,
) -> Analysis:
    """Analyses a run. `max_traces` bounds the traces whose tokens are examined, and those of each step for the errors
    over training. `on_progress` gets the number of parts done and of all parts."""
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
