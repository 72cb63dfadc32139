"""`rstar2 analyze` on run directories made by hand."""

import json
from pathlib import Path

import pytest
import typer
from analysis_traces import NAME_ERROR, OK, HandTexts, calling_turn, make_trace, silent_turn
from typer.testing import CliRunner

from rstar2.analysis import analyze_run
from rstar2.analysis.analyze_run import sample_newest, sample_step, spread
from rstar2.cli.analyze import analyze_command
from rstar2.errors import UserError
from rstar2.records import RunDirectory, RunView, ToolResult, ToolStatus, Trace
from rstar2.web.run_reader import RunReader

pytestmark = pytest.mark.unit

app = typer.Typer()
app.command()(analyze_command)


def write_run(path: Path, traces: list[Trace]) -> Path:
    with RunDirectory.create(path, verb="train", recipe_toml="", seed=0) as run:
        for trace in traces:
            run.write_trace(trace)
    return path


def measured(step: int, index: int) -> Trace:
    turn = HandTexts().turn("Wait| a| b| c| d", [3.0, 0.1, 0.1, 0.1, 0.2])
    return make_trace(turn, id=f"{step}-{index}", step=step, reward=1.0)


def failing(step: int) -> Trace:
    return make_trace(calling_turn("x", NAME_ERROR), calling_turn("y", OK), silent_turn(), step=step, reward=0.0)


def test_a_run_gets_figures_and_a_document(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [measured(1, 0), failing(2), measured(2, 1)])
    result = CliRunner().invoke(app, [str(run)])
    assert result.exit_code == 0, result.output
    folder = run / "figures" / "analysis"
    document = json.loads((folder / "analysis.json").read_text())
    assert sorted(path.name for path in folder.glob("*.svg")) == ["after-errors.svg", "tool-errors-over-training.svg"]
    assert (document["num_traces"], document["num_measured_traces"]) == (3, 2)
    assert document["entropy"]["all_tokens"]["num_high"] == 2
    assert [row["step"] for row in document["over_training"]] == [1, 2]
    assert "after 1 turns with tool errors" in result.output
    assert "Of all 3 traces of steps 1 to 2" in result.output
    assert "Tool errors: 1 of 2 calls, 50.0%" in result.output
    assert "holds no tokenizer" in result.output
    assert "1 of 3 traces hold no entropies" in " ".join(result.output.split())


def test_json_is_all_of_stdout_and_writes_nothing_unasked(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [measured(1, 0), measured(2, 0)])
    result = CliRunner().invoke(app, [str(run), "--json", "--step", "1"])
    assert json.loads(result.stdout)["steps"] == [1, 1]
    assert not (run / "figures" / "analysis").exists()
    result = CliRunner().invoke(app, [str(run), "--json", "--steps", "1:", "-o", str(tmp_path / "out")])
    assert json.loads(result.stdout)["num_traces"] == 2
    assert (tmp_path / "out" / "analysis.json").is_file()


def test_an_empty_run(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [])
    result = CliRunner().invoke(app, [str(run), "--json"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert (document["num_traces"], document["notes"], document["steps"]) == (0, ["There are no traces."], [])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--step", "9"], "has no traces of step 9; it has steps 1 to 2"),
        (["--steps", "5:9"], "has no traces of steps 5:9"),
        (["--steps", "5"], "write two step numbers as A:B"),
        (["--steps", "a:b"], "write two step numbers as A:B"),
        (["--step", "1", "--steps", "1:2"], "exclude each other"),
        (["--tokenizer", "nowhere"], "--tokenizer nowhere: there is no such file"),
        (["-o", "/dev/null/x"], "--output: cannot write to /dev/null/x"),
    ],
)
def test_mistakes_are_sentences(tmp_path: Path, arguments: list[str], sentence: str) -> None:
    run = write_run(tmp_path / "run", [measured(1, 0), measured(2, 0)])
    result = CliRunner().invoke(app, [str(run), *arguments])
    assert isinstance(result.exception, UserError)
    assert sentence in str(result.exception)


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, [str(tmp_path)])
    assert "is not a run directory" in str(result.exception)


def test_a_sample_is_bounded_fair_and_the_same_each_time(tmp_path: Path) -> None:
    run = RunView(write_run(tmp_path / "run", [measured(step, index) for step in range(30) for index in range(20)]))
    drawn = [[trace.id for trace in sample_step(run, step, 5).traces] for step in range(30)]
    assert drawn == [[trace.id for trace in sample_step(run, step, 5).traces] for step in range(30)]
    places = [int(name.split("-")[1]) for names in drawn for name in names]
    assert all(len(names) == 5 for names in drawn)
    assert sorted(places[:5]) == places[:5]
    # 150 draws of 0…19 have a mean of 9.5 ± 0.47; the first five alone would have 2.
    assert 7.5 < sum(places) / len(places) < 11.5
    newest = sample_newest(run, range(30), 45)
    assert [(sample.step, sample.num_traces, sample.num_held) for sample in newest] == [
        (29, 20, 20),
        (28, 20, 20),
        (27, 5, 20),
    ]
    assert [len(list(sample.traces)) for sample in newest] == [20, 20, 5]


def test_tokens_are_of_the_newest_steps_and_errors_of_all(tmp_path: Path) -> None:
    run = RunView(write_run(tmp_path / "run", [failing(step) for step in range(4)]))
    parts: list[tuple[int, int]] = []
    analysis = analyze_run(run, [0, 1, 2, 3], max_traces=2, on_progress=lambda done, total: parts.append((done, total)))
    assert [trace.step for trace in analysis.traces] == [3, 2]
    assert [row.step for row in analysis.over_training] == [0, 1, 2, 3]
    assert (parts[0], parts[-1]) == ((0, 5), (5, 5))


def test_steps_spread_evenly() -> None:
    assert spread(range(501), 6) == [0, 100, 200, 300, 400, 500]
    assert spread([3, 4], 6) == [3, 4]


def test_the_same_tool_errors_as_the_viewer_and_a_sample_says_that_it_is_one(tmp_path: Path) -> None:
    lost = make_trace(calling_turn("z", ToolResult(ToolStatus.INFRASTRUCTURE_FAULT)), step=1)
    path = write_run(tmp_path / "run", [failing(1)] * 5 + [lost] * 3 + [measured(1, 0)])
    shown = RunReader(path, "run").tool_calls(1)
    assert (shown["num_own_calls"], shown["num_errors"], shown["num_calls"]) == (10, 5, 13)

    everything = analyze_run(RunView(path), [1])
    assert (everything.calls.num_calls, everything.calls.num_errors) == (shown["num_own_calls"], shown["num_errors"])
    assert str(everything.looked_at) == "all 9 traces of step 1"
    some = analyze_run(RunView(path), [1], max_traces=4)
    assert str(some.looked_at) == "a sample of 4 of the 9 traces of step 1"
    result = CliRunner().invoke(app, [str(path), "--max-traces", "4"])
    assert "Of a sample of 4 of the 9 traces of step 1; the viewer shows all traces" in " ".join(result.output.split())
    document = json.loads(CliRunner().invoke(app, [str(path), "--json"]).stdout)
    assert document["looked_at"] == {"steps": [1], "num_traces": 9, "num_held": 9}
    assert document["calls"]["error_share"] == 0.5
