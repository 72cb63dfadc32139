"""Stores a tree's traces in a file: a branch is written without the prompt and the turns that it shares with its
parent.

Invariant: a parent is written before its branches, into the same file, and `JoinedTraces.join(stored(trace)) == trace`.
A file without branches is read only once.
"""

import json
import re
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from rstar2.records.codec import RecordError, decode
from rstar2.records.jsonl import read_lines
from rstar2.records.record_file import decode_at
from rstar2.records.trace import Trace, Turn

MAX_PARENTS = 64
"""How many parents are kept in memory: the branches of one parent are near each other in a file."""
_ID = re.compile(rb'\{"id":("(?:[^"\\]|\\.)*")')


def stored(trace: Trace) -> Trace:
    """The trace as it is written: a branch has its own turns alone, the first without the tokens of its parent."""
    if not trace.parent:
        return trace
    turns = trace.own_turns
    if trace.num_shared_tokens:
        turns = (_without(turns[0], trace.num_shared_tokens), *turns[1:])
    return replace(trace, prompt_ids=(), prompt_text="", turns=turns)


def _without(turn: Turn, num_tokens: int) -> Turn:
    """The turn without its first tokens. Its text stays complete, because a single token may not be valid text."""
    return replace(
        turn,
        token_ids=turn.token_ids[num_tokens:],
        log_probs=turn.log_probs[num_tokens:],
        entropies=turn.entropies[num_tokens:],
    )


def _rejoined(turn: Turn, parent: Turn, num_tokens: int) -> Turn:
    """The turn with the parent's first tokens put before its own."""
    return replace(
        turn,
        token_ids=parent.token_ids[:num_tokens] + turn.token_ids,
        log_probs=parent.log_probs[:num_tokens] + turn.log_probs,
        entropies=parent.entropies[:num_tokens] + turn.entropies,
    )


class JoinedTraces:
    """The traces of one file, with the parent's part restored in branches."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._starts: dict[str, int] = {}
        self._num_scanned = 0
        self._parents: OrderedDict[str, Trace] = OrderedDict()

    def join(self, trace: Trace, start: int) -> Trace:
        """The trace that was read from the line at `start`, complete. RecordError if its parent is not before it."""
        if not trace.parent or trace.prompt_ids:
            return trace
        parent = self._parent(trace.parent, start)
        num_turns, turns = trace.num_shared_turns, trace.turns
        if trace.num_shared_tokens:
            turns = (_rejoined(turns[0], parent.turns[num_turns], trace.num_shared_tokens), *turns[1:])
        return replace(
            trace,
            prompt_ids=parent.prompt_ids,
            prompt_text=parent.prompt_text,
            turns=parent.turns[:num_turns] + turns,
        )

    def _parent(self, trace_id: str, before: int) -> Trace:
        if trace_id not in self._parents:
            self._scan(before)
            if trace_id not in self._starts:
                raise RecordError(f"it continues {trace_id}, which is not before it in the file")
            start = self._starts[trace_id]
            line = next(read_lines(self._path, start))
            self._parents[trace_id] = self.join(decode(Trace, line.data), start)
            while len(self._parents) > MAX_PARENTS:
                self._parents.popitem(last=False)
        return self._parents[trace_id]

    def _scan(self, end: int) -> None:
        """Finds where each trace before `end` starts."""
        if self._num_scanned >= end:
            return
        for line in read_lines(self._path, self._num_scanned):
            if line.start >= end:
                break
            if (found := _ID.match(line.data)) is not None:
                self._starts[json.loads(found[1])] = line.start
            self._num_scanned = line.end


def iterate_traces(path: Path, offset: int = 0) -> Iterator[tuple[Trace, int]]:
    """The complete traces of a file from `offset` on, each with the offset behind it."""
    joined = JoinedTraces(path)
    for line in read_lines(path, offset):
        yield joined.join(decode_at(Trace, path, line), line.start), line.end
