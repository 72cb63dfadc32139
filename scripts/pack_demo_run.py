"""Pack a run directory as the demo that `rstar2 view --demo` shows: `python scripts/pack_demo_run.py RUN`.

All curves and events are kept; of the rollouts, complete groups of a few steps, as many as the size allows. Names of
the machine that made the run are removed. Log-probabilities and entropies are rounded to what a page can show.
"""

import json
import sys
import tempfile
import zipfile
from dataclasses import replace
from itertools import islice
from pathlib import Path

from rstar2.records import RunView, Trace
from rstar2.records.branches import stored
from rstar2.records.codec import encode
from rstar2.web import demo
from rstar2.web.report import evenly

MAX_BYTES = 300_000
NUM_STEPS, GROUPS_PER_STEP, MAX_TRACES_PER_STEP = 6, 4, 128
NUM_DIGITS = 4


def rounded(trace: Trace) -> Trace:
    turns = tuple(
        replace(
            turn,
            log_probs=tuple(round(value, NUM_DIGITS) for value in turn.log_probs),
            entropies=tuple(round(value, NUM_DIGITS) for value in turn.entropies),
        )
        for turn in trace.turns
    )
    return replace(trace, turns=turns)


def nameless_info(view: RunView) -> bytes:
    info = json.loads(view.layout.info.read_bytes())
    info["host"]["name"] = "demo"
    info["argv"] = [Path(part).name for part in info["argv"]]
    return json.dumps(info, indent=2).encode()


def files_of(view: RunView, groups_per_step: int) -> dict[str, bytes]:
    files = {"run.json": nameless_info(view)}
    for path in (view.layout.recipe, view.layout.metrics, view.layout.events, view.path / "tokenizer/tokenizer.json"):
        if path.is_file():
            files[str(path.relative_to(view.path))] = path.read_bytes()
    for step in evenly(view.group_steps() or view.trace_steps(), NUM_STEPS):
        name = f"step-{step:06d}.jsonl"
        groups = [*view.groups(step)] if step in view.group_steps() else []
        groups.sort(key=lambda group: "kept" not in group.selections)
        kept = groups[:groups_per_step]
        ids = {trace_id for group in kept for trace_id in group.trace_ids}
        wanted = (trace for trace in view.traces(step) if not groups or trace.id in ids)
        traces = list(islice(wanted, MAX_TRACES_PER_STEP))
        files[f"groups/{name}"] = b"".join(encode(group) + b"\n" for group in kept)
        files[f"traces/{name}"] = b"".join(encode(stored(rounded(trace))) + b"\n" for trace in traces)
    for step in evenly(view.schedule_steps(), NUM_STEPS):
        files[f"schedule/step-{step:06d}.jsonl"] = b"".join(encode(r) + b"\n" for r in view.step_records(step))
    return files


def refuse_paths(files: dict[str, bytes], run: Path) -> None:
    """Only the values removed above may name this machine. A recipe or an event that does is an error."""
    for name, content in files.items():
        for path in {str(run.resolve().parent), str(Path.home()), str(Path.cwd())}:
            if path.encode() in content:
                sys.exit(f"{name} holds {path}, a path of this machine: make the run with relative paths")


def write_archive(target: Path, files: dict[str, bytes]) -> None:
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, content in sorted(files.items()):
            # A fixed time, so that the same run gives the same archive.
            entry = zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content, compresslevel=9)


def main(run: Path) -> None:
    view = RunView(run)
    target = Path(demo.__file__).with_name(demo.ARCHIVE)
    for groups_per_step in range(GROUPS_PER_STEP, 0, -1):
        with tempfile.NamedTemporaryFile(dir=target.parent, suffix=".zip") as scratch:
            files = files_of(view, groups_per_step)
            refuse_paths(files, run)
            write_archive(Path(scratch.name), files)
            content = Path(scratch.name).read_bytes()
        if len(content) <= MAX_BYTES:
            target.write_bytes(content)
            print(f"wrote {target.name}: {len(content):,} bytes, {groups_per_step} groups of each of {NUM_STEPS} steps")
            return
    sys.exit(f"even one group a step makes more than {MAX_BYTES:,} bytes; lower NUM_STEPS")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
