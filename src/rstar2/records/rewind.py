"""Rewinds a run directory to an earlier moment, so that a run can be resumed from its last checkpoint.

Nothing is deleted: records written since then move to `superseded/<n>/` and stay readable there.
"""

from pathlib import Path

from rstar2.records.branches import JoinedTraces
from rstar2.records.jsonl import read_lines
from rstar2.records.record_file import decode_at
from rstar2.records.run_layout import RunLayout, segment, segment_steps
from rstar2.records.trace import Trace

Mark = dict[str, int]
"""Sizes in bytes of the files that may still grow, by their path in the run directory."""


def mark(layout: RunLayout, step: int) -> Mark:
    """The mark of the present moment, at the end of `step`."""
    files = [layout.metrics, *(segment(folder, step) for folder in _segmented(layout))]
    return {str(path.relative_to(layout.path)): _size(path) for path in files}


def rewind(layout: RunLayout, step: int, sizes: Mark) -> int:
    """Takes the directory back to a mark that was made at the end of `step`. Returns the number of files that were
    changed."""
    later = [segment(folder, found) for folder in _segmented(layout) for found in segment_steps(folder) if found > step]
    longer = [layout.path / name for name, size in sizes.items() if _size(layout.path / name) > size]
    if not later and not longer:
        return 0
    kept = _new_folder(layout)
    for path in later:
        target = kept / path.relative_to(layout.path)
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)
    for path in longer:
        name = str(path.relative_to(layout.path))
        target = kept / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with path.open("r+b") as file:
            file.seek(sizes[name])
            target.write_bytes(file.read())
            file.truncate(sizes[name])
    return len(later) + len(longer)


def superseded_traces(layout: RunLayout, step: int) -> dict[str, Trace]:
    """The traces of `step` and later steps that were moved away, by id. If there are several of one id, the newest
    counts."""
    found: dict[str, Trace] = {}
    for folder in _kept_folders(layout):
        traces = RunLayout(folder).traces
        for later in segment_steps(traces):
            if later >= step:
                found |= _complete_traces(segment(traces, later))
    return found


def _complete_traces(path: Path) -> dict[str, Trace]:
    """The complete traces of a file, without branches whose parent stayed in the run's own file: their tree is sampled
    again."""
    joined, found = JoinedTraces(path), dict[str, Trace]()
    for line in read_lines(path):
        trace = decode_at(Trace, path, line)
        if not trace.parent or trace.parent in found:
            found[trace.id] = joined.join(trace, line.start)
    return found


def _segmented(layout: RunLayout) -> tuple[Path, ...]:
    return layout.traces, layout.groups, layout.schedule


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _kept_folders(layout: RunLayout) -> list[Path]:
    found = layout.superseded.iterdir() if layout.superseded.is_dir() else ()
    return sorted(found, key=lambda folder: int(folder.name))


def _new_folder(layout: RunLayout) -> Path:
    folder = layout.superseded / str(len(_kept_folders(layout)) + 1)
    folder.mkdir(parents=True)
    return folder
