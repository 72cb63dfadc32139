"""Reads one run for the page: each method returns one answer of the API, as plain JSON values.

Invariant: an answer is bounded, whatever the size of the run: rows come in pages, and steps are read by parts
(`step_reader`). Threads may share a reader; they take turns.
"""

from collections import OrderedDict
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from rstar2.errors import UserError
from rstar2.records import Event, RunView, StepMetrics, Trace
from rstar2.records.codec import RecordError, decode
from rstar2.records.jsonl import read_lines
from rstar2.records.run_layout import segment, segment_steps
from rstar2.web.schedule_wire import schedule_json
from rstar2.web.step_reader import Query, StepReader
from rstar2.web.tool_calls import tool_call_statistics
from rstar2.web.trace_wire import group_row_json, row_json, short_trace_json, trace_json
from rstar2.web.vocabulary import Vocabulary

PAGE_BYTES = 1 << 20
"""The maximum number of bytes of metrics or events in one answer."""
MAX_OPEN_STEPS = 8
"""The number of steps whose index is kept; one of 16,384 rollouts has about 15 MB."""
MAX_SIDE_BY_SIDE = 64
MAX_PAGE_ROWS, MAX_PAGE_PROBLEMS = 200, 1000

Record = TypeVar("Record", StepMetrics, Event)


class RunReader:
    def __init__(self, path: Path, key: str, vocabulary: Vocabulary | None = None) -> None:
        self.view = RunView(path)
        self.key = key
        self.vocabulary = vocabulary
        self._steps: OrderedDict[int, StepReader] = OrderedDict()
        self._closed_bytes = 0
        self._lock = Lock()
        self.num_row_bytes_read = 0

    @property
    def num_bytes_read(self) -> int:
        """Bytes read so far from all files, for tests of the bounds on each answer."""
        return self.num_row_bytes_read + self._closed_bytes + sum(step.num_bytes_read for step in self._steps.values())

    def overview(self) -> dict[str, Any]:
        info = self.view.info
        return {
            "key": self.key,
            "name": self.view.path.resolve().name,
            "status": self.view.status.value,
            "verb": info.verb,
            "version": info.rstar2_version,
            "argv": list(info.argv),
            "seed": info.seed,
            "host": f"{info.host.name}: {info.host.num_cores} cores, {info.host.platform}, Python {info.host.python}",
            "started": info.started,
            "resumed": list(info.resumed),
            "ended": info.ended,
            "note": info.note,
        }

    def recipe(self) -> dict[str, Any]:
        file = self.view.layout.recipe
        return {"toml": self.view.recipe_toml if file.is_file() else ""}

    def metrics(self, offset: int) -> dict[str, Any]:
        rows, end, is_end = self._rows(StepMetrics, self.view.layout.metrics, offset)
        # Values are pairs, not an object: a metric's name could collide with a property of JavaScript objects.
        wire = [[row.step, row.stage, row.time, list(map(list, row.values.items()))] for row in rows]
        return {"rows": wire, "next": end, "is_end": is_end}

    def events(self, offset: int) -> dict[str, Any]:
        rows, end, is_end = self._rows(Event, self.view.layout.events, offset)
        return {"rows": [[row.time, row.kind, row.message] for row in rows], "next": end, "is_end": is_end}

    def steps(self) -> dict[str, Any]:
        layout = self.view.layout
        return {
            "traces": [[step, segment(layout.traces, step).stat().st_size] for step in segment_steps(layout.traces)],
            "groups": segment_steps(layout.groups),
            "schedule": self.view.schedule_steps(),
        }

    def problems(self, step: int, after: int) -> dict[str, Any]:
        """A page of the groups of a step, then of the problems whose rollouts are in no group: those of evaluations,
        and of an undecided step."""
        with self._lock:
            reader = self._step(step)
            reader.find_lines()
            groups = reader.table.groups
            is_complete = reader.index.is_complete
            others = _traces_without_group(reader) if is_complete or after >= len(groups) else {}
            num_known = len(groups) + len(others)
            numbers = range(after, min(after + MAX_PAGE_PROBLEMS, num_known))
            page = [
                group_row_json(n, groups[n], reader.question_of(groups[n].problem_id, groups[n].trace_ids))
                for n in numbers
                if n < len(groups)
            ]
            page += [
                {"problem_id": name, "question": reader.question_of(name, ids), "num_rollouts": len(ids)}
                for name, ids in list(others.items())[max(0, after - len(groups)) :][: MAX_PAGE_PROBLEMS - len(page)]
            ]
        at_end = after + len(page) >= num_known
        return {"rows": page, "next": after + len(page), "is_end": is_complete and at_end, "num_known": num_known}

    def rollouts(self, step: int, query: Query, after: int, limit: int = MAX_PAGE_ROWS) -> dict[str, Any]:
        with self._lock:
            reader = self._step(step)
            page = reader.page(query, after, min(limit, MAX_PAGE_ROWS))
            rows = [row_json(row, reader.table.find(row.summary.id)) for row in page.rows]
            answer = {"rows": rows, "next": page.next, "is_end": page.is_end, "environments": reader.environments}
            return {**answer, **_progress(reader)}

    def side_by_side(self, step: int, group: int | None, problem_id: str | None) -> dict[str, Any]:
        with self._lock:
            reader = self._step(step)
            if group is not None:
                if not 0 <= group < len(reader.table.groups):
                    raise UserError(f"step {step} has no group number {group}")
                ids: list[str] = list(reader.table.groups[group].trace_ids)
                problem_id = reader.table.groups[group].problem_id
            else:
                reader.find_lines()
                ids = [entry.id for entry in reader.index.entries if entry.problem_id == problem_id]
            found, is_complete = reader.traces_of(ids[:MAX_SIDE_BY_SIDE])
            rollouts = [short_trace_json(start, trace, reader.table.find(trace.id)) for start, trace in found]
            return {
                "problem_id": problem_id,
                "group": group,
                "num_rollouts": len(ids),
                "rollouts": rollouts,
                "is_end": is_complete or len(found) == len(ids),
                **_progress(reader),
            }

    def trace(self, step: int, start: int) -> dict[str, Any]:
        with self._lock:
            reader = self._step(step)
            trace = reader.index.trace_at(start)
            place = reader.table.find(trace.id)
            group = reader.table.place_of[trace.id][0] if place else None
            return {**trace_json(start, trace, place, self.vocabulary), "group": group}

    def tool_calls(self, step: int) -> dict[str, Any]:
        with self._lock:
            reader = self._step(step)
            rows, is_end = reader.summaries()
            return {**tool_call_statistics(rows), "is_end": is_end, **_progress(reader)}

    def schedule(self, step: int) -> dict[str, Any]:
        """The schedule of the step's last run."""
        records = list(self.view.step_records(step))
        if not records:
            raise UserError(f"{self.view.path.name} has no complete record of the engines of step {step} yet")
        return schedule_json(records[-1])

    def sample(self, step: int, max_bytes: int) -> tuple[StepReader, list[tuple[int, Trace]]]:
        """Traces from the beginning of a step, and the step's reader, for a report that cannot hold all traces."""
        with self._lock:
            reader = self._step(step)
            traces: list[tuple[int, Trace]] = []
            for entry in reader.index.entries:
                if max_bytes <= 0:
                    break
                traces.append((entry.start, reader.index.trace_at(entry.start)))
                max_bytes -= entry.num_bytes
            return reader, traces

    def _step(self, step: int) -> StepReader:
        reader = self._steps.pop(step, None)
        if reader is None:
            layout = self.view.layout
            path = segment(layout.traces, step)
            if not path.is_file():
                raise UserError(f"{self.view.path.name} has no traces of step {step}")
            reader = StepReader(path, segment(layout.groups, step))
        self._steps[step] = reader
        while len(self._steps) > MAX_OPEN_STEPS:
            _, closed = self._steps.popitem(last=False)
            self._closed_bytes += closed.num_bytes_read
        reader.refresh()
        return reader

    def _rows(self, kind: type[Record], path: Path, offset: int) -> tuple[list[Record], int, bool]:
        """A page of rows, the offset of the next page, and whether this is the last page for now."""
        rows: list[Record] = []
        start = offset
        if path.is_file():
            for line in read_lines(path, offset):
                try:
                    rows.append(decode(kind, line.data))
                except RecordError as error:
                    raise RecordError(f"{path.name}, byte {line.start}: {error}") from error
                offset = line.end
                if offset - start >= PAGE_BYTES:
                    break
        self.num_row_bytes_read += offset - start
        return rows, offset, offset - start < PAGE_BYTES


def open_runs(paths: Sequence[Path], tokenizer: Path | None = None) -> list[RunReader]:
    """Open readers with unique keys: the folders' names, numbered if equal. UserError if a folder is no run, or a run
    of another version."""
    given = Vocabulary.read(tokenizer) if tokenizer is not None else None
    readers: dict[str, RunReader] = {}
    for path in paths:
        name = path.resolve().name.encode("utf-8", "replace").decode()
        key = next(key for n in count(1) if (key := name if n == 1 else f"{name}~{n}") not in readers)
        readers[key] = RunReader(path, key, given or Vocabulary.of_run(path))
        readers[key].overview()
    return list(readers.values())


def _traces_without_group(reader: StepReader) -> dict[str, list[str]]:
    """The ids of the traces that are in no group, by problem."""
    traces: dict[str, list[str]] = {}
    for entry in reader.index.entries:
        if entry.id not in reader.table.place_of:
            traces.setdefault(entry.problem_id, []).append(entry.id)
    return traces


def _progress(reader: StepReader) -> dict[str, Any]:
    index = reader.index
    return {
        "num_known": len(index.entries),
        "scanned_bytes": index.scanned_bytes,
        "total_bytes": index.total_bytes,
    }
