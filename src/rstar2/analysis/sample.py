"""A fair sample of a step's traces, from a file of any size, with only the sample in memory.

Traces are written in the order in which rollouts end, so the first of a file are the short ones: each line must have
the same chance. All lines are read, and only those drawn are decoded.
"""

import random
from collections.abc import Iterator, Sequence

from rstar2.records import RunView, Trace
from rstar2.records.codec import RecordError, decode
from rstar2.records.jsonl import Line, read_lines
from rstar2.records.run_layout import segment

_SEED = 0
"""One run, one sample: looking twice shows the same."""


def sample_traces(run: RunView, step: int, max_traces: int) -> Iterator[Trace]:
    """At most so many traces of the step, each subset equally likely, in the order of the file."""
    path = segment(run.layout.traces, step)
    draw = random.Random(f"{_SEED}:{step}")
    drawn: list[tuple[int, Line]] = []
    for number, line in enumerate(read_lines(path)):
        if number < max_traces:
            drawn.append((number, line))
        elif (place := draw.randint(0, number)) < max_traces:
            drawn[place] = number, line
    for number, line in sorted(drawn, key=lambda pair: pair[0]):
        try:
            yield decode(Trace, line.data)
        except RecordError as error:
            raise RecordError(f"{path}, line {number + 1}, byte {line.start}: {error}") from error


def newest_traces(run: RunView, steps: Sequence[int], max_traces: int) -> Iterator[Trace]:
    """So many traces of the last of these steps; where it has fewer, of the steps before it as well."""
    num_left = max_traces
    for step in sorted(steps, reverse=True):
        if num_left == 0:
            break
        for trace in sample_traces(run, step, num_left):
            num_left -= 1
            yield trace


def spread(steps: Sequence[int], max_steps: int) -> list[int]:
    """At most so many of the steps, evenly over all, the first and the last among them."""
    if len(steps) <= max_steps:
        return list(steps)
    return [steps[round(index * (len(steps) - 1) / (max_steps - 1))] for index in range(max_steps)]
