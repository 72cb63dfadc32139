"""Reads one step of a run in parts.

Invariant: no call reads more than its budgets, however long the step is: one for finding lines, which is fast, and one
for parsing them, which is slow. When a budget is spent, the answer says so and the next call continues from there;
summaries of parsed traces are kept.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rstar2.errors import UserError
from rstar2.records import Trace
from rstar2.web.group_table import GroupTable
from rstar2.web.messages import user_text
from rstar2.web.segment_index import BLOCK_BYTES, SegmentIndex
from rstar2.web.summary import MAX_QUESTION_CHARS, Summary, cut, summarise, unreadable

SCAN_BYTES = 1 << 28
"""The budget for finding lines, at a gigabyte per second."""
PARSE_BYTES = 1 << 23
"""The budget for parsing, at about 50 MB per second: a sixth of a second per answer, little more on a busy machine."""


@dataclass(frozen=True, slots=True)
class Query:
    """A filter of rollouts: all flags must hold, and the text must occur in the conversation."""

    flags: frozenset[str] = frozenset()
    text: str = ""

    @property
    def is_everything(self) -> bool:
        return not self.flags and not self.text


@dataclass(frozen=True, slots=True)
class RolloutRow:
    start: int
    summary: Summary


@dataclass(frozen=True, slots=True)
class Page:
    rows: list[RolloutRow]
    next: int
    """The number of the line to continue with."""
    is_end: bool
    """Whether there is nothing more to find for now; the file may grow."""


class StepReader:
    def __init__(self, traces: Path, groups: Path) -> None:
        self.index = SegmentIndex(traces)
        self.table = GroupTable(groups)
        self._summaries: dict[int, Summary] = {}
        self._questions: dict[str, str] = {}

    @property
    def num_bytes_read(self) -> int:
        return self.index.num_bytes_read + self.table.num_bytes_read

    @property
    def environments(self) -> list[str]:
        """The names of the environments of the rollouts parsed so far."""
        return sorted({summary.environment for summary in self._summaries.values() if not summary.unreadable})

    def refresh(self) -> None:
        """Read on if the files have grown."""
        self.table.refresh()
        num_known = len(self.index.entries)
        self.index.extend(BLOCK_BYTES)
        if len(self.index.entries) < num_known:
            self._summaries.clear()

    def find_lines(self, num_lines: int | None = None, max_bytes: int = SCAN_BYTES) -> None:
        """Find at least `num_lines` lines, or all, if the budget allows."""
        while max_bytes > 0 and not self.index.is_complete:
            if num_lines is not None and len(self.index.entries) >= num_lines:
                return
            self.index.extend(BLOCK_BYTES)
            max_bytes -= BLOCK_BYTES

    def page(self, query: Query, after: int, limit: int) -> Page:
        """The next rollouts that match, from line number `after` on."""
        rows: list[RolloutRow] = []
        number = after
        for number, summary, trace in self._iterate(after, PARSE_BYTES, reads_all=bool(query.text)):
            if len(rows) >= limit:
                return Page(rows, number, is_end=False)
            if self._matches(query, summary, trace):
                rows.append(RolloutRow(self.index.entries[number].start, summary))
            number += 1
        return Page(rows, number, is_end=self.index.is_complete and number >= len(self.index.entries))

    def summaries(self) -> tuple[list[RolloutRow], bool]:
        """Parse some more; returns all known summaries, and whether these are all."""
        for _ in self._iterate(0, PARSE_BYTES, reads_all=False):
            pass
        known = sorted(self._summaries)
        rows = [RolloutRow(self.index.entries[number].start, self._summaries[number]) for number in known]
        return rows, self.index.is_complete and len(known) == len(self.index.entries)

    def question_of(self, problem_id: str, trace_ids: Iterable[str]) -> str | None:
        """The question of the traces, if the line of one is known by now."""
        if problem_id not in self._questions:
            numbers = (self.index.number_of[trace_id] for trace_id in trace_ids if trace_id in self.index.number_of)
            number = next(numbers, None)
            prompt = None if number is None else self.index.prompt_text_at(self.index.entries[number].start)
            if not prompt:  # a branch is stored without it
                return None
            self._questions[problem_id] = cut(user_text(prompt), MAX_QUESTION_CHARS)
        return self._questions[problem_id]

    def traces_of(self, trace_ids: Iterable[str]) -> tuple[list[tuple[int, Trace]], bool]:
        """The found traces with their offsets, and whether the search is complete."""
        wanted = list(trace_ids)
        self.find_lines()
        numbers = [self.index.number_of[trace_id] for trace_id in wanted if trace_id in self.index.number_of]
        starts = [self.index.entries[number].start for number in numbers]
        return [(start, self.index.trace_at(start)) for start in starts], self.index.is_complete

    def _iterate(self, first: int, max_bytes: int, *, reads_all: bool) -> Iterator[tuple[int, Summary, Trace | None]]:
        """Summaries from line `first` on, until the budget is spent; with `reads_all` each with its trace."""
        number = first
        while True:
            self.find_lines(number + 1)
            if number >= len(self.index.entries):
                return
            summary, trace = self._summaries.get(number), None
            if summary is None or reads_all:
                if max_bytes <= 0:
                    return
                max_bytes -= self.index.entries[number].num_bytes
                summary, trace = self._parse(number)
                self._summaries[number] = summary
            yield number, summary, trace
            number += 1

    def _parse(self, number: int) -> tuple[Summary, Trace | None]:
        entry = self.index.entries[number]
        try:
            trace = self.index.trace_at(entry.start)
        except UserError as error:
            return unreadable(entry.id, entry.problem_id, str(error)), None
        return summarise(trace), trace

    def _matches(self, query: Query, summary: Summary, trace: Trace | None) -> bool:
        if query.is_everything:
            return True
        found = self.table.find(summary.id)
        flags = summary.flags | ({found[0].selections[found[1]].value} if found else frozenset())
        if not query.flags <= flags:
            return False
        return not query.text or (trace is not None and query.text.casefold() in trace.text.casefold())
