"""A fair sample of a step's traces, from a file of any size, with only the sample in memory.

Traces are written in the order in which rollouts end, so the first of a file are the short ones: each line must have
the same chance. All lines are read, and only those drawn are decoded.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rstar2.records import RunView, Trace
from rstar2.records.codec import RecordError, decode
from rstar2.records.jsonl import Line, read_lines
from rstar2.records.run_layout import segment

_SEED = 0
"""One run, one sample: looking twice shows the same."""


@dataclass(frozen=True, slots=True)
class StepSample:
    """Some traces of a step, decoded as they are asked for."""

    step: int
    num_held: int
    """Traces that the step has."""
    num_traces: int
    traces: Iterable[Trace]


def sample_step(run: RunView, step: int, max_traces: int) -> StepSample:
    """At most so many traces of the step, each subset equally likely, in the order of the file."""
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
    for number, line in lines:
        try:
            yield decode(Trace, line.data)
        except RecordError as error:
            raise RecordError(f"{path}, line {number + 1}, byte {line.start}: {error}") from error


def sample_newest(run: RunView, steps: Sequence[int], max_traces: int) -> list[StepSample]:
    """So many traces of the last of these steps; where it has fewer, of the steps before it as well."""
    samples, num_left = list[StepSample](), max_traces
    for step in sorted(steps, reverse=True):
        if num_left == 0:
            break
        samples.append(sample_step(run, step, num_left))
        num_left -= samples[-1].num_traces
    return samples


def spread(steps: Sequence[int], max_steps: int) -> list[int]:
    """At most so many of the steps, evenly over all, the first and the last among them."""
    if len(steps) <= max_steps:
        return list(steps)
    return [steps[round(index * (len(steps) - 1) / (max_steps - 1))] for index in range(max_steps)]
