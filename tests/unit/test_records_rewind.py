"""A run directory taken back to a mark: what came later is moved aside, and nothing is lost."""

from pathlib import Path

import pytest

from rstar2.records import Outcome, Trace
from rstar2.records.codec import encode
from rstar2.records.rewind import mark, rewind, superseded_traces
from rstar2.records.run_layout import RunLayout, segment

pytestmark = pytest.mark.unit


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    layout = RunLayout(tmp_path)
    for folder in layout.folders:
        folder.mkdir()
    return layout


def append(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def write_step(layout: RunLayout, step: int) -> None:
    for folder in (layout.traces, layout.groups, layout.schedule):
        append(segment(folder, step), f"of step {step}\n")
    append(layout.metrics, f"step {step}\n")


def everything(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_what_came_after_the_mark_is_moved_aside(layout: RunLayout) -> None:
    for step in (1, 2):
        write_step(layout, step)
    before, marked = everything(layout.path), mark(layout, 2)
    append(segment(layout.traces, 2), "an evaluation after the step\n")
    append(layout.metrics, "its row\n")
    write_step(layout, 3)
    append(segment(layout.traces, 4), "torn")
    append(layout.events, "events are history: they stay\n")
    assert rewind(layout, 2, marked) == 6
    after = everything(layout.path)
    assert {name: text for name, text in after.items() if not name.startswith(("superseded", "events"))} == before
    assert everything(layout.superseded / "1") == {
        "metrics.jsonl": "its row\nstep 3\n",
        "traces/step-000002.jsonl": "an evaluation after the step\n",
        "traces/step-000003.jsonl": "of step 3\n",
        "groups/step-000003.jsonl": "of step 3\n",
        "schedule/step-000003.jsonl": "of step 3\n",
        "traces/step-000004.jsonl": "torn",
    }
    assert after["events.jsonl"] == "events are history: they stay\n"
    assert rewind(layout, 2, marked) == 0, "there is nothing more to do"
    write_step(layout, 3)
    assert rewind(layout, 2, marked) == 4
    assert everything(layout.superseded / "2")["metrics.jsonl"] == "step 3\n", "each time has a folder of its own"


def test_without_a_checkpoint_all_goes(layout: RunLayout) -> None:
    write_step(layout, 0)
    write_step(layout, 1)
    assert rewind(layout, -1, {"metrics.jsonl": 0}) == 7
    assert layout.metrics.read_text() == ""
    assert not list(layout.traces.iterdir())
    assert everything(layout.superseded / "1")["metrics.jsonl"] == "step 0\nstep 1\n"


def test_traces_that_were_moved_aside_are_found_again(layout: RunLayout) -> None:
    def write(step: int, name: str, note: str) -> None:
        trace = Trace(name, "p", (1,), "x", (), Outcome.ANSWERED, step=step, note=note)
        append(segment(layout.traces, step), encode(trace).decode() + "\n")

    write(1, "a", "kept")
    marked = mark(layout, 1)
    write(1, "b", "first")
    write(2, "c", "first")
    rewind(layout, 1, marked)
    write(2, "c", "second")
    append(segment(layout.traces, 2), '{"torn')
    rewind(layout, 1, marked)
    found = {name: trace.note for name, trace in superseded_traces(layout, 1).items()}
    assert found == {"b": "first", "c": "second"}
    assert superseded_traces(layout, 2).keys() == {"c"} and superseded_traces(layout, 3) == {}
