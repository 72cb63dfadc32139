"""The run directory: one layout, one writer, readable at any moment."""

import json
import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rstar2.errors import InfrastructureError, UserError
from rstar2.records import Group, Outcome, RunDirectory, RunStatus, RunView, Selection, Trace, make_run_folder
from rstar2.records.atomic import replace_file
from rstar2.records.codec import RecordError
from rstar2.records.record_file import MAX_OPEN_SEGMENTS

pytestmark = pytest.mark.unit

RECIPE = 'name = "tiny ∑"\n'


def start(path: Path) -> RunDirectory:
    return RunDirectory.create(path, verb="train", recipe_toml=RECIPE, seed=7, argv=["rstar2", "train", "\udcff"])


def make_trace(step: int, index: int) -> Trace:
    return Trace(f"t{step}-{index}", "p", (1, 2), "P", (), Outcome.ANSWERED, step=step, sample_index=index)


def make_group(step: int) -> Group:
    return Group(f"g{step}", "p", step, ("t",), (1.0,), (0.0,), (0.0,), (None,), (Selection.EQUAL_REWARDS,))


def test_what_a_run_wrote_is_what_a_view_reads(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with start(path) as run:
        run.write_metrics(1, "rl", {"reward/mean": 0.25, "num_kept": 16})
        run.write_event("checkpoint", "saved step 1", {"step": 1})
        for trace in (make_trace(1, 0), make_trace(2, 0), make_trace(1, 1)):
            run.write_trace(trace)
        run.write_group(make_group(1))
        (run.checkpoints / "step-1").mkdir()
        assert RunView(path).status is RunStatus.RUNNING

    view = RunView(path)
    assert view.status is RunStatus.FINISHED
    assert (view.info.verb, view.info.seed, view.info.argv) == ("train", 7, ("rstar2", "train", "\udcff"))
    assert view.info.host.num_cores >= 1
    assert view.info.ended is not None
    assert view.recipe_toml == RECIPE
    assert view.trace_steps() == [1, 2]
    assert list(view.traces(1)) == [make_trace(1, 0), make_trace(1, 1)]
    assert list(view.traces(2)) == [make_trace(2, 0)]
    assert view.group_steps() == [1]
    assert list(view.groups(1)) == [make_group(1)]
    (row,) = view.metrics()
    assert (row.step, row.stage, row.values) == (1, "rl", {"reward/mean": 0.25, "num_kept": 16.0})
    assert [event.kind for event in view.events()] == ["started", "checkpoint", "finished"]
    assert sorted(entry.name for entry in path.iterdir()) == [
        "checkpoints",
        "events.jsonl",
        "figures",
        "groups",
        "metrics.jsonl",
        "recipe.toml",
        "run.json",
        "schedule",
        "traces",
    ]
    assert (path / "traces" / "step-000001.jsonl").is_file()


@pytest.mark.parametrize(
    ("error", "status", "note"),
    [
        (RuntimeError("no memory"), RunStatus.FAILED, "RuntimeError: no memory"),
        (KeyboardInterrupt(), RunStatus.INTERRUPTED, ""),
    ],
)
def test_how_it_ended_is_in_its_status(tmp_path: Path, error: BaseException, status: RunStatus, note: str) -> None:
    with pytest.raises(type(error)), start(tmp_path / "run"):
        raise error
    view = RunView(tmp_path / "run")
    assert (view.status, view.info.note) == (status, note)


def test_metrics_that_are_not_finite_become_null_and_an_event_names_them(tmp_path: Path) -> None:
    with start(tmp_path / "run") as run:
        run.write_metrics(3, "rl", {"loss": float("nan"), "grad_norm": float("inf"), "lr": 1e-6})
    view = RunView(tmp_path / "run")
    assert next(view.metrics()).values == {"loss": None, "grad_norm": None, "lr": 1e-6}
    event = next(event for event in view.events() if event.kind == "non_finite_metric")
    assert event.message == "at step 3 loss is nan, grad_norm is inf"
    assert event.data == {"step": 3, "stage": "rl", "loss": "nan", "grad_norm": "inf"}
    for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=pytest.fail)


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(UserError, match="is not empty and holds no run; choose another folder"):
        start(tmp_path)
    with pytest.raises(UserError, match=r"thesis\.tex is a file; a run needs a folder"):
        start(tmp_path / "thesis.tex")
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_folder_with_a_run_in_it_is_refused(tmp_path: Path) -> None:
    start(tmp_path).finish(RunStatus.FINISHED)
    with pytest.raises(UserError, match="already holds a run; resume it, or choose another folder"):
        start(tmp_path)


def test_a_folder_without_a_run_can_neither_be_viewed_nor_resumed(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is not a run directory: it has no run\.json"):
        RunView(tmp_path)
    with pytest.raises(UserError, match="is not a run directory"):
        RunDirectory.resume(tmp_path, verb="train")


def test_a_killed_run_shows_as_interrupted_and_resumes_without_its_torn_tails(tmp_path: Path) -> None:
    path = tmp_path / "run"
    run = start(path)
    run.write_trace(make_trace(1, 0))
    run.write_metrics(1, "rl", {"loss": 1.0})
    run.finish(RunStatus.FAILED)
    # What a kill -9 leaves: a status that says running, and unfinished last lines.
    info = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps({**info, "status": "running", "ended": None}))
    for name in ("traces/step-000001.jsonl", "metrics.jsonl"):
        with (path / name).open("ab") as file:
            file.write(b'{"id":"torn')
    assert RunView(path).status is RunStatus.INTERRUPTED

    with RunDirectory.resume(path, verb="train") as resumed:
        resumed.write_trace(make_trace(1, 1))
        resumed.write_metrics(2, "rl", {"loss": 0.5})
        assert RunView(path).status is RunStatus.RUNNING
    view = RunView(path)
    assert view.status is RunStatus.FINISHED
    assert len(view.info.resumed) == 1
    assert view.info.note == ""
    assert list(view.traces(1)) == [make_trace(1, 0), make_trace(1, 1)]
    assert [row.step for row in view.metrics()] == [1, 2]
    torn = {event.data["file"]: event.data["num_bytes"] for event in view.events() if event.kind == "torn_tail"}
    assert torn == {"metrics.jsonl": 11, "traces/step-000001.jsonl": 11}


def test_a_run_has_one_writer(tmp_path: Path) -> None:
    with start(tmp_path / "run"), pytest.raises(UserError, match="is being written by another process"):
        RunDirectory.resume(tmp_path / "run", verb="train")


def test_a_run_is_resumed_by_its_own_verb(tmp_path: Path) -> None:
    start(tmp_path / "run").finish(RunStatus.FINISHED)
    with pytest.raises(UserError, match="holds a run of `rstar2 train`; `rstar2 eval` cannot resume it"):
        RunDirectory.resume(tmp_path / "run", verb="eval")


def test_a_run_of_a_newer_layout_is_refused(tmp_path: Path) -> None:
    run = start(tmp_path / "run")
    run._write_info(replace(run.info, schema_version=9))
    run.finish(RunStatus.FINISHED)
    with pytest.raises(RecordError, match=r"run\.json: runinfo has schema version 9, but this build reads version 1"):
        _ = RunView(tmp_path / "run").info


def test_a_step_without_traces_is_said_so(tmp_path: Path) -> None:
    with start(tmp_path / "run") as run:
        view = RunView(run.path)
        with pytest.raises(UserError, match="has no traces of step 4; it has none yet"):
            view.traces(4)
        run.write_trace(make_trace(1, 0))
        run.write_trace(make_trace(3, 0))
        with pytest.raises(UserError, match="has no traces of step 4; it has steps 1 to 3"):
            view.traces(4)


def test_a_view_follows_a_run(tmp_path: Path) -> None:
    with start(tmp_path / "run") as run:
        view = RunView(run.path)
        run.write_trace(make_trace(1, 0))
        traces, offset = view.read_traces_from(1, 0)
        assert traces == [make_trace(1, 0)]
        run.write_trace(make_trace(1, 1))
        assert view.read_traces_from(1, offset)[0] == [make_trace(1, 1)]


def test_many_steps_are_written_with_few_files_open(tmp_path: Path) -> None:
    num_steps = 3 * MAX_OPEN_SEGMENTS
    with start(tmp_path / "run") as run:
        num_open = len(list(Path("/proc/self/fd").iterdir()))
        for index in range(2):
            for step in range(num_steps):
                run.write_trace(make_trace(step, index))
        assert len(list(Path("/proc/self/fd").iterdir())) <= num_open + MAX_OPEN_SEGMENTS
    view = RunView(tmp_path / "run")
    assert view.trace_steps() == list(range(num_steps))
    for step in range(num_steps):
        assert list(view.traces(step)) == [make_trace(step, 0), make_trace(step, 1)]


def test_two_runs_of_one_second_get_two_folders(tmp_path: Path) -> None:
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    folders = [make_run_folder("tiny", tmp_path / "runs", now) for _ in range(2)]
    assert [folder.name for folder in folders] == ["tiny-20260102-030405", "tiny-20260102-030405-2"]
    start(folders[0]).finish(RunStatus.FINISHED)


def test_a_place_where_no_folder_can_be_made_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(UserError, match=r"cannot make a run folder in .*runs: File exists; choose another place"):
        make_run_folder("tiny", tmp_path / "runs")


def test_a_replacement_that_fails_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report.html"
    replace_file(path, b"old")

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(InfrastructureError, match=r"cannot write .*report\.html: No space left on device"):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_kill_at_the_very_beginning_left_is_no_obstacle(tmp_path: Path) -> None:
    with start(tmp_path / "run"):
        pass
    for name in ("run.json", "events.jsonl"):
        (tmp_path / "run" / name).unlink()
    (tmp_path / "run" / "events.jsonl").touch()
    (tmp_path / "run" / ".run.json.123.tmp").touch()
    with start(tmp_path / "run"):
        pass
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "recipe.toml").write_text("somebody's own")
    with pytest.raises(UserError, match="is not empty"):
        start(tmp_path / "mine")
    (tmp_path / "run" / "run.json").unlink()
    with pytest.raises(UserError, match="is not empty"):
        start(tmp_path / "run")
